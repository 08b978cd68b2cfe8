"""Pictures of a flip map: the photograph, its shifted version, labels before and after, and what changed."""

from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image, ImageDraw

from ..data.source import Source
from ..eval.audit.mask_png import NOT_SHOWN, unpacked_labels
from .masks import class_colours, shares

Pixels = UInt8[np.ndarray, "H W 3"]
_CHANGED, _BOX = (216, 27, 96), (255, 193, 7)  # apart from each other and from grey, for colour-blind eyes too
_BLANK = (154, 154, 154)
_LINES = 96  # of a box in the height of a picture


def flip_pictures(flip: dict[str, Any], source: Source) -> dict[str, Pixels]:
    """All pictures of one flip map at the size of the network's input."""
    photo = _photo(source, flip)
    before, after = unpacked_labels(flip["before"]), unpacked_labels(flip["after"])
    return {
        "image": photo,
        "shifted": _shifted(photo, flip),
        "before": labels_picture(before),
        "after": labels_picture(after),
        "changes": changes_picture(photo, (before != after) & (after != NOT_SHOWN), flip["regions"]),
    }


def classes_in(flips: list[dict[str, Any]]) -> list[int]:
    """The labels in some flip maps, those of most pixels first."""
    maps = [unpacked_labels(flip[when]).ravel() for flip in flips for when in ("before", "after")]
    return [label for label, _ in shares(np.concatenate(maps)[None]) if label != NOT_SHOWN]


def colour_of(label: int) -> str:
    """The colour of a class as a page writes it."""
    colours = class_colours()
    return "#" + "".join(f"{part:02x}" for part in colours[label % len(colours)].tolist())


def labels_picture(labels: Int[np.ndarray, "H W"]) -> Pixels:
    """A colour for each label; grey where there is none."""
    colours = class_colours()
    return np.where((labels == NOT_SHOWN)[..., None], np.array(_BLANK, np.uint8), colours[labels % len(colours)])


def changes_picture(photo: Pixels, changed: np.ndarray, regions: list[dict[str, Any]]) -> Pixels:
    """Changed pixels on the pale photograph, the larger regions of them boxed."""
    grey = np.asarray(Image.fromarray(photo).convert("L"), np.float32)[..., None].repeat(3, 2)
    pale = (0.5 * grey + 96).astype(np.uint8)
    pale[changed] = _CHANGED
    image = Image.fromarray(pale)
    draw, line = ImageDraw.Draw(image), max(1, round(photo.shape[0] / _LINES))
    for region in regions:
        top, left, bottom, right = region["box"]
        draw.rectangle((left - line, top - line, right - 1 + line, bottom - 1 + line), outline=_BOX, width=line)
    return np.asarray(image)


def _photo(source: Source, flip: dict[str, Any]) -> Pixels:
    height, width = flip["size"]
    image = source[flip["index"]].image.convert("RGB")
    return np.asarray(image if image.size == (width, height) else image.resize((width, height)))


def _shifted(photo: Pixels, flip: dict[str, Any]) -> Pixels:
    """The photograph as the network saw it second."""
    down, right = flip["shift"]
    moved = np.roll(photo, (down, right), (0, 1))
    if not flip["wraps"]:  # what came in from the other side is not there
        rows, columns = np.indices(photo.shape[:2])
        inside = (rows - down >= 0) & (rows - down < len(photo))
        inside &= (columns - right >= 0) & (columns - right < photo.shape[1])
        moved = np.where(inside[..., None], moved, np.array(_BLANK, np.uint8))
    return moved
