"""Data by what a user calls it."""

from pathlib import Path

from .cifar import CifarFiles
from .folder import ImageFolder
from .sample import EmbeddedSample
from .source import ImageSource


def open_data(where: str | Path = "sample", split: str = "test") -> ImageSource:
    """Pictures by a word or a path.

    Args:
        where: ``"sample"`` for the images that come with the package; a folder of CIFAR-10 or CIFAR-100 files, python
            or binary version; or a folder of images, with one folder per class if there are classes.
        split: ``"test"`` or ``"train"``, for CIFAR files.
    """
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
