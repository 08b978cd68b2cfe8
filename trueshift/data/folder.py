"""A folder of images, with one folder per class if there are classes."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from .source import Picture

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif")


class ImageFolder:
    """All images below a folder. Folders directly inside it are classes, in the order of their names.

    Images next to such folders have no label; with no folder that holds images, none has.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is not a folder: needs a folder of images")
        self.title = self.path.resolve().name
        self.files = sorted(file for file in self.path.rglob("*") if file.suffix.lower() in EXTENSIONS)
        if not self.files:
            raise ValueError(f"{self.path} has no images: needs files ending in {', '.join(EXTENSIONS)}")
        inside = {file.relative_to(self.path).parts[0] for file in self.files if file.parent != self.path}
        self.classes: list[str] | None = sorted(inside) or None
        self._labels = {name: label for label, name in enumerate(self.classes or [])}

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        """The path inside the folder."""
        return self.files[index].relative_to(self.path).as_posix()

    def __getitem__(self, index: int) -> Picture:
        file = self.files[index]
        with Image.open(file) as image:
            # a photograph lies as its camera was held
            upright = rgb(ImageOps.exif_transpose(image))
        return Picture(upright, self.name(index), self._labels.get(file.relative_to(self.path).parts[0]))


def rgb(image: Image.Image) -> Image.Image:
    """A picture in red, green and blue, whatever it was stored in."""
    if image.mode.startswith("I"):  # grey of 16 bits: Pillow would cut it off at 255 instead of scaling it
        image = Image.fromarray(np.clip(np.asarray(image) >> 8, 0, 255).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:  # Pillow warns of the direct way
        image = image.convert("RGBA")
    return image.convert("RGB")
