"""Interpolate tokens from their grid to another one of the same image: all the geometry a decoder needs."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from .grid import TokenGrid, Tokens
from .interpolate import enlarge
from .shift import circular_shift


def resample(tokens: Tokens, onto: TokenGrid, mode: str = "bilinear") -> Tokens:
    """Values at the centres of the cells of ``onto``, interpolated circularly between the cells of ``tokens``.

    A token at ``origin`` with stride ``s`` covers the pixels ``origin .. origin + s - 1`` and has its centre at
    ``origin + (s - 1) / 2``. With both grids at origin 0 this is ``F.interpolate(align_corners=False)``, but for
    the border, where the image continues on the other side; rows that are fixed do not.

    Grids that share one ``origin`` (the tensor itself, as :func:`start_at` gives it) are the cheap case: the weights
    are the same for every image (:mod:`trueshift.ops.geometry.interpolate`).

    Shift law: if tokens and grid move with the image, so does the result, bit for bit.

    Args:
        mode: ``"bilinear"``, or ``"nearest"`` (a centre between two takes the one after).

    >>> tokens = trueshift.AdaptiveTokenize(3, 16, 4)(torch.rand(1, 3, 32, 32))
    >>> pixels = trueshift.TokenGrid.of_image(torch.rand(1, 3, 32, 32))
    >>> trueshift.resample(tokens, pixels).values.shape
    torch.Size([1, 32, 32, 16])
    """
    if tokens.grid.image_size != onto.image_size:
        sizes = f"tokens of an image of {tokens.grid.image_size}, a grid of {onto.image_size}"
        raise ValueError(f"{sizes}: both grids must lie on the same image")
    if mode not in ("bilinear", "nearest"):
        raise ValueError(f"mode {mode!r}: needs 'bilinear' or 'nearest'")
    divides = all(whole % part == 0 for whole, part in zip(tokens.grid.stride, onto.stride, strict=True))
    if mode == "bilinear" and tokens.grid.origin is onto.origin and divides:
        if tokens.grid.stride == onto.stride:
            return tokens
        return Tokens(enlarge(tokens.values, onto.shape, (not tokens.grid.fixed_rows, True)), onto)
    values = tokens.values
    for axis in (0, 1):
        lower, twice = _cells(tokens.grid, onto, axis)
        around = axis == 1 or not tokens.grid.fixed_rows
        values = _interpolate(values, lower, twice, tokens.grid.stride[axis], axis + 1, mode, around)
    return Tokens(values, onto)


def start_at(tokens: Tokens, origin: Int[Tensor, "B 2"]) -> Tokens:
    """The same tokens on the same grid, rolled so that the first one is at ``origin``, one of the grid's own.

    Shift law: if the origin moves with the image, the values are the same whatever the shift.
    """
    rows, columns = tokens.grid.stride
    away = origin - tokens.grid.origin
    offset = torch.stack([away[:, 0] // rows, away[:, 1] // columns], 1)
    return Tokens(circular_shift(tokens.values, offset), replace(tokens.grid, origin=origin, window=None))


def _cells(source: TokenGrid, target: TokenGrid, axis: int) -> tuple[Int64[Tensor, "B n"], Int64[Tensor, "B n"]]:
    """For each target cell: the source cell whose centre is at or before its own, and twice the distance beyond it.

    Whole numbers of half pixels: a shift changes them by whole turns around the image and by nothing else.
    """
    start = 2 * (target.origin[:, axis] - source.origin[:, axis]) + target.stride[axis] - source.stride[axis]
    steps = torch.arange(target.shape[axis], device=start.device) * (2 * target.stride[axis])
    position = start[:, None] + steps
    lower = torch.div(position, 2 * source.stride[axis], rounding_mode="floor")
    return lower, position - lower * (2 * source.stride[axis])


def _interpolate(
    values: Float[Tensor, "B h w C"], lower: Tensor, twice: Tensor, stride: int, dim: int, mode: str, around: bool
) -> Float[Tensor, "B H W C"]:
    size, image = values.shape[dim], torch.arange(values.shape[0], device=values.device)[:, None]

    def at(cell: Tensor) -> Tensor:
        index = cell % size if around else cell.clamp(0, size - 1)
        return values[image, index] if dim == 1 else values.transpose(1, 2)[image, index].transpose(1, 2)

    if mode == "nearest":
        return at(lower + (twice >= stride))
    share = (twice.to(values.dtype) / (2 * stride)).unsqueeze(-1).unsqueeze(3 - dim)
    # two products and a sum, not lerp: its vector and scalar loops round differently
    return at(lower) * (1 - share) + at(lower + 1) * share
