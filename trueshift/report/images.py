"""Images in reports: planes of answers, changes of tokens, thumbnails, label maps, overlays and what flipped."""

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from matplotlib import colormaps
from PIL import Image, ImageColor, ImageDraw, ImageFont

from ..data import Source
from ..data.images import png_bytes
from ..eval.audit.segmentation import NOT_SHOWN, unpacked_labels

Pixels = UInt8[np.ndarray, "H W 3"]
# ten colours that colour-blind readers can distinguish on light and dark ground; all other answers are grey
PALETTE = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988", "#8e6bbf", "#a6761d",
)  # fmt: skip
OTHER = "#9a9a9a"
_COLOURS = 256  # different ones; higher labels start again
_STEPS = 12  # of red, green and blue, among which colours are chosen
_DULL, _DARK, _BRIGHT = 40, 50, 225  # greys and extremes look like the image, not like a class
_LEGEND = 16  # classes named below an image, at most
_ROW, _SWATCH, _GAP = 16, 10, 6  # pixels of the legend
_CHANGED, _BOX, _BLANK = (216, 27, 96), (255, 193, 7), (154, 154, 154)  # distinct for colour-blind readers too
_LINES = 96  # widths of a box's line in the height of an image


def shares(labels: Int[np.ndarray, "*shape"]) -> list[tuple[int, float]]:
    """The labels that are there, with the part of the whole that each has; the largest first."""
    found, counts = np.unique(labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(found[at]), float(counts[at] / labels.size)) for at in order]


def colours_of(planes: list[dict[str, Any]]) -> dict[int, str]:
    """A colour for each answer, the most frequent ones first; the same answer has one colour for all models."""
    found = shares(np.concatenate([np.ravel(plane["labels"]) for plane in planes]))
    return {label: PALETTE[rank] if rank < len(PALETTE) else OTHER for rank, (label, _) in enumerate(found)}


def plane_image(plane: dict[str, Any], colours: dict[int, str]) -> Pixels:
    """The answer at each shift as a colour."""
    return np.array([[ImageColor.getrgb(colours[label]) for label in row] for row in plane["labels"]], np.uint8)


def error_image(error: list[list[float]], scale: float) -> Pixels:
    """How much each token changed, from black (not at all) over orange to pale yellow (by ``scale`` or more)."""
    return colormaps["inferno"](np.clip(np.array(error) / (scale or 1.0), 0, 1), bytes=True)[..., :3]


def thumbnail(image: Image.Image, side: int = 128) -> Pixels:
    """A small version of an image; tiny ones stay as they are."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    return np.asarray(small)


def data_uri(image: np.ndarray | bytes, kind: str = "png") -> str:
    """An image inside a page, as a ``data:`` address; bytes are of a file of that kind."""
    data = image if isinstance(image, bytes) else png_bytes(Image.fromarray(image), optimize=True)
    return f"data:image/{kind};base64," + base64.b64encode(data).decode()


@lru_cache(maxsize=1)
def class_colours() -> UInt8[np.ndarray, "colours 3"]:
    """A colour for each class, always the same: each as far from all before it as a choice of colours allows."""
    levels = np.linspace(0, 255, _STEPS).round()
    choice = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(-1, 3)
    bright = choice @ [0.3, 0.59, 0.11]
    choice = choice[(np.ptp(choice, axis=1) > _DULL) & (bright > _DARK) & (bright < _BRIGHT)]
    colours = [np.array(ImageColor.getrgb(colour), float) for colour in PALETTE]
    distance = np.min([_apart(choice, colour) for colour in colours], axis=0)
    while len(colours) < _COLOURS:
        colours.append(choice[distance.argmax()])
        distance = np.minimum(distance, _apart(choice, colours[-1]))
    return np.array(colours).round().astype(np.uint8)


def _apart(colours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How different colours look, roughly: an eye sees green best."""
    return ((colours - other) ** 2) @ [0.3, 0.5, 0.2]


def colour_of(label: int) -> str:
    """The colour of a class as a page writes it."""
    return "#" + class_colours()[label % _COLOURS].tobytes().hex()


