"""Open data by a name or a path."""

from pathlib import Path

from ..testing.images import PHOTOS
from .arrays import CifarFiles, CompactArchive, EmbeddedSample
from .huggingface import HUB, DatasetImages
from .images import ImageFolder, image_files
from .source import SPLITS, Source, check_split


def open_data(where: str | Path = "sample", split: str = "test") -> Source:
    """Open images by a name or a path.

    Args:
        where: ``"sample"`` for 400 small images that come with the package, ``"sample-photos"`` for its six
            photographs, which have no labels; a folder of CIFAR-10's or CIFAR-100's official files, python version; a
            folder of images, with one folder per class if there are classes, or with such in
            ``train`` and in ``test``, ``val`` or ``validation``; one image; a folder of ``.parquet`` files or of
            ``.tar`` shards; ``hf-hub:OWNER/NAME`` for a data set of the Hugging Face Hub; or an ``.npz``. A folder that
            holds images is one of images, whatever else lies there.
        split: ``"test"`` or ``"train"``; ignored for what comes with the package, and for images in one folder.
    """
    check_split(split)
    if where == "sample":
        return EmbeddedSample()
    if where == "sample-photos":
        source = ImageFolder(PHOTOS)
        source.title = f"{len(source)} photographs"
        return source
    if str(where).startswith(HUB):
        return DatasetImages(where, split)
    path = Path(where)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no data at {path}: needs 'sample', 'sample-photos', a folder of CIFAR files, of images, of "
            f".tar shards or of .parquet files, an image, an .npz file, or '{HUB}OWNER/NAME'"
        )
    if CifarFiles.are_in(path):
        return CifarFiles(path, split)
    if not _holds_images(path):
        if DatasetImages.are_in(path):
            return DatasetImages(path, split)
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
        # classes are numbered by folder: without one of them, those behind it would have other numbers
        inside = (folder for folder in train.iterdir() if folder.is_dir() and not folder.name.startswith("."))
        trained = sorted(folder.name for folder in inside if _holds_images(folder))
        if trained and trained != source.classes:
            odd = sorted(set(trained).symmetric_difference(source.classes))
            raise ValueError(f"{train} and {test} differ in the class {odd[0]}: needs the same folders in both")
    return source
