"""Any image model, made invariant to circular shifts from outside: show it the image in a frame that does not move."""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .layers.frame import FrameFinder
from .layers.tokenize import check_image
from .ops.geometry.shift import IMAGE_DIMS, circular_shift
from .ops.nn.autocast import without_autocast
from .ops.selection.content_hash import origin_keys
from .ops.selection.quantised_image import Pixels
from .ops.selection.seam import start_on_seam


@torch.no_grad()
def canonical_origin(image: Float[Tensor, "B C H W"], finder: FrameFinder | None = None) -> Int64[Tensor, "B 2"]:
    """The pixel at which the image should start: its border, and the content itself where several look like it.

    Usually the corner of the photograph as it was taken.

    Shift law: ``canonical_origin(S^t x) == canonical_origin(x) - t`` modulo the size, up to a period of the image.
    """
    with without_autocast(image):
        pixels = image.permute(0, 2, 3, 1)
        rows, columns = (finder or FrameFinder().to(image.device))(Pixels(pixels))
        first = image.new_zeros((image.shape[0], 2), dtype=torch.int64)
        return start_on_seam(rows, columns, first, (1, 1), lambda needed: origin_keys(pixels, needed))


class Canonicalize(nn.Module):
    """See :func:`canonicalize`."""

    def __init__(self, model: nn.Module, dense: bool) -> None:
        super().__init__()
        self.model = model
        self.dense = dense
        self.frame = FrameFinder()

    def forward(self, image: Float[Tensor, "B C H W"], *args: Any, **kwargs: Any) -> Any:
        """The model's output on the image in its canonical frame; dense maps rolled back to the image's own."""
        check_image(image, image.shape[1] if image.dim() == 4 else 3, (1, 1))
        origin = canonical_origin(image, self.frame)
        output = self.model(circular_shift(image, origin, IMAGE_DIMS), *args, **kwargs)
        if not self.dense:
            return output

        def back(part: Any) -> Any:
            if not isinstance(part, Tensor):
                return part
            if part.dim() != 4 or part.shape[2:] != image.shape[2:]:
                raise ValueError(
                    f"an output of shape {tuple(part.shape)} cannot be rolled back to an image of "
                    f"{tuple(image.shape[2:])} pixels: needs [B, D, {image.shape[2]}, {image.shape[3]}]; "
                    "use dense=False for outputs that do not lie on the pixels"
                )
            return circular_shift(part, -origin, IMAGE_DIMS)

        return tree_map(back, output)


def canonicalize(model: nn.Module, dense: bool = False) -> Canonicalize:
    """Wrap any image model so that its answer does not change under circular shifts, weights untouched.

    Each image is rolled to its canonical frame, the model runs on that, and dense output is rolled back. The frame is
    found exactly, so the model sees literally the same tensor whatever the shift: outputs are bit-identical.

    What it does not give: robustness to ordinary shifts, where content leaves the frame. There the frame itself may
    jump (``docs/exactness.md`` has numbers), and the model is as sensitive as it was. Nor is the frame always the
    photograph's own: where it is not, the model sees a rolled image it was not trained on.

    Shift law: ``f(S x) == f(x)``, or ``f(S x) == S f(x)`` with ``dense``, bit for bit.

    Args:
        model: takes images ``[B, C, H, W]`` first; further arguments are passed on.
        dense: the output (or each tensor of a tuple, list or dictionary) lies on the image's pixels.

    >>> from torchvision.models import resnet18
    >>> model, image = trueshift.canonicalize(resnet18()).eval(), torch.rand(1, 3, 64, 64)
    >>> torch.equal(model(image), model(image.roll((9, 4), (2, 3))))
    True
    """
    return Canonicalize(model, dense)
