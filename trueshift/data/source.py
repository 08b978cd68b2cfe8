"""What images are read from: numbered pictures with names, labels where they are known, and names of classes."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from PIL import Image


@dataclass(frozen=True)
class Picture:
    """A decoded image with its name and, where known, its class."""

    image: Image.Image
    name: str
    label: int | None


@runtime_checkable
class ImageSource(Protocol):
    """A numbered collection of pictures. Reading one may fail; its name is known without reading."""

    title: str
    classes: list[str] | None

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Picture: ...

    def name(self, index: int) -> str:
        """What a picture is called."""
        ...
