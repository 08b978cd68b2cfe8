"""Small pictures for reports, as arrays of pixels: answers over the plane of shifts, changes of tokens, thumbnails."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from ..data import Source

# ten colours that stay apart for colour-blind readers and on light and dark ground; whatever else is answered is grey
PALETTE = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988", "#8e6bbf", "#a6761d",
)  # fmt: skip
OTHER = "#9a9a9a"


def colours_of(planes: list[dict[str, Any]]) -> dict[int, str]:
    """A colour for each answer, the most frequent ones first; the same answer has one colour for all models."""
    answers = np.concatenate([np.ravel(plane["labels"]) for plane in planes])
    labels, counts = np.unique(answers, return_counts=True)
    order = [int(labels[position]) for position in np.argsort(-counts, kind="stable")]
    return {label: PALETTE[rank] if rank < len(PALETTE) else OTHER for rank, label in enumerate(order)}


def plane_picture(plane: dict[str, Any], colours: dict[int, str]) -> np.ndarray:
    """The answer at each shift as a colour, ``[rows, columns, 3]``."""
    labels = np.array(plane["labels"])
    picture = np.zeros((*labels.shape, 3), np.uint8)
    for label in np.unique(labels):
        picture[labels == label] = [int(colours[int(label)][at : at + 2], 16) for at in (1, 3, 5)]
    return picture


def error_picture(error: list[list[float]], scale: float) -> np.ndarray:
    """How much each token changed, from black (not at all) over orange to white (by ``scale`` or more)."""
    part = np.clip(np.array(error) / (scale or 1.0), 0, 1)[..., None]
    stops = np.array([[17, 17, 34], [120, 28, 109], [237, 105, 37], [252, 255, 200]], float)
    position = part * (len(stops) - 1)
    below = np.minimum(position.astype(int), len(stops) - 2)[..., 0]
    mixed = stops[below] * (1 - (position - below[..., None])) + stops[below + 1] * (position - below[..., None])
    return mixed.round().astype(np.uint8)


def thumbnail(image: Image.Image, side: int = 128) -> np.ndarray:
    """A small version of a picture; tiny ones stay as they are."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    return np.asarray(small)


def photo(source: Source, index: int, side: int) -> dict[str, Any]:
    """A small version of an image for a page; one of few pixels is shown as pixels, not blurred."""
    small = thumbnail(source[index].image, side)
    return {"thumbnail": data_uri(small), "crisp": max(small.shape) < side}


def data_uri(picture: np.ndarray | bytes) -> str:
    """A picture inside a page: PNG as a ``data:`` address."""
    return "data:image/png;base64," + base64.b64encode(picture if isinstance(picture, bytes) else png(picture)).decode()


def png(picture: np.ndarray) -> bytes:
    """Pixels as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", optimize=True)
    return file.getvalue()
