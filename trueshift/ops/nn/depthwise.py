"""Depthwise convolutions of tokens on the circle, at a stride and at an own shift for each image."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..geometry.shift import Pair, circular_shift, pad_image
from ..kernels import kernel_for, usable

NORM = ("weight", "bias", "running_mean", "running_var")


def depthwise(
    x: Float[Tensor, "B H W C"],
    weight: Float[Tensor, "D 1 kh kw"],
    stride: Pair,
    padding: Pair,
    offset: Int[Tensor, "B 2"] | None = None,
    mode: str = "circular",
) -> Float[Tensor, "B h w C"]:
    """Shift, then convolve each channel with its own kernel; one narrower than the tokens serves each head in turn.

    Shift law: ``depthwise(S^t x, offset=m) == depthwise(x, offset=m + t)``, around the border.

    Args:
        padding: how far the kernel reaches before each position.
        offset: where each image's frame starts, counted in tokens.
        mode: what is beyond the border of the shifted frame: the other side, ``"zeros"``, or the other side beside it
            and zeros above and below, ``"circular_width"``.
    """
    (sequence,) = depthwise_sequences([x], [weight], stride, padding, offset, mode)
    return sequence.unflatten(1, pooled_shape(x.shape, stride))


def _served(x: Tensor, weights: Sequence[Tensor]) -> bool:
    return len(weights) <= 3 and usable(x) and all(weight.shape == weights[0].shape for weight in weights)


@kernel_for(
    lambda maps, weights, stride, padding, offset=None, mode="circular", *_, **__: (
        mode != "circular_width" and _served(maps[0], weights)
    )
)
def depthwise_sequences(
    maps: Sequence[Float[Tensor, "B H W C"]],
    weights: Sequence[Float[Tensor, "D 1 kh kw"]],
    stride: Pair,
    padding: Pair,
    offset: Int[Tensor, "B 2"] | None = None,
    mode: str = "circular",
    norms: Sequence[nn.Module] | None = None,
    prefix: Float[Tensor, "B n C"] | None = None,
) -> list[Tensor]:
    """:func:`depthwise` of maps that share an offset, as sequences ``[B, n + h w, C]``: one kernel where there is one.

    Args:
        norms: what each result passes: a BatchNorm of its channels or a LayerNorm of each head's.
        prefix: tokens to put in front of each sequence.
    """
    return finish(plain_depthwise(maps, weights, stride, padding, offset, mode), norms, prefix)


def _scored(maps: Sequence[Tensor], weights: Sequence[Tensor], padding: Pair) -> bool:
    """3 x 3, of at most two maps."""
    return len(maps) <= 2 and padding == (1, 1) and weights[0].shape[2:] == (3, 3) and _served(maps[0], weights)


@kernel_for(_scored)
def depthwise_energy(
    maps: Sequence[Float[Tensor, "B H W C"]], weights: Sequence[Float[Tensor, "D 1 kh kw"]], padding: Pair
) -> Float[Tensor, "parts B H W"] | None:
    """Squares of the convolutions of all maps at every position, in float32, in parts to be added up; no gradient.

    None where there is no kernel: then the convolutions themselves are the way.
    """
    return None


def plain_depthwise(
    maps: Sequence[Float[Tensor, "B H W C"]],
    weights: Sequence[Float[Tensor, "D 1 kh kw"]],
    stride: Pair,
    padding: Pair,
    offset: Int[Tensor, "B 2"] | None = None,
    mode: str = "circular",
) -> list[Float[Tensor, "B h w C"]]:
    """:func:`depthwise` of each map with torch's own operations; one map for all is shifted and padded once."""
    frames = [_framed(x, weights[0], padding, offset, mode) for x in (maps[:1] if same(maps) else maps)]
    if len(frames) < len(maps):
        frames *= len(maps)
    images = maps[0].shape[0]
    return [_convolved(frame, weight, stride, images) for frame, weight in zip(frames, weights, strict=True)]


def same(maps: Sequence[Tensor]) -> bool:
    """All maps are one tensor."""
    return all(x is maps[0] for x in maps)


def _framed(x: Tensor, weight: Tensor, padding: Pair, offset: Tensor | None, mode: str) -> Float[Tensor, "N C H W"]:
    """What a convolution reads, heads side by side if they share their weights."""
    if offset is not None:
        x = circular_shift(x, offset)
    if x.shape[3] != weight.shape[0]:
        x = x.unflatten(3, (-1, weight.shape[0])).permute(0, 3, 1, 2, 4).flatten(0, 1)
    rows, columns = ((before, extent - 1 - before) for before, extent in zip(padding, weight.shape[2:], strict=True))
    return pad_image(x.permute(0, 3, 1, 2), rows, columns, mode)


def _convolved(frame: Tensor, weight: Tensor, stride: Pair, images: int) -> Float[Tensor, "B h w C"]:
    convolved = F.conv2d(frame, weight, None, stride, groups=weight.shape[0]).permute(0, 2, 3, 1)
    if convolved.shape[0] == images:
        return convolved
    return convolved.unflatten(0, (images, -1)).permute(0, 2, 3, 1, 4).flatten(3)


def finish(
    pooled: Sequence[Float[Tensor, "B h w C"]], norms: Sequence[nn.Module] | None, prefix: Tensor | None
) -> list[Tensor]:
    """Norms, and sequences with ``prefix`` in front."""
    if norms is not None:
        pooled = [_normed(values, norm) for values, norm in zip(pooled, norms, strict=True)]
    sequences = [values.flatten(1, 2) for values in pooled]
    return sequences if prefix is None else [torch.cat([prefix, sequence], 1) for sequence in sequences]


def _normed(values: Float[Tensor, "B h w C"], norm: nn.Module) -> Float[Tensor, "B h w C"]:
    if isinstance(norm, nn.LayerNorm):
        width = norm.normalized_shape[0]
        return norm(values) if width == values.shape[3] else norm(values.unflatten(3, (-1, width))).flatten(3)
    return norm(values.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def pooled_shape(shape: Sequence[int], stride: Sequence[int]) -> Pair:
    """Rows and columns of the outputs of tokens of a shape."""
    return (shape[1] - 1) // stride[0] + 1, (shape[2] - 1) // stride[1] + 1


def fusible(norms: Sequence[nn.Module], weight: Tensor) -> tuple[list[Tensor], float] | None:
    """What a kernel needs to apply the norms; None where it cannot."""
    first = norms[0]
    if isinstance(first, nn.LayerNorm):
        fits = all(isinstance(norm, nn.LayerNorm) and norm.normalized_shape == weight.shape[:1] for norm in norms)
    else:
        fits = all(isinstance(norm, nn.BatchNorm2d) and not norm.training for norm in norms)
    if not fits or any(norm.eps != first.eps for norm in norms):
        return None
    # looked up where they are held: asking a module for them by name takes long, and one that is computed is not there
    constants: list[Tensor | None] = [norm._parameters.get(name) for name in NORM[:2] for norm in norms]
    if not isinstance(first, nn.LayerNorm):
        constants += [norm._buffers.get(name) for name in NORM[2:] for norm in norms]
    given = [constant for constant in constants if constant is not None]
    return (given, float(first.eps)) if len(given) == len(constants) else None  # type: ignore[arg-type]
