"""What sources of packed pictures share: which files belong to a split, reading from them, decoding."""

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

SPLITS = {"train": ("train",), "test": ("test", "val", "validation")}
_SPLIT_WORDS = frozenset(word for words in SPLITS.values() for word in words)
_OPEN_FILES = 128  # of one process: systems often allow 1024


class Shard(NamedTuple):
    """A file as it was when it was looked into."""

    path: Path
    size: int
    changed: int

    @classmethod
    def now(cls, path: Path) -> "Shard":
        """The file as it is now."""
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Refuse a file that is another by now: what was found out about its inside is no longer true."""
        if Shard.now(self.path) != self:
            raise ValueError(f"{self.path} has changed since it was opened: open the data again")

    def read(self, offset: int, size: int) -> bytes:
        """Some bytes, without a position in the file that threads and forked processes would share."""
        data = _opened(self).read(offset, size)
        if len(data) != size:
            raise ValueError(f"{self.path} ends within a picture: copy it again")
        return data


def check_split(split: str) -> None:
    """Refuse a split that no source knows."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: needs 'test' or 'train'")


def natural_order(name: str) -> list[tuple[str, int]]:
    """A key to sort by that puts batch_2 before batch_10."""
    return [*((text, int(number or -1)) for text, number in re.findall(r"(\D*)(\d*)", name)), (name, 0)]


def find_shards(folder: Path, ending: str) -> list[Path]:
    """Files in a folder, and in folders inside it that are called as a split is."""
    inside = [folder, *(folder / word for word in _SPLIT_WORDS)]
    files = [file for each in inside if each.is_dir() for file in each.iterdir()]
    # a dot in front: the draft of a copy, or a note of a file system's
    named = [file for file in files if file.name.lower().endswith(ending) and not file.name.startswith(".")]
    kept = [file for file in named if file.is_file()]
    return sorted(kept, key=lambda file: natural_order(file.relative_to(folder).as_posix()))


def shards_of(folder: Path, ending: str, split: str) -> dict[str, list[Path]]:
    """The files of a split, by the word that says so: ``test`` first, then ``val`` and ``validation``.

    The word stands by itself in the name of a file or its folder: "latest" is no "test". Files of one kind that say
    nothing are for training.
    """
    check_split(split)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder: needs a folder of {ending} files")
    found: dict[str | None, list[Path]] = {}
    for file in find_shards(folder, ending):
        found.setdefault(_split_word(file.relative_to(folder)), []).append(file)
    wanted = f"needs one of train, test, val or validation in names, as in {split}-00000{ending}"
    if not found:
        raise FileNotFoundError(f"{folder} has no {ending} files: {wanted}")
    if silent := found.get(None):
        kinds = {re.sub(r"\d+", "", file.name) for file in silent}
        if split == "train" and len(found) == len(kinds) == 1:
            return {"train": silent}
        raise ValueError(f"{silent[0]} does not say which split it belongs to: {wanted}")
    of_split = {word: found[word] for word in SPLITS[split] if word in found}
    if not of_split:
        raise ValueError(f"{folder} has no {ending} files of the split {split!r}: {wanted}")
    return of_split


def _split_word(name: Path) -> str | None:
    words = _SPLIT_WORDS.intersection(re.findall("[a-z]+", name.as_posix().lower()))
    return next(iter(words)) if len(words) == 1 else None


def class_names(text: str) -> list[str]:
    """One name per line; the words of a single line that does not end are a name each."""
    return [line.strip() for line in text.rstrip().split("\n")] if "\n" in text else text.split()


def numbered_classes(labels: np.ndarray) -> list[str] | None:
    """Names for classes that have none; without labels there are no classes."""
    return [str(label) for label in range(labels.max() + 1)] or None


# files that stay open


class _Descriptor:
    """An open file that closes when the last thread has read from it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.number, size, offset)

    def __del__(self) -> None:
        os.close(self.number)


# of the process, not of a source: nothing to pickle, and what a fork inherits can be read from as well
@lru_cache(maxsize=_OPEN_FILES)
def _opened(shard: Shard) -> _Descriptor:
    shard.check()
    return _Descriptor(os.open(shard.path, os.O_RDONLY))
