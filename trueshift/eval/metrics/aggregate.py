"""All metrics of a protocol, from a model's answers to each image."""

from math import isnan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.source import IGNORED
from ..protocols.registry import ShiftProtocol
from ..protocols.shifts import Path
from ..runner.records import LabelAnswers, PixelAnswers, Record
from . import consistency as metrics

_AT_ONCE = 64  # images: a metric's update costs as much for one as for a hundred


def compared(protocol: ShiftProtocol) -> slice:
    """The views that a protocol compares: the shifted ones, or all, the unshifted one first."""
    return slice(None) if protocol.against_unshifted else slice(1, None)


def _labels(answers: LabelAnswers, protocol: ShiftProtocol) -> Tensor:
    """The labels that are compared, ``[1, K]``."""
    return torch.from_numpy(answers.labels[compared(protocol)])[None]


def agreement(answers: LabelAnswers, protocol: ShiftProtocol) -> float:
    """How far the answers to one image agree, 0 to 1."""
    measure = metrics.agreement_with_first if protocol.against_unshifted else metrics.pair_agreement
    return float(measure(_labels(answers, protocol)))


class Tally:
    """All metrics of one protocol; subclasses add those of their task."""

    def __init__(self, protocol: ShiftProtocol, **task_metrics: Any) -> None:
        self.protocol = protocol
        self.rates = {**task_metrics, "bit_exact": metrics.BitExactFraction()}
        self.largest_change = metrics.LargestLogitChange()
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
        answers, labels = (list(each) for each in zip(*self.waiting, strict=True))
        self.rates["bit_exact"].update(
            torch.from_numpy(np.stack([each.exact[each.first_shifted :] for each in answers]))
        )
        self.largest_change.update(torch.from_numpy(np.stack([each.change[each.first_shifted :] for each in answers])))
        self._count(answers, labels)
        self.waiting.clear()

    def _count(self, answers: list[Any], labels: list[int | None]) -> None:
        raise NotImplementedError

    def summary(self) -> dict[str, Any]:
        """All metrics, over all processes; None where there is nothing to report."""
        self._flush()
        result: dict[str, Any] = {name: rate_of(metric) for name, metric in self.rates.items()}
        with self.largest_change.synced():
            result["largest_logit_change"] = float(self.largest_change.largest) if result["bit_exact"] else None
        return result


class LabelTally(Tally):
    """Metrics of a classifier.

    Args:
        labelled: whether labels of the images are the model's own classes, so that accuracy has a meaning.
        numbers: the model's number of each label; without them, the label itself.
    """

    def __init__(self, protocol: ShiftProtocol, labelled: bool, numbers: list[int] | None = None) -> None:
        path = isinstance(protocol.motion, Path)
        super().__init__(
            protocol,
            **({"flicker": metrics.FlickerRate(), "longest_run": metrics.LongestRun()} if path else {}),
            top1=metrics.TopOne(),
            worst_case=metrics.WorstCaseConsistency(),
            worst_case_accuracy=metrics.WorstCaseAccuracy(),
            consistency=metrics.ShiftConsistency(against_first=protocol.against_unshifted),
        )
        self.labelled, self.numbers = labelled, numbers

    def _count(self, answers: list[LabelAnswers], labels: list[int | None]) -> None:
        views = torch.cat([_labels(each, self.protocol) for each in answers])
        for name in {"consistency", "worst_case", "flicker", "longest_run"} & self.rates.keys():
            self.rates[name].update(views)
        known = [at for at, label in enumerate(labels) if self.labelled and label is not None]
        if known:
            target = torch.tensor([model_label(labels[at], self.numbers) for at in known])
            self.rates["top1"].update(torch.tensor([int(answers[at].labels[0]) for at in known]), target)
            self.rates["worst_case_accuracy"].update(views[known], target)


class PixelTally(Tally):
    """Metrics of a segmentation model, which gives each pixel one of ``num_classes`` labels."""

    def __init__(self, protocol: ShiftProtocol, num_classes: int) -> None:
        super().__init__(protocol, consistency=metrics.SegmentationConsistency())
        self.iou = metrics.MeanIoU(num_classes, IGNORED)

    def _count(self, answers: list[PixelAnswers], labels: list[int | None]) -> None:
        self.rates["consistency"].update(torch.tensor([each.agreement for each in answers], dtype=torch.float64))
        for each in answers:
            if each.counts is not None:
                counts = np.zeros((self.iou.num_classes, 3), np.int64)
                counts[each.counts[:, 0]] = each.counts[:, 1:]
                self.iou.add(torch.from_numpy(counts))

    def summary(self) -> dict[str, Any]:
        """All metrics, with intersection over union and accuracy of pixels."""
        rates = super().summary()
        by_class = [_known(share) for share in self.iou.by_class().tolist()]
        occurring = [share for share in by_class if share is not None]
        return {
            "mean_iou": sum(occurring) / len(occurring) if occurring else None,
            "pixel_accuracy": _known(self.iou.pixel_accuracy()),
            "iou_by_class": by_class if occurring else None,
            **rates,
        }


def rate_of(metric: Any) -> dict[str, float] | None:
    """A rate with its interval, over all processes; None without any image."""
    rate, images = metric.seen()
    if not images:
        return None
    low, high = metrics.wilson_interval(rate, images)
    return {"rate": rate, "low": low, "high": high, "images": images}


def _known(share: float) -> float | None:
    return None if isnan(share) else share


def model_label(label: int | None, numbers: list[int] | None) -> int | None:
    """The model's number for a label of the data."""
    return label if numbers is None or label is None else numbers[label]
