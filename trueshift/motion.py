r"""Any image model on a crop that the content chooses: the answer stays while the camera moves.

A camera that moves loses content on one side and gains some on the other. What both views share is still there, so let
the content of a crop, and nothing else, say how good that crop is, and show the model the best one.

A crop is as good as the best of some spots in it. With :math:`b_n` the image blurred by a triangle of n pixels,

.. math:: s = \sum_c |b_3 - b_5|, \quad d = |\{r \in \{1, 2, 3\} : s \text{ is the largest within } r \text{ pixels}\}|

the spot with the largest :math:`(d, s)` is the strongest that stands out from its surroundings. Where a crop can start
at w positions along an axis, its spots are w pixels apart. So every spot of the view belongs to one crop, and while the
best one stays in view, the crop stays too, or moves on by w pixels: fewer jumps than with one spot for each crop. (The
mod-minimizer of Groot Koerkamp and Pibiri, WABI 2024, chooses parts of strings so.) Pixels are rounded to integers, so
a crop gets the same score wherever it lies; a hash of the crop decides exact ties.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor, nn

from .canonical import Canonicalize, ImageWrapper
from .layers.checks import check_image
from .layers.tokenize import AdaptiveTokenize
from .ops.geometry.grid import displacements, mean_of_each, repeat_each
from .ops.geometry.shift import IMAGE_DIMS, Pair, circular_shift, pair
from .ops.nn.autocast import without_autocast
from .ops.selection.choose import choose
from .ops.selection.content_hash import window_keys
from .ops.selection.exact import require_finite
from .ops.selection.spot import spot_strength
from .utils.wrappers import unwrapped

UNIT = 2.0**-8  # to which pixels are rounded: a grey level of images between 0 and 1
LARGEST = 2**20  # in units; all sums below stay exact
NARROW, WIDE = 3, 5  # triangles
RADII = (1, 2, 3)  # within which a spot may be the largest
STANDS_OUT = 2.0**48  # what each of them counts; more than any spot's strength
SUPPORT = 2 * (WIDE - 1 + RADII[-1]) + 1  # pixels that a spot looks at, each way


@dataclass(frozen=True)
class SteadyCrop:
    """Which crop was chosen of each image.

    Attributes:
        offset: its first row and column.
        margin: how many pixels the image has above, left, below and right of it: so far the camera can move before
            the crop leaves the view. It jumps then, and where a better one comes into view.
        spots: how strong the best spot is of the crop that starts at each position.
    """

    offset: Int64[Tensor, "B 2"]
    margin: Int64[Tensor, "B 4"]
    spots: Float64[Tensor, "B h w"]


def crop_scores(image: Float[Tensor, "B C H W"], size: Pair) -> Float64[Tensor, "B h w"]:
    """How good the crop is that starts at each position.

    Shift law: among views of one size a score depends on the content of its crop and on nothing else, bit for bit.
    """
    require_finite(image)
    levels = (image.to(torch.float64) / UNIT).round().clamp(-LARGEST, LARGEST).to(torch.int64)
    spots = spot_strength(levels, NARROW, WIDE).to(torch.float64)
    largest = [spots >= F.max_pool2d(spots, 2 * radius + 1, 1, radius) for radius in RADII]
    scores = spots + STANDS_OUT * torch.stack(largest).sum(0).to(torch.float64)
    for axis, length in enumerate(size, 1):
        starts = image.shape[axis + 1] - length + 1
        further = (length - SUPPORT) // starts  # spots of a crop beside its first
        first = (length - further * starts) // 2 - (WIDE - 1)  # without what blurring cost
        within = scores.narrow(axis, first, (further + 1) * starts)
        scores = within.unflatten(axis, (further + 1, starts)).amax(axis)
    return scores


class Steady(ImageWrapper):
    """See :func:`steady`."""

    def __init__(self, model: nn.Module, size: int | Pair, crops: int = 1) -> None:
        super().__init__()
        self.model, self.size, self.crops = model, pair(size), index(crops)
        if min(self.size) < SUPPORT:
            raise ValueError(f"a crop of {self.size[0]} x {self.size[1]} pixels: needs at least {SUPPORT} each way")
        if crops < 1:
            raise ValueError(f"{crops} crops: needs at least 1")

    def extra_repr(self) -> str:
        """Show the size of the crops, and how many there are."""
        return f"size={self.size}" + f", crops={self.crops}" * (self.crops > 1)

    def choose(self, image: Float[Tensor, "B C H W"], allowed: Bool[Tensor, "B h w"] | None = None) -> SteadyCrop:
        """The crop that the content chooses, the best one.

        Shift law: if each of two views of one size contains the crop chosen in the other, both chose the same content.

        Args:
            allowed: where the crop may start, if not everywhere.
        """
        return self.best(image, 1, allowed)[0]

    @torch.no_grad()
    def best(
        self, image: Float[Tensor, "B C H W"], count: int, allowed: Bool[Tensor, "B h w"] | None = None
    ) -> list[SteadyCrop]:
        """The best crops, the first before all others; fewer where the image has not so many.

        Shift law: as that of ``choose``, if each of two views contains all crops chosen in the other.
        """
        check_image(image, image.shape[1] if image.dim() == 4 else 3, (1, 1))
        room = [whole - length for whole, length in zip(image.shape[2:], self.size, strict=True)]
        if min(room) < 0:
            raise ValueError(
                f"an image of {image.shape[2]} x {image.shape[3]} pixels: needs at least the crop's "
                f"{self.size[0]} x {self.size[1]}, and more to choose from"
            )
        found = []
        with without_autocast(image):
            scores = crop_scores(image, self.size)
            able = scores if allowed is None else scores.masked_fill(~allowed, -1)
            for _ in range(min(count, scores[0].numel())):
                offset = choose((able,), lambda _: window_keys(image.permute(0, 2, 3, 1), self.size)).offset
                after = torch.stack([room[axis] - offset[:, axis] for axis in (0, 1)], 1)
                found.append(SteadyCrop(offset, torch.cat([offset, after], 1), scores % STANDS_OUT))
                place = offset[:, :1] * scores.shape[2] + offset[:, 1:]
                able = able.flatten(1).scatter(1, place, -1).view_as(scores)
        return found

    def respond(self, model: Callable[..., Any], image: Float[Tensor, "B C H W"], *args: Any, **kwargs: Any) -> Any:
        """The model's output on the chosen crop, or the mean of its outputs on several."""
        chosen = self.best(image, self.crops)
        if len(chosen) == 1:
            return model(crop_at(image, chosen[0].offset, self.size), *args, **kwargs)
        seen = torch.stack([crop_at(image, crop.offset, self.size) for crop in chosen], 1).flatten(0, 1)
        args, kwargs = repeat_each((args, kwargs), image.shape[0], len(chosen))
        return mean_of_each(model(seen, *args, **kwargs), len(chosen))


