"""Read label files: the class of each pixel is looked up, never guessed."""

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int32
from PIL import Image, UnidentifiedImageError

from .source import IGNORED

_UNKNOWN = np.iinfo(np.int32).min
_SHOWN = 8  # values in an error message
_DAMAGES = (OSError, SyntaxError, EOFError, struct.error)  # what Pillow raises for truncated or damaged files
_LOSSY = ("JPEG", "JPEG2000", "MPO")
_SCALED = {"L;2": 85, "L;4": 17}  # Pillow scales grey of few bits to 0..255


@dataclass(frozen=True)
class Labels:
    """What the values of label files mean."""

    values: Mapping[int, int]  # the class of each value, or IGNORED

    @classmethod
    def numbered(cls, classes: int, first: int = 0, ignored: tuple[int, ...] = (255,)) -> "Labels":
        """Consecutive classes from the value ``first`` on."""
        return cls({**dict.fromkeys(ignored, IGNORED), **{first + label: label for label in range(classes)}})

    @cached_property
    def _bytes(self) -> np.ndarray:
        """The classes of the values of one byte: several times faster, and most files have no others."""
        return self._classes(np.arange(256))

    def _classes(self, values: np.ndarray) -> np.ndarray:
        return np.array([self.values.get(value, _UNKNOWN) for value in values.tolist()], np.int32)

    def of_values(self, values: np.ndarray) -> Int32[np.ndarray, "H W"]:
        """The class of each value; unknown ones are marked."""
        if values.dtype == np.uint8:
            return np.take(self._bytes, values)
        different, inverse = np.unique(values, return_inverse=True)
        return self._classes(different)[inverse].reshape(values.shape)

    def __str__(self) -> str:
        known = sorted(value for value, label in self.values.items() if label != IGNORED)
        ignored = sorted(value for value, label in self.values.items() if label == IGNORED)
        return _ranges(known) + (f", or {_ranges(ignored)} for what is ignored" if ignored else "")


def decode_mask(data: bytes, name: str, labels: Labels) -> Int32[np.ndarray, "H W"]:
    """The class of each pixel of a label file, or ``IGNORED``, from its content; ``name`` is for error messages."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            stored = _stored_as(image)
            if image.format in _LOSSY:
                raise ValueError(f"{name} is a {image.format}, which blurs labels: needs a lossless file, best a PNG")
            if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
                needed = "needs one integer per pixel, best 8-bit grey"
                raise ValueError(f"{name} has pixels of the mode {image.mode}: {needed}")
            if stored.endswith((";I", ";IR", "2I", "4I")):
                raise ValueError(f"{name} stores white as 0, which inverts its values: needs black as 0, best a PNG")
            pixels = np.asarray(image)  # a palette's numbers, not its colours
    except UnidentifiedImageError:  # its message is an address in memory
        raise ValueError(f"{name} is not an image that Pillow knows: needs a label file, best a PNG") from None
    except _DAMAGES as error:
        raise ValueError(f"{name} is not whole ({error}): copy it again") from error
    pixels = pixels // _SCALED[stored] if stored in _SCALED else pixels
    found = labels.of_values(pixels)
    unknown = found == _UNKNOWN
    if unknown.any():
        values = [str(int(value)) for value in np.unique(pixels[unknown])]
        more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
        listed = f"value{'s' * (len(values) > 1)} {', '.join(values[:_SHOWN])}{more}"
        raise ValueError(f"{name} has the {listed}, which no class has: needs {labels}")
    return found


def _stored_as(image: Image.Image) -> str:
    """Pillow's raw mode of the file."""
    tiles = getattr(image, "tile", None)
    arguments = tiles[0][3] if tiles else ""
    return str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments)


def _ranges(numbers: list[int]) -> str:
    """``0, 1, 2, 5`` as "0 to 2, 5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in found)
