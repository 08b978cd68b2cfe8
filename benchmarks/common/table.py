"""Tables as data: what a folder's ``tables.toml`` describes, written as Markdown.

A table has the ``command`` that measures it; ``rows``, an expression for a list of records; ``columns``, each a heading
and a cell; and a ``note`` below. Cells and notes are written as f-strings are, of the values of the row, for a note of
the first row and ``rows``. All can use the modules that ``prose.py`` imports, and the table's other keys. Further keys:

- ``like``: a table above it whose keys it takes over; one whose name begins with an underscore is not shown itself;
- ``by``: rows that differ in this value are in tables of their own;
- ``optional``: headings of columns that are left out where nothing was measured.
"""

import re
import tomllib
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import StatisticsError

from benchmarks.common.record import NOT_YET, Recorded


@dataclass(frozen=True)
class Table:
    """A table of the documents: its keys, and further names for its expressions."""

    keys: Recorded
    names: Recorded

    @property
    def command(self) -> str:
        return self.keys["command"]

    def render(self) -> str:
        by, names = self.keys.get("by"), self.names | self.keys
        rows = eval(self.keys.get("rows", "[]"), dict(names))
        groups = [list(group) for _, group in groupby(rows or [{}], lambda row: row.get(by))]
        return "\n\n".join(self._markdown(group, names) for group in groups)

    def _markdown(self, rows: list[Recorded], names: Recorded) -> str:
        columns = []
        for heading, form in self.keys.get("columns", ()):
            cells = [filled(form, row, names) for row in rows]
            if any(cells) or heading not in self.keys.get("optional", ()):
                columns.append([heading, *map(_shown, cells, rows)])
        lines = [f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True)]
        lines[1:1] = ["|---" * len(columns) + "|"] if columns else []
        note = filled(self.keys.get("note", ""), rows[0] | {"rows": rows}, names)
        return "\n".join([*lines, *([""] if lines and note else []), *([note] if note else [])])


def filled(form: str, row: Recorded, names: Recorded) -> str | None:
    """A form with its values, or why it has none: None if something was not measured."""
    try:
        text = eval(f'f"""{form}"""', names | row)
    except (NameError, LookupError, StatisticsError):
        return f"failed: {row['error'][:60]}" if "error" in row else None
    return " ".join(re.sub(r"(?<=\d)%", " %", text).split())


def _shown(cell: str | None, row: Recorded) -> str:
    return row.get("missing", NOT_YET) if cell is None else cell


def read_tables(file: Path, names: Recorded) -> dict[str, Table]:
    """The tables of a file by name."""
    found: dict[str, Recorded] = {}
    for name, keys in tomllib.loads(file.read_text()).items():
        found[name] = found[keys["like"]] | keys if "like" in keys else keys
    return {name: Table(keys, names) for name, keys in found.items() if not name.startswith("_")}