def crop_at(image: Shaped[Tensor, "B C H W"], offset: Int64[Tensor, "B 2"], size: Pair) -> Shaped[Tensor, "B C h w"]:
    """The crop of each image that starts at its offset."""
    rows, columns = (offset[:, axis, None] + torch.arange(size[axis], device=offset.device) for axis in (0, 1))
    each = torch.arange(image.shape[0], device=offset.device)[:, None, None]
    return image.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2).contiguous()


def steady(model: nn.Module, size: int | Pair, crops: int = 1) -> Steady:
    """Wrap any image model so that its answer stays while the camera moves, weights untouched.

    The image is larger than the model's input; the model sees one crop of it, chosen by the content. As long as that
    crop stays in view and no better one comes in, the model sees the same tensor, whatever else enters or
    leaves: outputs are bit-identical. ``docs/motion.md`` has what that is worth and what it costs.

    It does not give an answer that never changes: the crop jumps when it leaves the view or a better one enters
    (``choose(image).margin`` has how far that is), and with resizing, noise and fractions of a pixel, which change
    pixels. A crop chosen by its content is in the middle, where objects are, no more often than any other; the mean
    over the two best crops makes up for the Top-1 that this costs.

    Shift law: with A and B two views of one size of a larger image, if A contains the crop chosen in B and B the one
    chosen in A, then ``f(A) == f(B)``, bit for bit; with several crops, if they contain all of each other's.

    Args:
        model: takes images ``[B, C, H, W]`` first, or as ``pixel_values``; further arguments are passed on.
        size: height and width of the crop, the model's input.
        crops: how many of the best crops the model sees, in one batch; its outputs are averaged as they are, logits in
            general, and arguments with a row for each image are repeated.

    >>> from torchvision.models import resnet18
    >>> model, scene = trueshift.steady(resnet18(), 64).eval(), torch.rand(1, 3, 80, 99)
    >>> scene[..., 40, 60] = 9.0  # the strongest spot, in both views
    >>> torch.equal(model(scene[..., :96]), model(scene[..., 3:]))  # the camera moves to the right
    True
    """
    return Steady(model, size, crops)


