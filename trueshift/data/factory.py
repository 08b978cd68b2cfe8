"""Open data by a name or a path."""

from pathlib import Path

from ..testing.images import PHOTOS
from .arrays import CifarFiles, CompactArchive, EmbeddedSample, find_cifar, find_npz
from .huggingface import HUB, DatasetImages, has_shards
from .images import ImageFolder, image_files
from .source import Source, split_names


def open_data(where: str | Path = "sample", split: str = "test") -> Source:
    """Open images by a name or a path.

    Args:
        where: ``"sample"`` for 400 small images that come with the package, ``"sample-photos"`` for its six
            photographs, which have no labels; a folder of CIFAR-10's or CIFAR-100's official files, python version; a
            folder of images, with one folder per class if there are classes, or with such in
            ``train`` and in ``test`` or ``val``; one image; a folder of ``.parquet`` files or of
            ``.tar`` shards; ``hf-hub:OWNER/NAME`` for a data set of the Hugging Face Hub; or an ``.npz``. A folder that
            holds images is one of images, whatever else lies there.
        split: ``"train"``, ``"val"`` or ``"test"``, or another name of these, such as ``"validation"``; ignored for
            what comes with the package, and for images in one folder.
    """
    names = split_names(split)
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
    if find_cifar(path):
        return CifarFiles(path, split)
    if not _has_images(path):
        if has_shards(path):
            return DatasetImages(path, split)
        if find_npz(path):
            return CompactArchive(path, split)
    inside = {kind: [path / word for word in split_names(kind) if (path / word).is_dir()] for kind in ("train", "test")}
    if all(inside.values()):
        wanted = [path / word for word in names if (path / word).is_dir()]
        if not wanted:
            raise ValueError(f"{path} has no split {split!r}: needs a folder {' or '.join(names)}")
        return _split_folder(path, inside["train"][0], wanted[0])
    return ImageFolder(path)


def _has_images(path: Path) -> bool:
    return next(image_files(path), None) is not None


def _split_folder(path: Path, train: Path, wanted: Path) -> ImageFolder:
    source = ImageFolder(wanted)
    source.title = f"{path.resolve().name} {source.title}"
    if wanted != train and source.classes:
        # classes are numbered by folder: without one of them, those after it would have other numbers
        inside = (folder for folder in train.iterdir() if folder.is_dir() and not folder.name.startswith("."))
        trained = sorted(folder.name for folder in inside if _has_images(folder))
        if trained and trained != source.classes:
            odd = sorted(set(trained).symmetric_difference(source.classes))
            raise ValueError(f"{train} and {wanted} differ in the class {odd[0]}: needs the same folders in both")
    return source
