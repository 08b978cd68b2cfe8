"""Parts of a source."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .source import Source


class Subset:
    """The samples of a source at some indices, in that order."""

    def __init__(self, source: Source, indices: Sequence[int] | np.ndarray) -> None:
        self.source, self.indices = source, np.asarray(indices, np.int64)
        if not len(self.indices):
            raise ValueError(f"no images of {source.title} are left: needs at least one")
        self.title, self.classes = f"part of {source.title}", source.classes
        if hasattr(source, "pixels"):  # held in memory: so are these
            self.pixels = source.pixels[self.indices]
            self.labels = np.asarray(source.labels)[self.indices]  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        """As the source calls it."""
        return self.source.name(int(self.indices[index]))

    def __getitem__(self, index: int) -> Any:
        return self.source[int(self.indices[index])]


def spread(count: int, limit: int) -> list[int]:
    """At most ``limit`` indices, evenly spread: the first images of a folder may all be of one class; 0 for all."""
    limit = min(limit or count, count)
    return [index * count // limit for index in range(limit)]


def evenly_spread(source: Source, limit: int) -> Source:
    """At most ``limit`` samples, spread over the whole source; 0 for all."""
    return Subset(source, spread(len(source), limit)) if 0 < limit < len(source) else source


def hold_out(source: Source, part: float) -> tuple[Source, Source]:
    """Two sources without a sample in common: the rest, and the part that is held out, evenly spread."""
    number = max(1, round(len(source) * part))
    if number >= len(source):
        raise ValueError(f"{source.title} has {len(source)} images: holding out {part:g} of them leaves none")
    # at the middle of each stretch: a folder sorted by class loses the same part of each
    out = (np.arange(number) * 2 + 1) * len(source) // (2 * number)
    return Subset(source, np.setdiff1d(np.arange(len(source)), out)), Subset(source, out)
