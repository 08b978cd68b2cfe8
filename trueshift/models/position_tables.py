"""Position tables of an MViTv2 among weights: of which kind they are, and how another network reads them.

A circular table has a row for each step around the image, a linear one a row for each distance to both sides. Neither
may be stretched into the other. For one image size each can be computed from the other; for another size a table is
interpolated first, as a table of its kind.
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
    rows: Callable[[TokenGrid, TokenGrid, int], Tensor]  # which row, for each query and key
    resize_rows: Callable[[Tensor, int], Tensor]

    def table_rows(self, steps: int) -> int:
        """Rows of a table, for a number of steps around the image."""
        return steps if self.kind == "circular" else 2 * steps - 1

    def resize(self, table: Tensor, steps: int) -> Tensor:
        """The table interpolated to a number of steps around the image."""
        return self.resize_rows(table, self.table_rows(steps))


POSITIONS = {
    "circular": Positions("circular", circular_rows, resize_circular_table),
    "shortest": Positions("linear", shortest_rows, resize_linear_table),
    "linear": Positions("linear", linear_rows, resize_linear_table),
}


class TablePlace(NamedTuple):
    """Where a network has a table, and for what distances."""

    axis: int  # 0 of rows, 1 of columns
    steps: int  # around the image
    key_step: int  # from one key to the next, in steps
    unit: int  # pixels in a step


class FoundTables(NamedTuple):
    """What the tables among weights are."""

    kinds: tuple[str, str]  # "circular" or "linear", of rows and of columns
    size: Pair  # of the images that they were made for


def find_tables(weights: Mapping[str, Any], places: Mapping[str, TablePlace], size: Pair) -> FoundTables | None:
    """What the tables are, by their numbers of rows: blocks with longer steps have shorter tables.

    Args:
        places: where the network has tables, by name.
        size: of the network's images; it decides where every block has the same steps.

    Returns:
        None if they are of no network like this one, or could be both.
    """
    if not places or not places.keys() <= weights.keys():
        return None
    rows = {key: weights[key].shape[0] for key in places}
    possible = []
    for kinds in (("circular", "circular"), ("linear", "linear"), ("linear", "circular")):
        sizes: tuple[set[int], set[int]] = (set(), set())
        for key, place in places.items():
            linear, count = kinds[place.axis] == "linear", rows[key]
            # a linear table has an odd number of rows: of any other, 0 is no size
            sizes[place.axis].add(place.unit * ((count + 1) // 2 * (count % 2) if linear else count))
        if len(sizes[0]) == len(sizes[1]) == 1 and 0 not in sizes[0] | sizes[1]:
            possible.append(FoundTables(kinds, (sizes[0].pop(), sizes[1].pop())))
    alike = [found for found in possible if found.kinds[0] == found.kinds[1]]
    best = [found for found in possible if found.size == size] or alike or possible
    return best[0] if len(best) == 1 else None


def fit_table(table: Tensor, kind: str, place: TablePlace, wanted: str) -> Tensor:
    """A table of one kind as the equivalent table of the wanted kind, for the steps of its place."""
    table = POSITIONS[kind].resize(table, place.steps)
    if kind == wanted:
        return table
    convert = linear_from_circular if kind == "circular" else circular_from_linear
    return convert(table, place.key_step)
