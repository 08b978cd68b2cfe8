"""Parquet files, tar shards and data sets of the Hugging Face Hub, read by the ``datasets`` library."""

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..utils.checks import import_optional
from .images import decoded
from .source import Sample, split_names

HUB = "hf-hub:"
_ENDINGS = (".parquet", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_IMAGES = ("image", "img")
_LABELS = ("label", "fine_label", "cls", "json.label", "json.cls")  # the last three of WebDataset shards


class DatasetImages:
    """Images of a data set on disk or on the Hub, memory-mapped and read by index.

    ``datasets`` copies what it reads to its cache once, and again after a file has changed. The name or
    folder of a file gives its split, as in ``train-00000.tar``; without such names, all are for training.

    Args:
        where: a folder of ``.parquet`` files or WebDataset ``.tar`` shards, or ``hf-hub:OWNER/NAME``. Images are in
            the column ``image``, classes in ``label``; in shards, in ``KEY.jpg`` and ``KEY.cls`` or ``KEY.json``.
            ``classes.txt`` beside the files names the classes, one per line.
        split: ``"train"``, ``"val"`` or ``"test"``; validation stands in for a test that is missing or has no labels.
    """

    def __init__(self, where: str | Path, split: str = "test") -> None:
        names = split_names(split)
        where = str(where)
        listed = _library().load_dataset_builder(where.removeprefix(HUB)).config.data_files or {}
        files = {str(each): list(map(str, paths)) for each, paths in listed.items()}  # of each split
        words = [word for word in names if word in files]
        if not words:
            raise ValueError(
                f"{where} has no split {split!r}, only {', '.join(files)}: needs it in the names of files, "
                f"as in {names[0]}-00000.tar"
            )
        for word in words:
            rows = _load(where, word, files[word])
            self.labels = _labels(rows, where)  # -1 if unknown
            if (self.labels >= 0).any():
                break
        self.split = word
        self.title = f"{Path(where.removeprefix(HUB)).resolve().name} {word}"
        self.classes: list[str] | None = _classes(rows, where, self.labels)
        self._column = _image_column(rows, where)
        rows = rows.cast_column(self._column, _library().Image(decode=False))
        self._rows = rows.select_columns([self._column, *{"__key__", "__url__"}.intersection(rows.column_names)])

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """The shard and the key in it; for parquet files the split and the row."""
        index = range(len(self))[index]
        if "__key__" not in self._rows.column_names:
            return f"{self.split} {index}"
        row = {key: self._rows.data.column(key)[index].as_py() for key in ("__url__", "__key__")}
        return f"{Path(row['__url__']).name}/{row['__key__']}"

    def __getitem__(self, index: int) -> Sample:
        name, row = self.name(index), self._rows[int(index)]
        data = (row[self._column] or {}).get("bytes")
        if data is None:
            raise ValueError(f"{name} has no bytes of an image: needs files with their images embedded")
        label = int(self.labels[index])
        return Sample(decoded(data, name), name, label if label >= 0 else None)


def has_shards(path: Path) -> bool:
    """Whether a folder, or one inside it, has parquet files or tar shards."""
    inside = [path, *(each for each in path.iterdir() if each.is_dir())] if path.is_dir() else []
    files = (file.name.lower() for folder in inside for file in folder.iterdir())
    return any(name.endswith(_ENDINGS) and not name.startswith(".") for name in files)


def _library() -> Any:
    return import_optional("datasets", "parquet files, shards and the Hub need datasets: pip install 'trueshift[data]'")


def _load(where: str, split: str, files: Sequence[str]) -> Any:
    """The rows of one split: only its files are fetched and converted."""
    datasets = _library()
    builder = datasets.load_dataset_builder(where.removeprefix(HUB), data_files={split: list(files)})
    if not Path(builder.cache_dir).exists():
        for file in files:
            if file.endswith(".tar") and Path(file).is_file():
                _check_whole(file)
    try:
        builder.download_and_prepare()
    except datasets.exceptions.DatasetGenerationError as error:
        reason = error.__cause__ or error
        raise ValueError(f"{where} has {split} files that cannot be read ({reason}): copy them again") from error
    rows = builder.as_dataset(split=split)
    if not len(rows):
        raise ValueError(f"{where} has no rows in its {split} files: needs at least one image")
    return rows


def _check_whole(file: str) -> None:
    """Refuse a truncated or damaged tar file: ``datasets`` takes where it breaks off for its end."""
    try:
        with tarfile.open(file, "r:") as archive:
            while archive.next() is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
            assert archive.fileobj is not None
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError(f"its end is missing at byte {archive.offset}")
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{file} is not a whole tar file ({error}): copy it again") from error


def _image_column(rows: Any, where: str) -> str:
    """By its name, else the first that holds images; a dot is in names such as ``KEY.seg.png``."""
    images = [name for name, feature in rows.features.items() if isinstance(feature, _library().Image)]
    found = [name for name in (*_IMAGES, *images) if name in rows.column_names and "." not in name]
    if not found:
        raise ValueError(f"{where} has the columns {', '.join(rows.column_names)}: needs 'image', and 'label'")
    return found[0]


def _labels(rows: Any, where: str) -> np.ndarray:
    """The class of each row, -1 if unknown."""
    table = rows.select_columns([name for name in rows.column_names if name in ("json", *_LABELS)])
    table = table.flatten() if table.column_names else table
    column = next((name for name in _LABELS if name in table.column_names), None)
    if column is None:
        return np.full(len(rows), -1, np.int64)
    values = table.data.column(column)
    if not str(values.type).startswith(("int", "uint", "null")):
        raise ValueError(f"{where} has labels of the type {values.type}: needs integers")
    labels = values.cast("int64").fill_null(-1).to_numpy()
    if labels.min(initial=0) < -1:
        raise ValueError(f"{where} has labels from {labels.min()}: needs 0 or more, or -1 for none")
    return labels


def _classes(rows: Any, where: str, labels: np.ndarray) -> list[str] | None:
    listed = Path(where) / "classes.txt"
    if listed.is_file():
        names = listed.read_text("utf-8-sig").rstrip().splitlines()
    else:
        features = (rows.features.get(name) for name in _LABELS)
        names = next((feature.names for feature in features if hasattr(feature, "names")), [])
    highest = int(labels.max())
    if names and highest >= len(names):
        raise ValueError(f"{where} has labels up to {highest}: needs 0 to {len(names) - 1}, as its classes")
    return [name.strip() for name in names] or [str(label) for label in range(highest + 1)] or None
