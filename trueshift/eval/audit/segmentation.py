"""Details of a segmentation model: its worst images, and maps of the labels that flip when the image moves."""

import base64
import io
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image

from ...data.images import png_bytes
from ...data.source import Source
from ..models.eval_model import EvalModel
from ..protocols.registry import ShiftProtocol
from ..protocols.shifts import Circular
from ..runner.records import PixelAnswers, Record
from ..runner.segment import canvas_key, shown_logits
from ..runner.tasks import Task
from .classification import ClassifierFindings

NOT_SHOWN = -1  # a pixel that a shifted image does not show
_SMALLEST = 0.0005  # part of all pixels that a region has at least: single pixels along an edge are no region


class SegmenterFindings(ClassifierFindings):
    """What an audit finds about a segmentation model."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.answers: dict[int, PixelAnswers] = {}
        self.flips: list[dict[str, Any]] = []

    def agreement(self, record: Record) -> float:
        """How far the labels of one image's pixels agree."""
        self.answers[record.index] = record.answers[self.protocol.name]
        return self.answers[record.index].agreement

    def worst_entry(self, record: Record) -> dict[str, Any]:
        """The shift that changes most pixels."""
        answers = self.answers[record.index]
        return {
            "shift": _worst_shift(answers),
            "flipped": float(answers.flipped.max()),
            "largest_logit_change": float(answers.change.max()),
        }

    def look_closer(self, index: int, plane: int, everyone: list[Any]) -> None:
        """The flip map of one image.

        The shift that changes most pixels in any model is shown for all models that see the image at that size.
        """
        worst = max((each.answers[index] for each in everyone), key=lambda answers: answers.flipped.max())
        mine, task = self.answers[index], self.task
        shift = _worst_shift(worst if worst.size == mine.size else mine)
        self.flips.append(flip_map(task.model, task.source, index, self.protocol, shift, task.options.device))

    def details(self) -> dict[str, Any]:
        """The flip maps of a few images."""
        return {"flips": self.flips}


def _worst_shift(answers: PixelAnswers) -> list[int]:
    return answers.shifts[int(answers.flipped.argmax())].tolist()


def flip_map(
    model: EvalModel, source: Source, index: int, protocol: ShiftProtocol, shift: list[int], device: str
) -> dict[str, Any]:
    """The paper's figure on segmentation: labels before and after one shift, and the regions that changed."""
    sample = source[index]
    fit, margin = canvas_key(protocol, model.preparation)
    preparation, moved = replace(model.preparation, fit=fit), torch.tensor([shift])
    image = preparation.normalise(preparation.canvas(sample.image, margin).to(device))
    size = (image.shape[1] - 2 * margin[0], image.shape[2] - 2 * margin[1])
    how = ([(protocol, moved)], model.batch_size or 2, model.batch_size is not None)
    with torch.inference_mode():
        unshifted, shifted = (logits.argmax(0) for logits in shown_logits(model.forward, image, size, *how))
    back, covered = protocol.motion.undo(shifted[None], moved)
    before, after, shown = (part.cpu().numpy() for part in (unshifted, back[0], covered[0]))
    changed = (before != after) & shown
    return {
        "index": index,
        "name": sample.name,
        "protocol": protocol.name,
        "shift": shift,
        "wraps": isinstance(protocol.motion, Circular),
        "size": list(size),
        "margin": list(margin),  # of the image around it
        "flipped": float(changed.sum() / shown.sum()),
        "regions": largest_regions(changed),
        "before": packed_labels(before),
        "after": packed_labels(np.where(shown, after, NOT_SHOWN)),
    }


def packed_labels(labels: Int[np.ndarray, "H W"]) -> str:
    """Labels from -1 to 65534 as the text of a PNG."""
    raised = labels + 1
    kind = np.uint8 if raised.max(initial=0) < 256 else np.uint16
    return base64.b64encode(png_bytes(Image.fromarray(raised.astype(kind)), optimize=True)).decode()


def unpacked_labels(text: str) -> Int[np.ndarray, "H W"]:
    """The inverse of :func:`packed_labels`."""
    with Image.open(io.BytesIO(base64.b64decode(text))) as image:
        return np.asarray(image).astype(np.int64) - 1


def label_regions(mask: Bool[np.ndarray, "H W"]) -> Int[np.ndarray, "H W"]:
    """A number from 1 on for each region of pixels that touch, also by a corner; 0 outside.

    Each pixel points to the first one of its region known so far. What a pixel learns from its neighbours, the one that
    it points to learns, too; pointers are followed until nothing changes.
    """
    first = np.where(mask.ravel(), np.arange(mask.size), mask.size)
    inside = np.flatnonzero(mask)
    while True:
        padded = np.pad(first.reshape(mask.shape), 1, constant_values=mask.size)
        lowest = sliding_window_view(padded, (3, 3)).min((2, 3)).ravel()[inside]
        if (lowest == first[inside]).all():
            break
        np.minimum.at(first, first[inside], lowest)
        while (first[inside] != first[first[inside]]).any():
            first[inside] = first[first[inside]]
    numbers = np.zeros(mask.shape, np.int64)
    numbers[mask] = np.unique(first[inside], return_inverse=True)[1] + 1
    return numbers


def largest_regions(mask: Bool[np.ndarray, "H W"], most: int = 8) -> list[dict[str, Any]]:
    """The largest regions with their bounding boxes, the largest first, and at most so many."""
    numbers = label_regions(mask)
    pixels = np.bincount(numbers.ravel())[1:]
    enough = np.flatnonzero(pixels >= max(2, _SMALLEST * mask.size))
    chosen = enough[np.argsort(-pixels[enough], kind="stable")][:most]
    found = []
    for number in chosen.tolist():
        rows, columns = np.nonzero(numbers == number + 1)
        box = [int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1]
        found.append({"box": box, "pixels": int(pixels[number])})
    return found
