"""What a model answered, and how that is written down as plain data."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ops.geometry.shift import Pair


@dataclass
class Answers:
    """What a model said to one image under one protocol. The first view is the unshifted image."""

    shifts: np.ndarray  # [views, 2]; the first is (0, 0)
    labels: np.ndarray  # [views]
    change: np.ndarray  # [views], the largest change of a logit against the first view
    exact: np.ndarray  # [views], whether all bits of the logits are the first view's

    @classmethod
    def blank(cls, shifts: np.ndarray) -> "Answers":
        """Nothing said yet."""
        count = len(shifts)
        return cls(shifts, np.full(count, -1), np.full(count, np.nan), np.zeros(count, bool))


@dataclass
class ImageRecord:
    """All answers to one image."""

    index: int
    name: str
    label: int | None
    answers: dict[str, Answers] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        answers = {
            name: [said.shifts.tolist(), said.labels.tolist(), said.change.tolist(), said.exact.astype(int).tolist()]
            for name, said in self.answers.items()
        }
        return {"index": self.index, "name": self.name, "label": self.label, "answers": answers}

    @classmethod
    def from_plain(cls, read: dict[str, Any]) -> "ImageRecord":
        """The same read back."""
        answers = {
            name: Answers(np.array(shifts), np.array(labels), np.array(change, float), np.array(exact, bool))
            for name, (shifts, labels, change, exact) in read["answers"].items()
        }
        return cls(read["index"], read["name"], read["label"], answers)


@dataclass
class PixelAnswers:
    """What became of a label for each pixel when one image moved under one protocol; all views are moved back."""

    size: Pair  # of the network's input
    shifts: np.ndarray  # [views, 2], without the unshifted image
    agreement: float  # pixels with one label in two views, the mean over all pairs of them
    flipped: np.ndarray  # [views], pixels with another label than in the unshifted image, of those that are shown
    change: np.ndarray  # [views], the largest change of a logit against the unshifted image
    exact: np.ndarray  # [views], whether all bits of the logits are the unshifted image's
    counts: np.ndarray | None = None  # [classes that occur, 4]: class, pixels right, in the mask, predicted

    def to_plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "size": list(self.size),
            "shifts": self.shifts.tolist(),
            "agreement": self.agreement,
            "flipped": self.flipped.tolist(),
            "change": self.change.tolist(),
            "exact": self.exact.astype(int).tolist(),
            "counts": None if self.counts is None else self.counts.tolist(),
        }

    @classmethod
    def from_plain(cls, read: dict[str, Any]) -> "PixelAnswers":
        """The same read back."""
        height, width = read["size"]
        return cls(
            (height, width),
            np.array(read["shifts"]),
            read["agreement"],
            np.array(read["flipped"], float),
            np.array(read["change"], float),
            np.array(read["exact"], bool),
            None if read["counts"] is None else np.array(read["counts"], np.int64).reshape(-1, 4),
        )


@dataclass
class SceneRecord:
    """All answers to one image with a label for each pixel."""

    index: int
    name: str
    pixels: dict[str, PixelAnswers] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        pixels = {name: said.to_plain() for name, said in self.pixels.items()}
        return {"index": self.index, "name": self.name, "pixels": pixels}

    @classmethod
    def from_plain(cls, read: dict[str, Any]) -> "SceneRecord":
        """The same read back."""
        pixels = {name: PixelAnswers.from_plain(said) for name, said in read["pixels"].items()}
        return cls(read["index"], read["name"], pixels)
