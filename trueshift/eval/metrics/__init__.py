"""Metrics: consistency, accuracy, mean IoU, and their intervals."""

from .consistency import (
    BitExactFraction,
    FlickerRate,
    LargestLogitChange,
    MeanIoU,
    SegmentationConsistency,
    ShiftConsistency,
    TopOne,
    WorstCaseAccuracy,
    WorstCaseConsistency,
)

__all__ = [
    "BitExactFraction", "FlickerRate", "LargestLogitChange", "MeanIoU", "SegmentationConsistency", "ShiftConsistency",
    "TopOne", "WorstCaseAccuracy", "WorstCaseConsistency",
]  # fmt: skip
