"""What a segmentation network learns from and is measured on: pictures with a class for each pixel."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32
from PIL import Image

from .source import ImageSource

IGNORED = -100  # torch's own ignore_index: a mask goes into cross_entropy as it is


@dataclass(frozen=True)
class Scene:
    """A decoded image with its name and, where known, the class of each of its pixels.

    Args:
        mask: classes from 0 on, or :data:`IGNORED` where nobody says; as high and wide as the image.
    """

    image: Image.Image
    name: str
    mask: Int32[np.ndarray, "H W"] | None


@runtime_checkable
class SceneSource(Protocol):
    """A numbered collection of scenes. Reading one may fail; its name is known without reading."""

    title: str
    classes: list[str] | None

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Scene: ...

    def name(self, index: int) -> str:
        """What a scene is called."""
        ...


class Pictures:
    """Pictures as scenes of which nothing is known but how they look.

    The classes of a picture are not those of its pixels: there are none.
    """

    def __init__(self, source: ImageSource) -> None:
        self.source = source
        self.title = source.title
        self.classes: list[str] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        """As the source calls it."""
        return self.source.name(index)

    def __getitem__(self, index: int) -> Scene:
        picture = self.source[index]
        return Scene(picture.image, picture.name, None)
