"""Count a model's answers: every metric of one protocol, over all images and by class."""

from math import isnan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.source import IGNORED
from ..protocols.registry import ShiftProtocol
from ..runner.records import LabelAnswers, PixelAnswers, Record
from .consistency import (
    BitExactFraction,
    LargestLogitChange,
    MeanIoU,
    SegmentationConsistency,
    ShiftConsistency,
    TopOne,
    WorstCaseAccuracy,
    WorstCaseConsistency,
    agreement_with_first,
    pair_agreement,
    wilson_interval,
)

_AT_ONCE = 64  # images: a metric's update costs as much for one as for a hundred


def compared(protocol: ShiftProtocol) -> slice:
    """The views that a protocol compares: the shifted ones, or all, the unshifted one first."""
    return slice(None) if protocol.against_unshifted else slice(1, None)


def _labels(answers: LabelAnswers, protocol: ShiftProtocol) -> Tensor:
    """The labels that are compared, ``[1, K]``."""
    return torch.from_numpy(answers.labels[compared(protocol)])[None]


def agreement(answers: LabelAnswers, protocol: ShiftProtocol) -> float:
    """How far the answers to one image agree, 0 to 1."""
    labels = _labels(answers, protocol)
    return float((agreement_with_first if protocol.against_unshifted else pair_agreement)(labels))


class Tally:
    """All metrics of one protocol; subclasses add those of their task."""

    consistency: ShiftConsistency | SegmentationConsistency

    def __init__(self, protocol: ShiftProtocol) -> None:
        self.protocol = protocol
        self.bit_exact = BitExactFraction()
        self.largest_change = LargestLogitChange()
        self.images = 0
        self.waiting: list[tuple[Any, int | None]] = []

    def add(self, record: Record) -> None:
        """Count one image."""
        self.images += 1
        self.waiting.append((record.answers[self.protocol.name], record.label))
        if len(self.waiting) == _AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        if not self.waiting:
            return
        answers, labels = [each for each, _ in self.waiting], [label for _, label in self.waiting]
        self.bit_exact.update(torch.from_numpy(np.stack([each.exact[each.first_shifted :] for each in answers])))
        self.largest_change.update(torch.from_numpy(np.stack([each.change[each.first_shifted :] for each in answers])))
        self.count(answers, labels)
        self.waiting.clear()

    def count(self, answers: list[Any], labels: list[int | None]) -> None:
        """Add answers to the metrics of the task."""
        raise NotImplementedError

    def metrics(self) -> dict[str, Any]:
        """The metrics of the task; None where there is nothing to report."""
        raise NotImplementedError

    def summary(self) -> dict[str, Any]:
        """All metrics, over all processes."""
        self._flush()
        result = {
            **self.metrics(),
            "consistency": rate_of(self.consistency),
            "bit_exact": rate_of(self.bit_exact),
        }
        with self.largest_change.sync_context(dist_sync_fn=self.largest_change.dist_sync_fn):
            result["largest_logit_change"] = float(self.largest_change.largest)
        return result


class LabelTally(Tally):
    """Metrics of a classifier.

    Args:
        labelled: whether labels of the images are the model's own classes, so that accuracy has a meaning.
        numbers: the model's number of each label; without them, the label itself.
    """

    def __init__(self, protocol: ShiftProtocol, labelled: bool, numbers: list[int] | None = None) -> None:
        super().__init__(protocol)
        self.labelled, self.numbers = labelled, numbers
        self.top_one = TopOne()
        self.consistency = ShiftConsistency(against_first=protocol.against_unshifted)
        self.worst_case = WorstCaseConsistency()
        self.worst_case_accuracy = WorstCaseAccuracy()

    def count(self, answers: list[Any], labels: list[int | None]) -> None:
        """Add labels of images."""
        views = torch.cat([_labels(each, self.protocol) for each in answers])
        self.consistency.update(views)
        self.worst_case.update(views)
        known = [at for at, label in enumerate(labels) if self.labelled and label is not None]
        if known:
            target = torch.tensor([_number(labels[at], self.numbers) for at in known])
            self.top_one.update(torch.tensor([int(answers[at].labels[0]) for at in known]), target)
            self.worst_case_accuracy.update(views[known], target)

    def metrics(self) -> dict[str, Any]:
        """Accuracy and the worst case."""
        return {
            "top1": rate_of(self.top_one),
            "worst_case": rate_of(self.worst_case),
            "worst_case_accuracy": rate_of(self.worst_case_accuracy),
        }


class PixelTally(Tally):
    """Metrics of a segmentation model.

    Args:
        num_classes: labels that a pixel can get.
    """

    def __init__(self, protocol: ShiftProtocol, num_classes: int) -> None:
        super().__init__(protocol)
        self.iou = MeanIoU(num_classes, IGNORED)
        self.consistency = SegmentationConsistency()

    def count(self, answers: list[PixelAnswers], labels: list[int | None]) -> None:
        """Add what was compared pixel by pixel."""
        self.consistency.update(torch.tensor([each.agreement for each in answers], dtype=torch.float64))
        for each in answers:
            if each.counts is not None:
                counts = np.zeros((self.iou.num_classes, 3), np.int64)
                counts[each.counts[:, 0]] = each.counts[:, 1:]
                self.iou.add(torch.from_numpy(counts))

    def metrics(self) -> dict[str, Any]:
        """Intersection over union and accuracy of pixels."""
        by_class = [_known(share) for share in self.iou.by_class().tolist()]
        occurring = [share for share in by_class if share is not None]
        return {
            "mean_iou": sum(occurring) / len(occurring) if occurring else None,
            "pixel_accuracy": _known(self.iou.pixel_accuracy()),
            "iou_by_class": by_class if occurring else None,
        }


def rate_of(metric: Any) -> dict[str, float] | None:
    """A rate with its interval, over all processes; None without any image."""
    rate, images = metric.seen()
    if not images:
        return None
    low, high = wilson_interval(rate, images)
    return {"rate": rate, "low": low, "high": high, "images": images}


def _known(share: float) -> float | None:
    return None if isnan(share) else share


def _number(label: int | None, numbers: list[int] | None) -> int | None:
    """The model's number for a label of the data."""
    return label if numbers is None or label is None else numbers[label]


class ClassTally:
    """Consistency and accuracy by class of the data."""

    def __init__(self, protocol: ShiftProtocol, labelled: bool, numbers: list[int] | None = None) -> None:
        self.protocol, self.labelled, self.numbers = protocol, labelled, numbers
        self.sums: dict[int, np.ndarray] = {}  # images, agreement, right

    def add(self, record: Record) -> None:
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
