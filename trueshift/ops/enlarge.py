"""Bilinear interpolation to another number of rows and columns, on a circle or within a border.

As two products with small matrices. On a GPU they take a fraction of the time of ``F.interpolate`` and of its backward
pass, which adds up atomically; a circle costs nothing more, and neither does a margin that continues around it.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .shift import IMAGE_DIMS, TOKEN_DIMS, Pair, circular_pad


def enlarge(
    x: Float[Tensor, "B *rest"], size: Pair, circular: bool = True, margin: int = 0, dims: Pair = TOKEN_DIMS
) -> Float[Tensor, "B *enlarged"]:
    """Values at the centres of ``size`` equal cells that cover what the cells of ``x`` cover.

    Without ``circular`` this is ``F.interpolate(align_corners=False)``; with it, the first cell follows on the last.

    Shift law: none of its own. A shift by whole cells of ``x`` moves the result, to rounding.

    Args:
        x: tokens ``[B, h, w, C]``, or maps ``[B, C, h, w]`` with ``dims=IMAGE_DIMS``.
        margin: cells more on every side, continued around the circle.
        dims: which two dimensions are rows and columns.
    """
    if margin and not circular:
        raise ValueError("a margin continues around a circle: needs circular")
    if not x.is_cuda and _whole(x, size, dims):
        return _interpolated(x, size, circular, margin, dims)
    for dim, length in zip(dims, size, strict=True):
        x = _along(x, _weights(x, x.shape[dim], length, circular, margin), dim)
    return x


def _along(x: Tensor, weights: Float[Tensor, "m n"], dim: int) -> Tensor:
    """Every line along one dimension, weighted: ``y[..., i, ...] = sum_j weights[i, j] x[..., j, ...]``."""
    if dim == x.dim() - 1:
        return x @ weights.mT
    shape = (*x.shape[:dim], weights.shape[0], *x.shape[dim + 1 :])
    lines = x.reshape(-1, x.shape[dim], x.shape[dim + 1 :].numel())
    return torch.bmm(weights.expand(len(lines), -1, -1), lines).view(shape)


def _weights(like: Tensor, count: int, length: int, circular: bool, margin: int) -> Float[Tensor, "m count"]:
    """How much each of ``count`` cells counts at each of ``length`` centres, and at those of the margin."""
    if count == 1:
        return like.new_ones(length + 2 * margin, 1)
    places = torch.arange(-margin, length + margin, device=like.device, dtype=torch.float64)
    centres = (places + 0.5) * (count / length) - 0.5
    cells = torch.arange(count, device=like.device)
    if circular:
        away = torch.remainder(centres[:, None] - cells, count)
        away = torch.minimum(away, count - away)
    else:
        away = (centres.clamp(0, count - 1)[:, None] - cells).abs()
    return (1 - away).clamp_min(0).to(like.dtype)


def _whole(x: Tensor, size: Pair, dims: Pair) -> bool:
    """Whether cells are cut into a whole number of parts: then the library's kernel can do it, which a CPU prefers."""
    return all(length % x.shape[dim] == 0 for length, dim in zip(size, dims, strict=True))


def _interpolated(x: Tensor, size: Pair, circular: bool, margin: int, dims: Pair) -> Tensor:
    """The same by ``F.interpolate``; on a circle with a cell more all around, cut off again but for the margin."""
    tokens = x if dims == TOKEN_DIMS else x.permute(0, 2, 3, 1)
    if not circular:
        maps = F.interpolate(tokens.permute(0, 3, 1, 2), size, mode="bilinear", align_corners=False)
    else:
        rows, columns = (length // x.shape[dim] for length, dim in zip(size, dims, strict=True))
        more = margin + 1
        around = circular_pad(tokens, (more, more), (more, more)).permute(0, 3, 1, 2)
        larger = (around.shape[2] * rows, around.shape[3] * columns)
        maps = F.interpolate(around, larger, mode="bilinear", align_corners=False)
        top, left = more * rows - margin, more * columns - margin
        maps = maps[:, :, top : top + size[0] + 2 * margin, left : left + size[1] + 2 * margin]
    return maps if dims == IMAGE_DIMS else maps.permute(0, 2, 3, 1)
