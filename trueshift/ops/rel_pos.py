r"""Distances on the circle between the tokens of two grids, for relative position embeddings.

.. math:: E^{(\text{adapt})}[i, j] = B^{(\text{adapt})}\big[(p^{(Q)}_i - p^{(K)}_j) \bmod M\big]

The positions are absolute, so the phases of both grids are in the distance: keys that were pooled at another phase than
the queries stand elsewhere.
"""

import torch
from jaxtyping import Int64
from torch import Tensor

from .grid import TokenGrid


def positions(grid: TokenGrid, axis: int) -> Int64[Tensor, "B n"]:
    """The pixel at which each row (axis 0) or column (axis 1) of tokens starts."""
    steps = torch.arange(grid.shape[axis], device=grid.origin.device) * grid.stride[axis]
    return (grid.origin[:, axis, None] + steps) % grid.image_size[axis]


def circular_distance(query: TokenGrid, key: TokenGrid, axis: int, unit: int = 1) -> Int64[Tensor, "B q k"]:
    """How far, going around, each query stands after each key: ``0 .. size / unit - 1``.

    Shift law: unchanged if both grids move with the image.

    Args:
        unit: pixels per step of the distance. Both strides are multiples of it, and so is the difference of the
            origins when both grids were picked from one grid of that stride.
    """
    if query.image_size != key.image_size:
        raise ValueError(f"queries on an image of {query.image_size}, keys on one of {key.image_size}")
    size = key.image_size[axis]
    for name, length in (
        ("query stride", query.stride[axis]),
        ("key stride", key.stride[axis]),
        ("image size", size),
    ):
        if length % unit:
            raise ValueError(f"{name} {length}: needs a multiple of the unit {unit}")
    distance = (positions(query, axis)[:, :, None] - positions(key, axis)[:, None, :]) % size
    return torch.div(distance, unit, rounding_mode="floor")


def shortest_signed(distance: Int64[Tensor, "*any"], size: int) -> Int64[Tensor, "*any"]:
    """The same distance by the shorter way around: ``-(size - 1) // 2 .. size // 2``."""
    behind = (size - 1) // 2
    return (distance + behind) % size - behind
