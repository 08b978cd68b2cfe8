"""What images are read from: numbered samples with names, targets where they are known, and names of classes."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from PIL import Image

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


class WithoutTargets:
    """A source with its targets left out: the class of an image says nothing about its pixels."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.title = source.title
        self.classes: list[str] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        """As the source calls it."""
        return self.source.name(index)

    def __getitem__(self, index: int) -> Sample:
        sample = self.source[index]
        return Sample(sample.image, sample.name, None)
