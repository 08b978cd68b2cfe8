r"""Any image model behind a crop that its content chooses: the answer stays while the camera moves.

A camera that moves loses content on one side and gains some on the other. What both views share is still there, so let
the content of a crop, and nothing else, say how good that crop is, and show the model the best one.

The score of a crop is that of its centre. With :math:`b_n` the image blurred by a triangle of n pixels,

.. math:: s = \sum_c |b_3 - b_5|, \quad d = |\{r \in \{1, 2, 4\} : s \text{ is the largest within } r \text{ pixels}\}|

and the crop with the largest :math:`(d, s)` wins: the strongest spot that stands out from its surroundings. Pixels are
rounded to integers, so a crop gets the same score wherever it lies; a hash of the crop decides exact ties.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64, Shaped
from torch import Tensor, nn

from .layers.tokenize import check_image
from .ops.geometry.shift import Pair, pair
from .ops.nn.autocast import without_autocast
from .ops.selection.choose import choose
from .ops.selection.content_hash import window_keys
from .ops.selection.exact import require_finite

UNIT = 2.0**-8  # to which pixels are rounded: a grey level of images between 0 and 1
LARGEST = 2**20  # in units; all sums below stay exact
NARROW, WIDE = 3, 5  # triangles
RADII = (1, 2, 4)  # within which a centre may be the largest
SMALLEST = 2 * (WIDE - 1 + RADII[-1]) + 1  # a crop that holds all that its score looks at


@dataclass(frozen=True)
class SteadyCrop:
    """Which crop was chosen of each image.

    Attributes:
        offset: its first row and column.
        margin: how many pixels the image has above, left, below and right of it: so far the camera can move before
            the crop leaves the view. It jumps then, and where a better one comes into view.
    """

    offset: Int64[Tensor, "B 2"]
    margin: Int64[Tensor, "B 4"]


def crop_scores(image: Float[Tensor, "B C H W"], size: Pair) -> tuple[Float64[Tensor, "B h w"], ...]:
    """How good the crop is that starts at each position, the later scores for where the earlier ones tie.

    Shift law: a score depends on the content of its crop and on nothing else, bit for bit.
    """
    require_finite(image)
    levels = (image.to(torch.float64) / UNIT).round().clamp(-LARGEST, LARGEST).to(torch.int64)
    edge = WIDE - NARROW
    narrow = _triangle(levels, NARROW)[..., edge:-edge, edge:-edge]
    spots = (WIDE**4 * narrow - NARROW**4 * _triangle(levels, WIDE)).abs().sum(1).to(torch.float64)
    largest = [spots >= F.max_pool2d(spots, 2 * radius + 1, 1, radius) for radius in RADII]
    stands_out = torch.stack(largest).sum(0).to(torch.float64)
    first = [length // 2 - (WIDE - 1) for length in size]  # the centre of the first crop, without what blurring cost
    room = [whole - length + 1 for whole, length in zip(image.shape[2:], size, strict=True)]
    rows, columns = (slice(start, start + count) for start, count in zip(first, room, strict=True))
    return stands_out[:, rows, columns], spots[:, rows, columns]


def _triangle(values: Int64[Tensor, "B C H W"], width: int) -> Int64[Tensor, "B C h w"]:
    """Sums weighted by a triangle of this height along both axes, where it lies within the image."""
    for axis in (2, 2, 3, 3):  # a box twice
        kept = values.shape[axis] - width + 1
        values = reduce(torch.add, [values.narrow(axis, first, kept) for first in range(width)])
    return values


class Steady(nn.Module):
    """See :func:`steady`."""

    def __init__(self, model: nn.Module, size: int | Pair) -> None:
        super().__init__()
        self.model = model
        self.size = pair(size)
        if min(self.size) < SMALLEST:
            raise ValueError(f"a crop of {self.size[0]} x {self.size[1]} pixels: needs at least {SMALLEST} each way")

    def extra_repr(self) -> str:
        """Show the size of the crop."""
        return f"size={self.size}"

    @torch.no_grad()
    def choose(self, image: Float[Tensor, "B C H W"]) -> SteadyCrop:
        """The crop that the content chooses.

        Shift law: if each of two views of a larger image contains the crop chosen in the other, both chose the same
        content.
        """
        check_image(image, image.shape[1] if image.dim() == 4 else 3, (1, 1))
        room = [whole - length for whole, length in zip(image.shape[2:], self.size, strict=True)]
        if min(room) < 0:
            raise ValueError(
                f"an image of {image.shape[2]} x {image.shape[3]} pixels: needs at least the crop's "
                f"{self.size[0]} x {self.size[1]}, and more to choose from"
            )
        with without_autocast(image):
            scores = crop_scores(image, self.size)
            offset = choose(scores, lambda _: window_keys(image.permute(0, 2, 3, 1), self.size)).offset
        return SteadyCrop(offset, torch.cat([offset, offset.new_tensor(room) - offset], 1))

    def forward(self, image: Float[Tensor, "B C H W"], *args: Any, **kwargs: Any) -> Any:
        """The model's output on the chosen crop."""
        return self.model(crop_at(image, self.choose(image).offset, self.size), *args, **kwargs)


def crop_at(image: Shaped[Tensor, "B C H W"], offset: Int64[Tensor, "B 2"], size: Pair) -> Shaped[Tensor, "B C h w"]:
    """The crop of each image that starts at its offset."""
    rows, columns = (offset[:, axis, None] + torch.arange(size[axis], device=offset.device) for axis in (0, 1))
    each = torch.arange(len(image), device=offset.device)[:, None, None]
    return image.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2).contiguous()


def steady(model: nn.Module, size: int | Pair) -> Steady:
    """Wrap any image model so that its answer stays while the camera moves, weights untouched.

    The image is larger than the model's input; the model sees one crop of it, chosen by the content. As long as that
    crop stays in view and no better one comes in, the model sees literally the same tensor, whatever else enters or
    leaves: outputs are bit-identical. ``docs/motion.md`` has what that is worth and what it costs.

    What it does not give: an answer that never changes. The crop jumps when it leaves the view or a better one enters;
    ``choose(image).margin`` has how far that is. Resizing, noise and fractions of a pixel change pixels, and may change
    the crop.

    Shift law: with A and B two views of one larger image, if A contains the crop chosen in B and B the one chosen in A,
    then ``f(A) == f(B)``, bit for bit.

    Args:
        model: takes images ``[B, C, H, W]`` first; further arguments are passed on.
        size: height and width of the crop, the model's input.

    >>> from torchvision.models import resnet18
    >>> model, photo = trueshift.steady(resnet18(), 64).eval(), torch.rand(1, 3, 80, 96)
    >>> top, left, bottom, right = model.choose(photo).margin[0].tolist()
    >>> torch.equal(model(photo), model(photo[:, :, :, left:]))  # the camera moves to the right
    True
    """
    return Steady(model, size)
