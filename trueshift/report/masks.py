"""The class of each pixel as pictures: label files with colours for the eye, and colours laid over the photograph."""

import io
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image, ImageDraw, ImageFont

from .pictures import PALETTE

_COLOURS = 256  # different ones; what has a higher number begins again
_STEPS = 12  # of red, green and blue, among which colours are chosen
_DULL, _DARK, _BRIGHT = 40, 50, 225  # greys and extremes look like the picture, not like a class
_LEGEND = 16  # classes named below a picture, at most
_ROW, _SWATCH, _GAP = 16, 10, 6  # pixels of the legend


@lru_cache(maxsize=1)
def class_colours() -> UInt8[np.ndarray, "colours 3"]:
    """A colour for each class, always the same: each as far from all before it as a choice of colours allows."""
    levels = np.linspace(0, 255, _STEPS).round()
    choice = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(-1, 3)
    bright = choice @ [0.3, 0.59, 0.11]
    choice = choice[(np.ptp(choice, axis=1) > _DULL) & (bright > _DARK) & (bright < _BRIGHT)]
    colours = [np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], float) for colour in PALETTE]
    distance = np.min([_apart(choice, colour) for colour in colours], axis=0)
    while len(colours) < _COLOURS:
        colours.append(choice[distance.argmax()])
        distance = np.minimum(distance, _apart(choice, colours[-1]))
    return np.array(colours).round().astype(np.uint8)


def _apart(colours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How different colours look, roughly: an eye sees green best."""
    return ((colours - other) ** 2) @ [0.3, 0.5, 0.2]


def mask_png(labels: Int[np.ndarray, "H W"], classes: int) -> bytes:
    """A label file that our reader and others take: numbers of classes, with colours for viewers.

    More classes than a palette has numbers, beside 255 for what is ignored, are written as grey of 16 bits.
    """
    if not 0 <= labels.min() <= labels.max() < classes <= 2**16:
        raise ValueError(
            f"labels from {labels.min()} to {labels.max()} of {classes} classes: needs 0 to the number of classes, "
            "which may be 65536 at most"
        )
    file = io.BytesIO()
    if classes > 255:
        Image.fromarray(labels.astype(np.uint16)).save(file, "PNG")
    else:
        image = Image.fromarray(labels.astype(np.uint8))
        image.putpalette(class_colours().tobytes())
        image.save(file, "PNG", optimize=True)
    return file.getvalue()


def shares(labels: Int[np.ndarray, "H W"]) -> list[tuple[int, float]]:
    """The classes that are there, with the part of the pixels that each has; the largest first."""
    found, counts = np.unique(labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(found[at]), float(counts[at] / labels.size)) for at in order]


def overlay(
    picture: Image.Image, labels: Int[np.ndarray, "H W"], names: Sequence[str], opacity: float = 0.5
) -> Image.Image:
    """The picture under the colours of its classes, and below it which class has which colour."""
    colours = class_colours()[labels % _COLOURS]
    mixed = (1 - opacity) * np.asarray(picture.convert("RGB"), np.float32) + opacity * colours
    shown = Image.fromarray(mixed.round().astype(np.uint8))
    key = legend(picture.width, [label for label, _ in shares(labels)], names)
    whole = Image.new("RGB", (picture.width, picture.height + key.height), "white")
    whole.paste(shown, (0, 0))
    whole.paste(key, (0, picture.height))
    return whole


def legend(width: int, labels: Sequence[int], names: Sequence[str]) -> Image.Image:
    """A strip that names colours, as wide as asked for and as high as need be."""
    font = ImageFont.load_default()
    entries = [(label, _plain(names[label])) for label in labels[:_LEGEND]]
    if len(labels) > _LEGEND:
        entries.append((-1, f"and {len(labels) - _LEGEND} more"))
    placed, across, row = [], _GAP, 0
    for label, name in entries:
        needed = _SWATCH + _GAP + int(font.getlength(name)) + 2 * _GAP
        if across > _GAP and across + needed > width:
            across, row = _GAP, row + 1
        placed.append((across, row * _ROW, label, name))
        across += needed
    strip = Image.new("RGB", (width, (row + 1) * _ROW + _GAP), "white")
    draw = ImageDraw.Draw(strip)
    for left, top, label, name in placed:
        if label >= 0:
            colour = tuple(class_colours()[label % _COLOURS].tolist())
            draw.rectangle((left, top + _GAP // 2, left + _SWATCH, top + _GAP // 2 + _SWATCH), colour)
        draw.text((left + _SWATCH + _GAP, top + 2), name, "black", font)
    return strip


def _plain(name: str) -> str:
    """Without letters that the font in Pillow may not have."""
    return name.encode("latin-1", "replace").decode("latin-1")
