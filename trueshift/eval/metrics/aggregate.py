"""Count a model's answers: every measure of one protocol, over all images and by class."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..protocols.registry import Protocol
from ..runner.records import Answers, ImageRecord
from .consistency import (
    BitExactFraction,
    LargestLogitChange,
    ShiftConsistency,
    TopOne,
    WorstCaseAccuracy,
    WorstCaseConsistency,
    agreement_with_first,
    pair_agreement,
)
from .intervals import wilson_interval

_AT_ONCE = 64


def compared(protocol: Protocol) -> slice:
    """The views that a protocol compares: the shifted ones, or all, the unshifted one first."""
    return slice(None) if protocol.against_unshifted else slice(1, None)


def _labels(answers: Answers, protocol: Protocol) -> Tensor:
    """What is compared, ``[1, K]``."""
    return torch.from_numpy(answers.labels[compared(protocol)])[None]


def agreement(answers: Answers, protocol: Protocol) -> float:
    """How far the answers to one image agree, 0 to 1."""
    labels = _labels(answers, protocol)
    return float((agreement_with_first if protocol.against_unshifted else pair_agreement)(labels))


def is_answered(record: ImageRecord) -> bool:
    """Whether all logits were numbers."""
    return all((answers.labels >= 0).all() for answers in record.answers.values())


class Tally:
    """All measures of one protocol.

    Args:
        protocol: which answers of a record are counted.
        labelled: whether labels of the images are the model's own classes, so that right and wrong can be told.
        numbers: the model's number of each label; without them, the label itself.
    """

    def __init__(self, protocol: Protocol, labelled: bool, numbers: list[int] | None = None) -> None:
        self.protocol, self.labelled, self.numbers = protocol, labelled, numbers
        self.top_one = TopOne()
        self.consistency = ShiftConsistency(against_first=protocol.against_unshifted)
        self.worst_case = WorstCaseConsistency()
        self.worst_case_accuracy = WorstCaseAccuracy()
        self.bit_exact = BitExactFraction()
        self.largest_change = LargestLogitChange()
        self.images = 0
        self.waiting: list[tuple[Answers, int | None]] = []

    def add(self, record: ImageRecord) -> None:
        """Count one image."""
        self.images += 1
        self.waiting.append((record.answers[self.protocol.name], record.label))
        if len(self.waiting) == _AT_ONCE:
            self._count()

    def _count(self) -> None:
        """Many images at once: a metric's update costs as much for one as for a hundred."""
        if not self.waiting:
            return
        answers = [each for each, _ in self.waiting]
        labels = torch.cat([_labels(each, self.protocol) for each in answers])
        self.consistency.update(labels)
        self.worst_case.update(labels)
        self.bit_exact.update(torch.from_numpy(np.stack([each.exact[1:] for each in answers])))
        self.largest_change.update(torch.from_numpy(np.stack([each.change[1:] for each in answers])))
        wanted = {
            at: _number(label, self.numbers)
            for at, (_, label) in enumerate(self.waiting)
            if self.labelled and label is not None
        }
        if wanted:
            known, target = list(wanted), torch.tensor(list(wanted.values()))
            self.top_one.update(torch.tensor([int(answers[at].labels[0]) for at in known]), target)
            self.worst_case_accuracy.update(labels[known], target)
        self.waiting.clear()

    def summary(self) -> dict[str, Any]:
        """All measures with their intervals; None where there is nothing to tell. Processes meet here."""
        self._count()
        rates = {
            "top1": self.top_one,
            "consistency": self.consistency,
            "worst_case": self.worst_case,
            "worst_case_accuracy": self.worst_case_accuracy,
            "bit_exact": self.bit_exact,
        }
        result: dict[str, Any] = {name: rate_of(metric) for name, metric in rates.items()}
        with self.largest_change.sync_context(dist_sync_fn=self.largest_change.dist_sync_fn):
            result["largest_logit_change"] = float(self.largest_change.largest)
        return result


def rate_of(metric: Any) -> dict[str, float] | None:
    """A rate with its interval, over all processes; None if there was no image."""
    rate, images = metric.seen()
    if not images:
        return None
    low, high = wilson_interval(rate, images)
    return {"rate": rate, "low": low, "high": high, "images": images}


def _number(label: int, numbers: list[int] | None) -> int:
    """What the model must answer to be right."""
    return label if numbers is None else numbers[label]


class ClassTally:
    """Consistency and accuracy by class of the data."""

    def __init__(self, protocol: Protocol, labelled: bool, numbers: list[int] | None = None) -> None:
        self.protocol, self.labelled, self.numbers = protocol, labelled, numbers
        self.sums: dict[int, np.ndarray] = {}  # images, agreement, right

    def add(self, record: ImageRecord) -> None:
        """Count one image, if its class is known."""
        if record.label is None:
            return
        answers = record.answers[self.protocol.name]
        right = float(self.labelled and answers.labels[0] == _number(record.label, self.numbers))
        row = self.sums.setdefault(record.label, np.zeros(3))
        row += (1, agreement(answers, self.protocol), right)

    def summary(self) -> list[dict[str, Any]]:
        """One row per class that occurs."""
        return [
            {
                "label": label,
                "images": int(images),
                "consistency": agreed / images,
                "top1": right / images if self.labelled else None,
            }
            for label, (images, agreed, right) in sorted(self.sums.items())
        ]