def label_image(labels: Int[np.ndarray, "H W"]) -> Pixels:
    """A colour for each label; grey where there is none."""
    return np.where((labels == NOT_SHOWN)[..., None], np.array(_BLANK, np.uint8), class_colours()[labels % _COLOURS])


def mask_png(labels: Int[np.ndarray, "H W"], classes: int) -> bytes:
    """A label file: numbers of classes, with colours for viewers; more than 255 classes as grey of 16 bits."""
    if not 0 <= labels.min() <= labels.max() < classes <= 2**16:
        raise ValueError(
            f"labels from {labels.min()} to {labels.max()} of {classes} classes: needs 0 to the number of classes, "
            "which may be 65536 at most"
        )
    if classes > 255:
        return png_bytes(Image.fromarray(labels.astype(np.uint16)))
    image = Image.fromarray(labels.astype(np.uint8))
    image.putpalette(class_colours().tobytes())
    return png_bytes(image, optimize=True)


def overlay(image: Image.Image, labels: Int[np.ndarray, "H W"], names: Sequence[str]) -> Image.Image:
    """The image under the colours of its classes, above a legend."""
    key = legend(image.width, [label for label, _ in shares(labels)], names)
    whole = Image.new("RGB", (image.width, image.height + key.height), "white")
    whole.paste(Image.blend(image.convert("RGB"), Image.fromarray(label_image(labels)), 0.5))
    whole.paste(key, (0, image.height))
    return whole


def legend(width: int, labels: Sequence[int], names: Sequence[str]) -> Image.Image:
    """A strip that names colours, as high as needed."""
    font = ImageFont.load_default()
    entries = [(colour_of(label), names[label]) for label in labels[:_LEGEND]]
    if len(labels) > _LEGEND:
        entries.append(("white", f"and {len(labels) - _LEGEND} more"))
    placed, across, row = [], _GAP, 0
    for colour, name in entries:
        name = name.encode("latin-1", "replace").decode("latin-1")  # Pillow's font may lack other letters
        needed = _SWATCH + _GAP + int(font.getlength(name)) + 2 * _GAP
        if across > _GAP and across + needed > width:
            across, row = _GAP, row + 1
        placed.append((across, row * _ROW, colour, name))
        across += needed
    strip = Image.new("RGB", (width, (row + 1) * _ROW + _GAP), "white")
    draw = ImageDraw.Draw(strip)
    for left, top, colour, name in placed:
        draw.rectangle((left, top + _GAP // 2, left + _SWATCH, top + _GAP // 2 + _SWATCH), colour)
        draw.text((left + _SWATCH + _GAP, top + 2), name, "black", font)
    return strip


def flip_images(flip: dict[str, Any], source: Source) -> dict[str, Pixels]:
    """All images of one flip map at the size of the network's input."""
    (height, width), (rows, columns) = flip["size"], flip["margin"]
    whole = source[flip["index"]].image.convert("RGB").resize((width + 2 * columns, height + 2 * rows))
    photo = np.asarray(whole.crop((columns, rows, columns + width, rows + height)))
    before, after = unpacked_labels(flip["before"]), unpacked_labels(flip["after"])
    return {
        "image": photo,
        "shifted": np.roll(photo, flip["shift"], (0, 1)) if flip["wraps"] else _shifted(whole, flip),
        "before": label_image(before),
        "after": label_image(after),
        "changes": change_image(photo, (before != after) & (after != NOT_SHOWN), flip["regions"]),
    }


def classes_in(flips: list[dict[str, Any]]) -> list[int]:
    """The labels in some flip maps, those of most pixels first."""
    maps = [unpacked_labels(flip[when]).ravel() for flip in flips for when in ("before", "after")]
    return [label for label, _ in shares(np.concatenate(maps)) if label != NOT_SHOWN]


def change_image(photo: Pixels, changed: np.ndarray, regions: list[dict[str, Any]]) -> Pixels:
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


def _shifted(whole: Image.Image, flip: dict[str, Any]) -> Pixels:
    """What the network saw second; grey where nothing of the image lies."""
    moved = Image.new("RGB", flip["size"][::-1], _BLANK)
    moved.paste(whole, tuple(step - beyond for step, beyond in zip(flip["shift"], flip["margin"], strict=True))[::-1])
    return np.asarray(moved)
