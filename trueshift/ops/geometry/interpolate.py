"""Bilinear interpolation to another number of rows and columns, on a circle or within a border.

As two products with small matrices. They take a fraction of the time of the backward pass of ``F.interpolate``, which
adds up atomically on a GPU; a circle costs nothing more, and neither does a margin that continues around it.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..selection.exact import kept
from .shift import IMAGE_DIMS, TOKEN_DIMS, Pair


def enlarge(
    x: Float[Tensor, "B *rest"],
    size: Pair,
    circular: bool | tuple[bool, bool] = True,
    margin: int = 0,
    dims: Pair = TOKEN_DIMS,
) -> Float[Tensor, "B *enlarged"]:
    """Values at the centres of ``size`` equal cells that cover what the cells of ``x`` cover.

    Without ``circular`` this is ``F.interpolate(align_corners=False)``; with it, the first cell follows on the last.

    Shift law: none of its own. A shift by whole cells of ``x`` moves the result, to rounding.

    Args:
        x: tokens ``[B, h, w, C]``, or maps ``[B, C, h, w]`` with ``dims=IMAGE_DIMS``.
        circular: of rows and of columns, or one for both.
        margin: cells more on every side, continued around the circle.
        dims: which two dimensions are rows and columns.
    """
    around = (circular, circular) if isinstance(circular, bool) else circular
    if margin and not all(around):
        raise ValueError("a margin continues around a circle: needs circular")
    for dim, length, goes_around in zip(dims, size, around, strict=True):
        x = _along(x, _weights(x, x.dtype, x.shape[dim], length, goes_around, margin), dim)
    return x


def enlarge_from(
    maps: Float[Tensor, "B C h w"], size: Pair, start: Int[Tensor, "B 2"], circular: tuple[bool, bool] = (True, True)
) -> Float[Tensor, "B C H W"]:
    """:func:`enlarge` on a circle, rolled: each map begins with the cell at its own ``start``.

    Shift law: the values are those of ``start`` 0, moved. In half precision bit for bit: a sum of two products, which
    are exact in the float32 that they are added up in, does not depend on where or in which order it is made. In
    float32 to rounding: enlarge first, then move.
    """
    rows, columns = (
        _rolled(_weights(maps, maps.dtype, maps.shape[dim], size[dim - 2], circular[dim - 2]), start[:, dim - 2])
        for dim in IMAGE_DIMS
    )
    wide = torch.bmm(maps.flatten(1, 2), columns.mT).unflatten(1, maps.shape[1:3])
    # image by image, so that its weights serve all channels without a copy for each
    each = [(rows[at].expand(maps.shape[1], -1, -1), wide[at]) for at in range(len(maps))]
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return torch.stack([torch.bmm(*pair) for pair in each])
    enlarged = maps.new_empty(*maps.shape[:2], *size)
    for pair, there in zip(each, enlarged, strict=True):
        torch.bmm(*pair, out=there)
    return enlarged


def _rolled(weights: Float[Tensor, "m n"], start: Int[Tensor, " B"]) -> Float[Tensor, "B m n"]:
    places = (torch.arange(len(weights), device=weights.device) + start[:, None]) % len(weights)
    return weights[places]


def _along(x: Tensor, weights: Float[Tensor, "m n"], dim: int) -> Tensor:
    """Every line along one dimension, weighted: ``y[..., i, ...] = sum_j weights[i, j] x[..., j, ...]``."""
    if dim == x.dim() - 1:
        return x @ weights.mT
    shape = (*x.shape[:dim], weights.shape[0], *x.shape[dim + 1 :])
    lines = x.reshape(-1, x.shape[dim], x.shape[dim + 1 :].numel())
    # not len(lines): to torch.export that is a constant, and a batch need not be
    return torch.bmm(weights.expand(lines.shape[0], -1, -1), lines).view(shape)


@kept(256)
def _weights(
    device: torch.device, dtype: torch.dtype, count: int, length: int, circular: bool, margin: int = 0
) -> Float[Tensor, "m count"]:
    """How much each of ``count`` cells counts at each of ``length`` centres, and at those of the margin."""
    if count == 1:
        return torch.ones(length + 2 * margin, 1, dtype=dtype, device=device)
    places = torch.arange(-margin, length + margin, device=device, dtype=torch.float64)
    centres = (places + 0.5) * (count / length) - 0.5
    cells = torch.arange(count, device=device)
    if circular:
        away = torch.remainder(centres[:, None] - cells, count)
        away = torch.minimum(away, count - away)
    else:
        away = (centres.clamp(0, count - 1)[:, None] - cells).abs()
    return (1 - away).clamp_min(0).to(dtype)
