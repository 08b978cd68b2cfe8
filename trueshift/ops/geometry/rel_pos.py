r"""Distances on the circle between the tokens of two grids, for relative position embeddings.

.. math:: E^{(\text{adapt})}[i, j] = B^{(\text{adapt})}\big[(p^{(Q)}_i - p^{(K)}_j) \bmod M\big]

The positions are absolute, so the phases of both grids are in the distance: keys that were pooled at another phase than
the queries lie elsewhere.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from ..kernels import kernel_for, usable
from .grid import TokenGrid

Rows = Callable[[TokenGrid, TokenGrid, int], Tensor]


def positions(grid: TokenGrid, axis: int) -> Int64[Tensor, "B n"]:
    """The pixel at which each row (axis 0) or column (axis 1) of tokens starts."""
    steps = torch.arange(grid.shape[axis], device=grid.origin.device) * grid.stride[axis]
    return (grid.origin[:, axis, None] + steps) % grid.image_size[axis]


def circular_distance(query: TokenGrid, key: TokenGrid, axis: int, unit: int = 1) -> Int64[Tensor, "B q k"]:
    """How far, going around, each query is after each key: ``0 .. size / unit - 1``.

    Shift law: unchanged if both grids move with the image.

    Args:
        unit: pixels per step of the distance. Both strides are multiples of it, and so is the difference of the
            origins when both grids were picked from one grid of that stride.
    """
    if query.image_size != key.image_size:
        raise ValueError(f"queries on an image of {query.image_size}, keys on one of {key.image_size}")
    size = key.image_size[axis]
    lengths = {"query stride": query.stride[axis], "key stride": key.stride[axis], "image size": size}
    for name, length in lengths.items():
        if length % unit:
            raise ValueError(f"{name} {length}: needs a multiple of the unit {unit}")
    distance = (positions(query, axis)[:, :, None] - positions(key, axis)[:, None, :]) % size
    return torch.div(distance, unit, rounding_mode="floor")


def shortest_signed(distance: Int64[Tensor, "*any"], size: int) -> Int64[Tensor, "*any"]:
    """The same distance by the shorter way around: ``-(size - 1) // 2 .. size // 2``."""
    behind = (size - 1) // 2
    return (distance + behind) % size - behind


def finer(query: TokenGrid, key: TokenGrid, axis: int) -> int:
    """The smaller of two strides: the unit of distances between the two grids."""
    return min(query.stride[axis], key.stride[axis])


def circular_rows(query: TokenGrid, key: TokenGrid, axis: int) -> Int64[Tensor, "B q k"]:
    """Rows of a table with one row per step around the image: the paper's adaptive RPE.

    Shift law: unchanged if both grids move with the image.
    """
    return circular_distance(query, key, axis, finer(query, key, axis))


def shortest_rows(query: TokenGrid, key: TokenGrid, axis: int) -> Int64[Tensor, "B q k"]:
    """Rows of an ordinary network's table of signed distances, at the distance by the shorter way around.

    Shift law: unchanged if both grids move with the image.
    """
    steps = key.image_size[axis] // finer(query, key, axis)
    return _shortest_row(circular_rows(query, key, axis), steps, _zero_row(query, key, axis))


def _shortest_row(distance: Int64[Tensor, "*any"], steps: int, zero: int) -> Int64[Tensor, "*any"]:
    row = shortest_signed(distance, steps) + zero
    return torch.where(row < 0, row + steps, row)  # one single key: its table holds no negative distances


