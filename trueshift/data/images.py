"""Find and decode image files."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff", ".gif")


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


def decoded(data: bytes, name: str, upright: bool = True) -> Image.Image:
    """An image in colours, upright as a folder of images would give it, or as it lies in the file."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return rgb(ImageOps.exif_transpose(image) if upright else image)
    except UnidentifiedImageError:  # its words are an address in memory
        raise ValueError(f"{name} is not an image that Pillow knows: needs one of {', '.join(EXTENSIONS)}") from None
