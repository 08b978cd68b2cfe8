"""Data by what a user calls it."""

from pathlib import Path

from .archive import CompactArchive
from .cifar import CifarFiles
from .folder import ImageFolder
from .images import image_files
from .packed import SPLITS, check_split
from .parquet import ParquetImages
from .sample import EmbeddedSample
from .shards import TarShards
from .source import Source


def open_data(where: str | Path = "sample", split: str = "test") -> Source:
    """Pictures by a word or a path.

    Args:
        where: ``"sample"`` for the images that come with the package; a folder of CIFAR-10 or CIFAR-100 files, python
            or binary version; a folder of images, with one folder per class if there are classes, or with such in
            ``train`` and in ``test``, ``val`` or ``validation``; a folder of ``.tar`` shards, or of ``.parquet`` files,
            also in a ``data`` inside; a ``.zip`` of mosaics or a folder of such; or an ``.npz``. A folder that holds
            images is one of images, whatever else lies there.
        split: ``"test"`` or ``"train"``; without meaning for the sample, and for images in one folder.
    """
    check_split(split)
    if where == "sample":
        return EmbeddedSample()
    path = Path(where)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no data at {path}: needs 'sample', a folder of CIFAR files, of images, of .tar shards, "
            "of .parquet files or of .zip archives, or a .zip or .npz file"
        )
    if CifarFiles.are_in(path):
        return CifarFiles(path, split)
    if not _holds_images(path):
        if TarShards.are_in(path):
            return TarShards(path, split)
        if ParquetImages.are_in(path):
            return ParquetImages(path, split)
        if CompactArchive.are_in(path):
            return CompactArchive(path, split)
    held_out = [path / word for word in SPLITS["test"] if (path / word).is_dir()]
    if held_out and (path / "train").is_dir():
        return _split_folder(path, path / "train", held_out[0], split)
    return ImageFolder(path)


def _holds_images(path: Path) -> bool:
    return any(True for _ in image_files(path))


def _split_folder(path: Path, train: Path, test: Path, split: str) -> ImageFolder:
    source = ImageFolder(train if split == "train" else test)
    source.title = f"{path.resolve().name} {source.title}"
    if split == "test" and source.classes:
        # classes are numbered by folder, so that one less here would be other numbers for all behind it
        trained = sorted(folder.name for folder in train.iterdir() if folder.is_dir() and _holds_images(folder))
        if trained and trained != source.classes:
            odd = sorted(set(trained).symmetric_difference(source.classes))
            raise ValueError(f"{train} and {test} differ in the class {odd[0]}: needs the same folders in both")
    return source
