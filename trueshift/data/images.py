"""Find and decode image files, and read them from a folder."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from .source import Sample

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif")


class ImageFolder:
    """All images below a folder, or one image. Folders directly inside it are classes, in the order of their names.

    Images next to such folders have no label; with no folder that holds images, none has.
    """

    # not the imagefolder of `datasets`, which drops all labels if classes have folders of their own or there is but one

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        alone = path.is_file() and path.suffix.lower() in EXTENSIONS
        if not alone and not path.is_dir():
            raise NotADirectoryError(f"{path} is not a folder: needs a folder of images, or one image")
        self.path = path.parent if alone else path
        self.title = _as_text(path.resolve().name)
        self.files = [path] if alone else sorted(image_files(path))
        if not self.files:
            raise ValueError(f"{self.path} has no images: needs files ending in {', '.join(EXTENSIONS)}")
        inside = sorted({file.relative_to(self.path).parts[0] for file in self.files if file.parent != self.path})
        self.classes: list[str] | None = [_as_text(name) for name in inside] or None
        self._labels = {name: label for label, name in enumerate(inside)}

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        """The path inside the folder."""
        return _as_text(self.files[index].relative_to(self.path).as_posix())

    def __getitem__(self, index: int) -> Sample:
        file, name = self.files[index], self.name(index)
        label = self._labels.get(file.relative_to(self.path).parts[0])
        with Image.open(file) as image:
            return Sample(rgb(ImageOps.exif_transpose(image)), name, label)


def image_files(folder: Path) -> Iterator[Path]:
    """All images below a folder, as :func:`files_below`."""
    return (file for file in files_below(folder) if file.suffix.lower() in EXTENSIONS)


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder, linked folders included but for those that lead back; hidden files are left out."""
    for inside, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and not _leads_back(inside, name)]
        yield from (Path(inside, name) for name in files if not name.startswith("."))


def decoded(data: bytes, name: str, upright: bool = True) -> Image.Image:
    """An encoded image in RGB, turned upright as its camera was held, or as it lies in the file."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return rgb(ImageOps.exif_transpose(image) if upright else image)
    except UnidentifiedImageError:  # its message is an address in memory
        raise ValueError(f"{name} is not an image that Pillow knows: needs one of {', '.join(EXTENSIONS)}") from None


def png_bytes(image: Image.Image, **options: Any) -> bytes:
    """An image as the content of a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def rgb(image: Image.Image) -> Image.Image:
    """An image of any mode in RGB."""
    needed = "needs 8 or 16 bits per channel"
    if image.mode == "F":
        raise ValueError(f"its pixels are in floating point: {needed}")
    if image.mode.startswith("I"):  # 16-bit grey: Pillow would clip it at 255 instead of scaling it
        values = np.asarray(image)
        if values.min() < 0 or values.max() >= 1 << 16:
            raise ValueError(f"its pixels have values from {values.min()} to {values.max()}: {needed}")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:  # Pillow warns of the direct way
        image = image.convert("RGBA")
    return image.convert("RGB")


def _as_text(name: str) -> str:
    """A name that can be printed: names of files may be in another encoding."""
    return name.encode(errors="backslashreplace").decode()


def _leads_back(inside: str, name: str) -> bool:
    """Whether a folder is a link to one that it is in."""
    linked = os.path.join(inside, name)
    return os.path.islink(linked) and Path(inside).resolve().is_relative_to(Path(linked).resolve())
