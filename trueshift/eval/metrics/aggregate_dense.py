"""Count a segmentation model's answers: every measure of one protocol, over all scenes."""

from math import isnan
from typing import Any

import numpy as np
import torch

from ...data.source import IGNORED
from ..protocols.registry import Protocol
from ..runner.records import SceneRecord
from .aggregate import rate_of
from .consistency import BitExactFraction, LargestLogitChange, MeanIoU, SegmentationConsistency


class SceneTally:
    """All measures of one protocol.

    Args:
        protocol: which answers of a record are counted.
        num_classes: labels that a pixel can get.
    """

    def __init__(self, protocol: Protocol, num_classes: int) -> None:
        self.protocol = protocol
        self.iou = MeanIoU(num_classes, IGNORED)
        self.consistency = SegmentationConsistency()
        self.bit_exact = BitExactFraction()
        self.largest_change = LargestLogitChange()
        self.images = 0

    def add(self, record: SceneRecord) -> None:
        """Count one scene."""
        said = record.pixels[self.protocol.name]
        self.images += 1
        self.consistency.update(torch.tensor([said.agreement], dtype=torch.float64))
        self.bit_exact.update(torch.from_numpy(said.exact)[None])
        self.largest_change.update(torch.from_numpy(said.change)[None])
        if said.counts is not None:
            counts = np.zeros((self.iou.num_classes, 3), np.int64)
            counts[said.counts[:, 0]] = said.counts[:, 1:]
            self.iou.add(torch.from_numpy(counts))

    def summary(self) -> dict[str, Any]:
        """All measures; None where there is nothing to tell. Processes meet here."""
        by_class = [_known(share) for share in self.iou.by_class().tolist()]
        occurring = [share for share in by_class if share is not None]
        with self.largest_change.sync_context(dist_sync_fn=self.largest_change.dist_sync_fn):
            largest = float(self.largest_change.largest)
        return {
            "mean_iou": sum(occurring) / len(occurring) if occurring else None,
            "pixel_accuracy": _known(self.iou.pixel_accuracy()),
            "iou_by_class": by_class if occurring else None,
            "consistency": rate_of(self.consistency),
            "bit_exact": rate_of(self.bit_exact),
            "largest_logit_change": largest,
        }


def _known(share: float) -> float | None:
    return None if isnan(share) else share
