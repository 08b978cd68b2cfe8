"""What images are read from: numbered pictures with names, labels where they are known, and names of classes."""

from dataclasses import dataclass
from pathlib import Path
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


def open_data(where: str | Path = "sample", split: str = "test") -> ImageSource:
    """Pictures by a word or a path.

    Args:
        where: ``"sample"`` for the images that come with the package; a folder of CIFAR-10 or CIFAR-100 files, python
            or binary version; or a folder of images, with one folder per class if there are classes.
        split: ``"test"`` or ``"train"``, for CIFAR files.
    """
    from .cifar import CifarFiles
    from .folder import ImageFolder
    from .sample import EmbeddedSample

    if where == "sample":
        return EmbeddedSample()
    path = Path(where)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no data at {path}: needs 'sample', a folder of CIFAR files, or a folder of images"
        )
    if CifarFiles.are_in(path):
        return CifarFiles(path, split)
    return ImageFolder(path)