def linear_rows(query: TokenGrid, key: TokenGrid, axis: int) -> Int64[Tensor, "B q k"]:
    """Rows of an ordinary network's table, distances not going around: no shift law."""
    unit, size = finer(query, key, axis), key.image_size[axis]
    apart = shortest_signed((query.origin[:, axis] - key.origin[:, axis]) % size, size)
    steps = [torch.arange(grid.shape[axis], device=apart.device) * grid.stride[axis] for grid in (query, key)]
    pixels = apart[:, None, None] + steps[0][:, None] - steps[1][None, :]
    row = torch.div(pixels, unit, rounding_mode="floor") + _zero_row(query, key, axis)
    return row.clamp(0, 2 * (size // unit) - 2)


def _zero_row(query: TokenGrid, key: TokenGrid, axis: int) -> int:
    """Where MViTv2's tables hold distance 0."""
    return (key.shape[axis] - 1) * (key.stride[axis] // finer(query, key, axis))


def resize_linear_table(table: Float[Tensor, "rows C"], rows: int) -> Float[Tensor, "resized C"]:
    """Interpolate a table of signed distances to another number of steps."""
    if table.shape[0] == rows:
        return table
    return F.interpolate(table.T[None], size=rows, mode="linear")[0].T


def resize_circular_table(table: Float[Tensor, "rows C"], rows: int) -> Float[Tensor, "resized C"]:
    """Interpolate a table of distances on the circle to another number of steps; distance 0 stays where it is."""
    if table.shape[0] == rows:
        return table
    place = torch.arange(rows, device=table.device) * (table.shape[0] / rows)
    lower = place.floor().to(torch.int64)
    share = (place - lower).to(table.dtype)[:, None]
    return table[lower] * (1 - share) + table[(lower + 1) % table.shape[0]] * share


def circular_from_linear(table: Float[Tensor, "rows C"], key_step: int) -> Float[Tensor, "steps C"]:
    """The table of the circle that says at every distance what :func:`shortest_rows` reads of a linear one.

    Keys are ``key_step`` steps of the table apart.
    """
    steps = (table.shape[0] + 1) // 2
    distance = torch.arange(steps, device=table.device)
    return table[_shortest_row(distance, steps, steps - key_step)]


def linear_from_circular(table: Float[Tensor, "steps C"], key_step: int) -> Float[Tensor, "rows C"]:
    """The linear table that says at every distance, whichever way around, what one of the circle says."""
    steps = table.shape[0]
    distance = torch.arange(2 * steps - 1, device=table.device) - (steps - key_step)
    return table[distance % steps]


def position_bias(
    queries: Float[Tensor, "B N heads d"],
    tables: tuple[Float[Tensor, "rows d"], Float[Tensor, "columns d"]],
    grid: TokenGrid,
    key_grid: TokenGrid,
    rows: Rows,
    together: bool = False,
) -> Float[Tensor, "B heads N K"]:
    """How much each query asks for tokens at each key's distance, in rows and in columns.

    Shift law: unchanged if both grids move with the image, for rows that go around.

    Args:
        tables: what is asked, for each distance in rows and in columns.
        rows: :func:`circular_rows`, :func:`shortest_rows` or :func:`linear_rows`.
        together: in every image, both grids have the same relative position as in the first.
    """
    # of every distance: one large product, instead of a small one for each row and column of queries
    return gather_bias(F.linear(queries, torch.cat(tables)), tables[0].shape[0], grid, key_grid, rows, together)


MODES: tuple[Rows, ...] = (circular_rows, shortest_rows, linear_rows)


def _known_rows(asked: Tensor, split: int, grid: TokenGrid, key_grid: TokenGrid, rows: Rows, *_: bool) -> bool:
    """The gradient of a kernel is for distances that go around."""
    learning = torch.is_grad_enabled() and asked.requires_grad
    return rows in MODES[: 2 if learning else 3] and usable(asked)


@kernel_for(_known_rows)
def gather_bias(
    asked: Float[Tensor, "B N heads all"], split: int, grid: TokenGrid, key_grid: TokenGrid, rows: Rows, together: bool
) -> Float[Tensor, "B heads N K"]:
    """:func:`position_bias` from what each query asks of every distance: ``split`` of rows, then those of columns."""
    if together:
        grid, key_grid = (replace(one, origin=one.origin[:1], spot=None) for one in (grid, key_grid))
    by_row, by_column = asked.unflatten(1, grid.shape).split([split, asked.shape[3] - split], 4)
    down = _gathered(by_row, rows(grid, key_grid, 0)[:, :, None, None])
    right = _gathered(by_column, rows(grid, key_grid, 1)[:, None, :, None])
    return (down[..., :, None] + right[..., None, :]).flatten(4).flatten(2, 3)


def _gathered(asked: Tensor, index: Int64[Tensor, "#B #h #w 1 k"]) -> Float[Tensor, "B heads h w k"]:
    found = asked.gather(4, index.expand(*asked.shape[:4], -1))
    return found.permute(0, 3, 1, 2, 4).contiguous()