class Video(ImageWrapper):
    """See :func:`video`.

    Attributes:
        offset: where the crop of each clip was in the last frame; None before the first.
        jumped: whether it left its content there.
    """

    def __init__(self, model: nn.Module, size: int | Pair, lead: float) -> None:
        super().__init__()
        if not lead >= 0:
            raise ValueError(f"lead {lead}: needs 0 or more")
        self.steady = Steady(model, size)
        self.lead = lead
        self.reset()

    @property
    def model(self) -> nn.Module:  # type: ignore[override]
        """The wrapped model."""
        return self.steady.model

    def reset(self) -> None:
        """Forget the last frame: another clip begins."""
        self.last: Tensor | None = None
        self.offset: Tensor | None = None
        self.jumped: Tensor | None = None

    @torch.no_grad()
    def follow(self, frame: Float[Tensor, "B C H W"]) -> Int64[Tensor, "B 2"]:
        """Where the crop of each clip is in the next frame."""
        if self.last is None or self.offset is None:
            offset = self.steady.choose(frame).offset
            self.jumped = torch.zeros_like(offset[:, 0], dtype=torch.bool)
        elif self.last.shape != frame.shape:
            shapes = f"{tuple(frame.shape)} after {tuple(self.last.shape)}"
            raise ValueError(f"a frame of shape {shapes}: needs frames of one shape, or reset() before another clip")
        else:
            step, size = image_motion(self.last, frame), self.steady.size
            moved = self.offset + step
            room = [whole - length for whole, length in zip(frame.shape[2:], size, strict=True)]
            chosen = self.steady.choose(frame, _stays_long(step, room))
            best, spots = chosen.offset, chosen.spots.flatten(1)
            kept = torch.stack([moved[:, axis].clamp(0, room[axis]) for axis in (0, 1)], 1)
            rival, own = (spots.gather(1, at[:, :1] * (room[1] + 1) + at[:, 1:])[:, 0] for at in (best, kept))
            self.jumped = (kept != moved).any(1) | (rival > (1 + self.lead) * own)
            offset = torch.where(self.jumped[:, None], best, kept)
        self.last, self.offset = frame.detach().clone(), offset  # the caller may write the next frame into this one
        return offset

    def respond(self, model: Callable[..., Any], frame: Float[Tensor, "B C H W"], *args: Any, **kwargs: Any) -> Any:
        """The model's output on the crop that follows the content."""
        return model(crop_at(frame, self.follow(frame), self.steady.size), *args, **kwargs)


def _stays_long(step: Int64[Tensor, "B 2"], room: list[int]) -> Bool[Tensor, "B h w"]:
    """Whether a crop that starts at each position stays in view for most of the time that any can."""
    rows, columns = (
        torch.arange(length + 1, device=step.device) * direction <= torch.where(direction > 0, 0.25, -0.75) * length
        for length, direction in zip(room, step.sign().T[:, :, None], strict=True)
    )
    return (rows | (step[:, :1] == 0))[:, :, None] & (columns | (step[:, 1:] == 0))[:, None]


