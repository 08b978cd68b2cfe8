"""A folder of images, with one folder per class if there are classes."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from .source import Sample

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif")


class ImageFolder:
    """All images below a folder. Folders directly inside it are classes, in the order of their names.

    Images next to such folders have no label; with no folder that holds images, none has.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is not a folder: needs a folder of images")
        self.title = _as_text(self.path.resolve().name)
        self.files = sorted(image_files(self.path))
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
        file = self.files[index]
        with Image.open(file) as image:
            # a photograph lies as its camera was held
            upright = rgb(ImageOps.exif_transpose(image))
        return Sample(upright, self.name(index), self._labels.get(file.relative_to(self.path).parts[0]))


def _as_text(name: str) -> str:
    """A name as it can be printed: those of files may be in another encoding."""
    return name.encode(errors="backslashreplace").decode()


def _leads_back(inside: str, name: str) -> bool:
    """Whether a folder is a link to one that it is in: it would never end."""
    linked = os.path.join(inside, name)
    return os.path.islink(linked) and Path(inside).resolve().is_relative_to(Path(linked).resolve())


def image_files(folder: Path) -> Iterator[Path]:
    """All images below a folder, linked folders too, by their endings; hidden ones are notes of file systems."""
    for inside, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and not _leads_back(inside, name)]
        for name in files:
            if os.path.splitext(name)[1].lower() in EXTENSIONS and not name.startswith("."):
                yield Path(inside, name)


def rgb(image: Image.Image) -> Image.Image:
    """A picture in red, green and blue, whatever it was stored in."""
    needed = "needs 8 or 16 bits per channel"
    if image.mode == "F":
        raise ValueError(f"its pixels are in floating point: {needed}")
    if image.mode.startswith("I"):  # grey of 16 bits: Pillow would cut it off at 255 instead of scaling it
        values = np.asarray(image)
        if values.min() < 0 or values.max() >= 1 << 16:
            raise ValueError(f"its pixels have values from {values.min()} to {values.max()}: {needed}")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:  # Pillow warns of the direct way
        image = image.convert("RGBA")
    return image.convert("RGB")
