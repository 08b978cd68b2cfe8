"""What a model answered."""

from dataclasses import dataclass, field

import numpy as np


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