def image_motion(before: Float[Tensor, "B C H W"], after: Float[Tensor, "B C H W"]) -> Int64[Tensor, "B 2"]:
    """How many whole pixels the content moved down and right, by phase correlation: at most half the image."""
    size = before.shape[2:]
    wide = torch.promote_types(before.dtype, torch.float32)
    before, after = before.to(wide), after.to(wide)
    windows = [torch.hann_window(length, periodic=False, device=before.device)[:, None] for length in size]
    largest = torch.maximum(before.abs().amax((1, 2, 3)), after.abs().amax((1, 2, 3)))[:, None, None, None]
    largest = largest.clamp_min(torch.finfo(largest.dtype).tiny)  # so that no product below is too large or too small
    scaled = [(each / largest).float() for each in (before, after)]
    flat = [(each - each.mean((2, 3), keepdim=True)).sum(1) for each in scaled]
    faded = [each * windows[0] * windows[1].T for each in flat]  # the border would correlate with itself
    first, second = torch.fft.rfft2(faded[0]), torch.fft.rfft2(faded[1])
    cross = second * first.conj()
    peak = torch.fft.irfft2(cross / cross.abs().clamp_min(1e-12), size).flatten(1).argmax(1)
    moved = [peak // size[1], peak % size[1]]
    return torch.stack([(at + length // 2) % length - length // 2 for at, length in zip(moved, size, strict=True)], 1)


def video(model: nn.Module, size: int | Pair, lead: float = 1.0) -> Video:
    """Wrap any image model for a video: one crop, chosen as by :func:`steady`, that follows the content.

    From frame to frame the motion is found by phase correlation, and the crop moves along. It jumps to another only
    when it leaves the frame, or the other is better by ``lead``, and then to one that stays in view for long. It has a
    memory: show it the frames of a clip in order, and call ``reset()`` before the next clip. Each row of a batch is a
    clip of its own.

    Shift law: where content only moves, by whole pixels, and the crop stays in view and none is better by ``lead``, the
    output is bit-identical from frame to frame. The motion must be found: of a smooth gradient, of few points, or of
    more than a quarter of the frame at a time, phase correlation may find another.

    Args:
        model: takes images ``[B, C, H, W]`` first; further arguments are passed on.
        size: height and width of the crop, the model's input.
        lead: by what part the score of another crop must be larger.

    >>> from torchvision.models import resnet18
    >>> model, scene = trueshift.video(resnet18(), 64).eval(), torch.rand(1, 3, 96, 160)
    >>> first, second = model(scene[..., :96]), model(scene[..., 2:98])  # the camera moves to the right
    >>> torch.equal(first, second) or model.jumped.item()
    True
    """
    return Video(model, size, lead)


class MeanOverGrids(ImageWrapper):
    """See :func:`mean_over_grids`."""

    def __init__(self, model: nn.Module, grids: int, stride: Pair) -> None:
        super().__init__()
        self.model, self.grids, self.stride = model, index(grids), stride
        displacements(grids, stride)  # refuses what the patches do not have

    def extra_repr(self) -> str:
        """Show the number of grids."""
        return f"grids={self.grids}"

    def respond(self, model: Callable[..., Any], image: Float[Tensor, "B C H W"], *args: Any, **kwargs: Any) -> Any:
        """The mean of the model's outputs on all grids, in one batch."""
        if tokenizer := adaptive_tokenizer(self.model):
            return tokenizer.mean_over_grids(model, image, self.grids, *args, **kwargs)
        away = displacements(self.grids, self.stride, image.device).repeat(image.shape[0], 1)
        moved = circular_shift(image.repeat_interleave(self.grids, 0), away, IMAGE_DIMS)
        args, kwargs = repeat_each((args, kwargs), image.shape[0], self.grids)
        return mean_of_each(model(moved, *args, **kwargs), self.grids)


def adaptive_tokenizer(model: nn.Module) -> AdaptiveTokenize | None:
    """The layer in which one of our adaptive networks chooses its first grid."""
    layer = getattr(unwrapped(model), "patch_embed", None)
    return layer if isinstance(layer, AdaptiveTokenize) and layer.anchor and layer.criterion.adaptive else None


def mean_over_grids(model: nn.Module, grids: int = 4, stride: int | Pair | None = None) -> MeanOverGrids:
    """Wrap a model so that its output is the mean over several grids of patches, in one batch of ``grids`` passes.

    One of our adaptive networks keeps the grid that it chooses and adds others at fixed distances from it: the output
    stays bit-identical under circular shifts. ``create_model(..., grids=4)`` makes such a network. Any other model is
    shown the image rolled by so many pixels, which is a mean over its grids and no guarantee; ``canonicalize`` around
    the mean gives that. A model that is exact already (``canonicalize``, ``anchor=True``, ``adapt`` of a ViT) undoes
    the roll, and is refused.

    Shift law: for adaptive networks ``f(S x) == f(x)``, bit for bit.

    Args:
        model: a classifier; outputs are averaged as they are, logits in general.
        grids: how many; for patches of 4 x 4 pixels 1, 2, 4, 8 or 16.
        stride: of the patches, where the model has no ``patch_embed``.

    >>> model = trueshift.mean_over_grids(trueshift.create_model("a_swin_mini"), 4).eval()
    >>> image = torch.rand(1, 3, 32, 32)
    >>> torch.equal(model(image), model(image.roll((5, 3), (2, 3))))
    True
    """
    layer = getattr(unwrapped(model), "patch_embed", None)
    found = stride or getattr(layer, "patch_size", None)
    if found is None:
        raise ValueError(f"a {type(model).__name__} does not say how large its patches are: needs stride")
    anchored = (isinstance(each, AdaptiveTokenize) and each.anchor for each in model.modules())
    exact = any(anchored) or any(isinstance(each, Canonicalize) for each in model.modules())
    if exact and adaptive_tokenizer(model) is None:
        raise ValueError(
            f"a {type(model).__name__} that gives one answer under every circular shift sees no further grids: needs "
            f"canonicalize(mean_over_grids(ordinary, {grids})), around the ordinary model"
        )
    rows, columns = pair(found)
    return MeanOverGrids(model, grids, (1 if getattr(layer, "fixed_rows", False) else rows, columns))
