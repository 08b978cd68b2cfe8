"""Position tables of an MViTv2 among weights: what they are, and how another network reads the same from its own.

A table of the circle has a row for each step around the image, a linear one a row for each distance to both sides.
Neither may be stretched into the other. For one size of images each can be read off the other, so that both say the
same; for another size a table is interpolated first, as a table of its kind.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ..ops.geometry.grid import TokenGrid
from ..ops.geometry.rel_pos import (
    circular_from_linear,
    circular_rows,
    linear_from_circular,
    linear_rows,
    resize_circular_table,
    resize_linear_table,
    shortest_rows,
)
from ..ops.geometry.shift import Pair


class Positions(NamedTuple):
    """One way to read relative positions from a table."""

    kind: str  # of the table: "circular" or "linear"
    table_rows: Callable[[int], int]  # how many rows, for a number of steps around the image
    rows: Callable[[TokenGrid, TokenGrid, int], Tensor]  # which row, for each query and key
    resize: Callable[[Tensor, int], Tensor]


def _around(steps: int) -> int:
    return steps


def _both_ways(steps: int) -> int:
    return 2 * steps - 1


# functions with names: models are pickled with them
POSITIONS = {
    "circular": Positions("circular", _around, circular_rows, resize_circular_table),
    "shortest": Positions("linear", _both_ways, shortest_rows, resize_linear_table),
    "linear": Positions("linear", _both_ways, linear_rows, resize_linear_table),
}


class TablePlace(NamedTuple):
    """Where a network has a table, and for what distances."""

    axis: int  # 0 of rows, 1 of columns
    steps: int  # around the image
    key_step: int  # from one key to the next, in steps
    unit: int  # pixels in a step


class FoundTables(NamedTuple):
    """What the tables among weights are."""

    kind: str  # "circular" or "linear"
    size: Pair  # of the images that they were made for


def find_tables(weights: Mapping[str, Any], places: Mapping[str, TablePlace], size: Pair) -> FoundTables | None:
    """What the tables are, by their numbers of rows: blocks with longer steps have shorter tables.

    Args:
        places: where the network has tables, by name.
        size: of the network's images; it decides where every block has the same steps.

    Returns:
        None if they are of no network like this one, or if they could be both.
    """
    if not places or not places.keys() <= weights.keys():
        return None
    rows = {key: weights[key].shape[0] for key in places}
    possible = []
    for kind in ("circular", "linear"):
        if kind == "linear" and any(count % 2 == 0 for count in rows.values()):
            continue
        sizes: tuple[set[int], set[int]] = (set(), set())
        for key, place in places.items():
            steps = rows[key] if kind == "circular" else (rows[key] + 1) // 2
            sizes[place.axis].add(steps * place.unit)
        if len(sizes[0]) == len(sizes[1]) == 1:
            possible.append(FoundTables(kind, (sizes[0].pop(), sizes[1].pop())))
    best = [found for found in possible if found.size == size] or possible
    return best[0] if len(best) == 1 else None


def fit_table(table: Tensor, kind: str, place: TablePlace, wanted: str) -> Tensor:
    """A table for the steps of its place, equivalent to a table of the kind that is wanted.

    Args:
        kind: which it is, ``"circular"`` or ``"linear"``.
        wanted: which it is to be.
    """
    positions = POSITIONS[kind]
    table = positions.resize(table, positions.table_rows(place.steps))
    if kind == wanted:
        return table
    convert = linear_from_circular if kind == "circular" else circular_from_linear
    return convert(table, place.key_step)
