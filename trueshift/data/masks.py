"""From a label file to the class of each pixel: what a value means is looked up, never guessed."""

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int32
from PIL import Image, UnidentifiedImageError

from .source import IGNORED

Colour = tuple[int, int, int]

_UNKNOWN = np.iinfo(np.int32).min
_SHOWN = 8  # values in an error message
_DAMAGES = (OSError, SyntaxError, EOFError, struct.error)  # what Pillow raises for files that end early, or worse
_LOSSY = ("JPEG", "JPEG2000", "MPO")  # WebP may be either, and is then told by its colours
_SCALED = {"L;2": 85, "L;4": 17}  # Pillow spreads few bits of grey over 0 to 255


@dataclass(frozen=True)
class Labels:
    """What the values of label files mean.

    Args:
        values: the class of each value of a file with one number per pixel, or ``IGNORED``.
        colours: the same for files in red, green and blue; without it such files are refused.
    """

    values: Mapping[int, int]
    colours: Mapping[Colour, int] = field(default_factory=dict)

    @classmethod
    def numbered(cls, classes: int, first: int = 0, ignored: tuple[int, ...] = (255,)) -> "Labels":
        """Classes one after the other from the value ``first`` on."""
        return cls({**dict.fromkeys(ignored, IGNORED), **{first + label: label for label in range(classes)}})

    @cached_property
    def _table(self) -> tuple[int, np.ndarray]:
        """The value of the first entry, and entries from there on, with an unknown one at either end."""
        lowest = min(self.values) - 1
        table = np.full(max(self.values) - lowest + 2, _UNKNOWN, np.int32)
        for value, label in self.values.items():
            table[value - lowest] = label
        return lowest, table

    @cached_property
    def _bytes(self) -> np.ndarray:
        """Entries for the values of one byte: several times faster, and most files have no others."""
        return self._looked_up(np.arange(256))

    def _looked_up(self, values: np.ndarray) -> np.ndarray:
        lowest, table = self._table
        return np.take(table, np.clip(values.astype(np.int64), lowest, lowest + len(table) - 1) - lowest)

    def of_values(self, values: np.ndarray) -> Int32[np.ndarray, "H W"]:
        """The class of each number; the unknown ones are marked."""
        return np.take(self._bytes, values) if values.dtype == np.uint8 else self._looked_up(values)

    def of_colours(self, pixels: np.ndarray) -> Int32[np.ndarray, "H W"]:
        """The class of each colour; the unknown ones are marked."""
        keys = _packed(np.array(list(self.colours)))
        table = np.array(list(self.colours.values()), np.int32)
        order = np.argsort(keys)
        keys, table = keys[order], table[order]
        packed = _packed(pixels)
        nearest = np.minimum(np.searchsorted(keys, packed), len(keys) - 1)
        return np.where(keys[nearest] == packed, table[nearest], np.int32(_UNKNOWN))

    def told(self) -> str:
        """The known values, in words."""
        known = sorted(value for value, label in self.values.items() if label != IGNORED)
        ignored = sorted(value for value, label in self.values.items() if label == IGNORED)
        return _ranges(known) + (f", or {_ranges(ignored)} for what is ignored" if ignored else "")


def read_mask(path: str | Path, labels: Labels) -> Int32[np.ndarray, "H W"]:
    """The class of each pixel of a label file, or ``IGNORED``."""
    return decode_mask(Path(path).read_bytes(), str(path), labels)


def decode_mask(data: bytes, name: str, labels: Labels) -> Int32[np.ndarray, "H W"]:
    """The same from the content of a file; ``name`` is for what there may be to complain of."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            _check_kind(image, name, labels)
            stored = _stored_as(image)
            pixels = np.asarray(image)
            if image.mode in ("RGB", "RGBA"):
                found = labels.of_colours(pixels)
            else:  # a palette's numbers, not its colours: those are only for the eye
                pixels = pixels // _SCALED[stored] if stored in _SCALED else pixels
                found = labels.of_values(pixels)
    except UnidentifiedImageError:  # its words are an address in memory
        raise ValueError(f"{name} is not an image that Pillow knows: needs a label file, best a PNG") from None
    except _DAMAGES as error:
        raise ValueError(f"{name} is not whole ({error}): copy it again") from error
    unknown = found == _UNKNOWN
    if unknown.any():
        raise ValueError(f"{name} has {_some(pixels[unknown])}, which no class has: needs {_needed(pixels, labels)}")
    return found


def _check_kind(image: Image.Image, name: str, labels: Labels) -> None:
    """Refuse a file whose pixels cannot be labels."""
    if image.format in _LOSSY:
        raise ValueError(f"{name} is a {image.format}, which blurs labels: needs a file without loss, best a PNG")
    if image.mode in ("RGB", "RGBA"):
        if not labels.colours:
            raise ValueError(
                f"{name} is in {image.mode}: needs one number per pixel, grey or palette, or a table of colours"
            )
    elif image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
        raise ValueError(
            f"{name} has pixels of the kind {image.mode}: needs one whole number per pixel, best 8-bit grey"
        )
    if _stored_as(image).endswith((";I", ";IR", "2I", "4I")):
        raise ValueError(f"{name} stores white as 0, which turns its values around: needs black as 0, best a PNG")


def _stored_as(image: Image.Image) -> str:
    """Pillow's word for how pixels lie in the file."""
    tiles = getattr(image, "tile", None)
    arguments = tiles[0][3] if tiles else ""
    return str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments)


def _packed(colours: np.ndarray) -> np.ndarray:
    """A colour as one number."""
    red, green, blue = np.moveaxis(colours[..., :3].astype(np.int64), -1, 0)
    return (red << 16) | (green << 8) | blue


def _some(pixels: np.ndarray) -> str:
    """The first few of different values or colours, in words."""
    if pixels.ndim == 2:
        found = [f"({', '.join(map(str, colour))})" for colour in np.unique(pixels[:, :3], axis=0).tolist()]
        kind = "colour"
    else:
        found, kind = [str(int(value)) for value in np.unique(pixels)], "value"
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"the {kind}{'s' * (len(found) > 1)} {', '.join(found[:_SHOWN])}{more}"


def _needed(pixels: np.ndarray, labels: Labels) -> str:
    return labels.told() if pixels.ndim == 2 else f"one of the {len(labels.colours)} colours of the table"


def _ranges(numbers: list[int]) -> str:
    """``0, 1, 2, 5`` as "0 to 2, 5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in found)
