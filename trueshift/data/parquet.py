"""Parquet files as Hugging Face lays them out."""

import json
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .images import decoded
from .packed import Shard, find_shards, numbered_classes, shards_of
from .source import Sample

KEPT_CHUNKS = 16  # of one process; a chunk is usually 100 pictures


class ParquetImages:
    """Pictures as encoded bytes in a column ``image``; classes in a column ``label``, -1 where there is none.

    A row can only be read together with its whole row group. ``chunks`` says which indices lie in one, and the last
    ``KEPT_CHUNKS`` that were read stay in memory. So an order for training shuffles the chunks, and then the rows
    within a few chunks, no more than are kept; an order that jumps anywhere reads a whole chunk for each picture.

    Args:
        path: the folder with the files, or the one above their ``data``.
        split: ``"test"`` or ``"train"``, as the files' names say; ``val`` and ``validation`` pass for ``test`` where
            that is not there or has no labels.
    """

    def __init__(self, path: str | Path, split: str = "test") -> None:
        path = Path(path)
        word, tables = _labelled_tables(_folder_in(path), split)
        self.title = f"{path.resolve().name} {word}"
        self.split = split
        self.labels = np.concatenate([table.labels for table in tables])  # -1 where there is none
        if not len(self.labels):
            raise ValueError(f"{path} has no rows in its {word} files: needs at least one picture")
        self.classes: list[str] | None = tables[0].classes or numbered_classes(self.labels)
        if self.labels.max() >= len(self.classes or []):
            raise ValueError(f"{path} has labels up to {self.labels.max()}: needs 0 to {len(self.classes or []) - 1}")
        self._groups = [(table.shard, group) for table in tables for group in range(len(table.rows))]
        ends = [0, *accumulate(rows for table in tables for rows in table.rows)]
        self.chunks = [range(*each) for each in pairwise(ends) if range(*each)]
        self._starts = ends[:-1]

    @staticmethod
    def are_in(path: Path) -> bool:
        """Whether a folder holds parquet files."""
        return bool(find_shards(_folder_in(path), ".parquet"))

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """The file, and the row in it."""
        chunk, row = self._place(index)
        shard, group = self._groups[chunk]
        return f"{shard.path.name} {row + self._starts[chunk] - self._starts[chunk - group]}"

    def __getitem__(self, index: int) -> Sample:
        chunk, row = self._place(index)
        name, label = self.name(index), int(self.labels[index])
        image = _row_group(*self._groups[chunk])[row].as_py()
        data = image.get("bytes") if isinstance(image, dict) else image
        if data is None:
            raise ValueError(f"{name} has no bytes of an image: needs files with their images embedded")
        return Sample(decoded(data, name), name, label if label >= 0 else None)

    def _place(self, index: int) -> tuple[int, int]:
        index = range(len(self))[index]
        chunk = bisect_right(self._starts, index) - 1
        return chunk, index - self._starts[chunk]


@dataclass(frozen=True)
class _Table:
    """What a file says without its pictures being read."""

    shard: Shard
    rows: list[int]  # in each row group
    labels: np.ndarray
    classes: list[str] | None


def _folder_in(path: Path) -> Path:
    return path if find_shards(path, ".parquet") or not (path / "data").is_dir() else path / "data"


def _labelled_tables(folder: Path, split: str) -> tuple[str, list[_Table]]:
    """The first of a split's names with labels: those of ImageNet's ``test`` are secret."""
    found = []
    for word, files in shards_of(folder, ".parquet", split).items():
        found.append((word, [_table(Shard.now(file)) for file in files]))
        if any((table.labels >= 0).any() for table in found[-1][1]):
            return found[-1]
    return found[0]


def _table(shard: Shard) -> _Table:
    with _opened(shard) as file:
        schema, metadata = file.schema_arrow, file.metadata
        if "image" not in schema.names:
            raise ValueError(f"{shard.path} has the columns {', '.join(schema.names)}: needs 'image', and 'label'")
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        labels = np.full(metadata.num_rows, -1, np.int64)
        if "label" in schema.names:
            kind = schema.field("label").type
            if not str(kind).startswith(("int", "uint")):
                raise ValueError(f"{shard.path} has labels of the type {kind}: needs integers")
            column = file.read(columns=["label"], use_threads=False).column("label")
            labels = column.cast("int64").fill_null(-1).to_numpy()
    if labels.min(initial=0) < -1:
        raise ValueError(f"{shard.path} has labels from {labels.min()}: needs 0 or more, or -1 for none")
    return _Table(shard, rows, labels, _class_names(schema.metadata or {}))


def _class_names(metadata: dict[bytes, bytes]) -> list[str] | None:
    with suppress(KeyError, TypeError, ValueError):  # files that were not written by Hugging Face say nothing
        return [str(name) for name in json.loads(metadata[b"huggingface"])["info"]["features"]["label"]["names"]]
    return None


# of the process, not of a source: nothing to pickle, and no file is left open for a fork to share
@lru_cache(maxsize=KEPT_CHUNKS)
def _row_group(shard: Shard, group: int) -> Any:
    shard.check()
    with _opened(shard) as file:
        return file.read_row_group(group, columns=["image"], use_threads=False).column("image")


@contextmanager
def _opened(shard: Shard) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ImportError("parquet files need pyarrow: pip install 'trueshift[parquet]'") from error
    try:
        with ParquetFile(shard.path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{shard.path} is not a whole parquet file ({error}): copy it again") from error
