"""What images are read from: numbered samples with names, and with targets and classes where these are known."""

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from PIL import Image

_SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
IGNORED = -100  # torch's own ignore_index: a mask goes into cross_entropy as it is


@dataclass(frozen=True)
class Sample:
    """A decoded image, its name and, where known, its target.

    Args:
        target: the class of the image, an int; for segmentation the class of each pixel, an int32 array as high and
            wide as the image, with classes from 0 on or :data:`IGNORED`; None if unknown.
    """

    image: Image.Image
    name: str
    target: Any


@runtime_checkable
class Source(Protocol):
    """A numbered collection of samples. Reading one may fail; its name is known without reading."""

    title: str
    classes: list[str] | None

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...

    def name(self, index: int) -> str:
        """What a sample is called."""
        ...


def split_names(split: str) -> tuple[str, ...]:
    """What files of a split may be called, the usual name first; validation stands in for a test that is missing."""
    for kind, names in _SPLITS.items():
        if split in names:
            return (*names, *_SPLITS["val"]) if kind == "test" else names
    raise ValueError(f"split {split!r}: needs one of {', '.join(chain(*_SPLITS.values()))}")


class WithoutTargets:
    """A source with its targets left out: the class of an image says nothing about its pixels."""

    def __init__(self, source: Source) -> None:
        self.source, self.title = source, source.title
        self.classes: list[str] | None = None
        self.name = source.name

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Sample:
        return replace(self.source[index], target=None)
