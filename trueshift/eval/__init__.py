"""Measure how much a model's answers depend on where the image lies."""

from .audit.run import run_audit
from .metrics.aggregate_dense import SceneTally
from .metrics.consistency import (
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
from .metrics.intervals import wilson_interval
from .models.eval_model import Request, Subject, adapted_twin, canonical_twin, subject_of
from .models.feature_maps import token_errors
from .models.load import WeightsUnavailable, load_subject
from .protocols.registry import PROTOCOLS, SUITES, Protocol, find_protocols
from .protocols.shifts import Circular, Cropped, ZeroPadded
from .runner.classify import measure
from .runner.evaluate import run_evaluation
from .runner.read_scenes import read_scenes
from .runner.records import Answers, ImageRecord, PixelAnswers, SceneRecord
from .runner.segment import measure_segmentation
from .runner.settings import AuditSettings, EvalSettings
from .runner.view_batches import margin_of

__all__ = [
    "PROTOCOLS",
    "SUITES",
    "Answers",
    "AuditSettings",
    "BitExactFraction",
    "Circular",
    "Cropped",
    "EvalSettings",
    "FlickerRate",
    "ImageRecord",
    "LargestLogitChange",
    "MeanIoU",
    "PixelAnswers",
    "Protocol",
    "Request",
    "SceneRecord",
    "SceneTally",
    "SegmentationConsistency",
    "ShiftConsistency",
    "Subject",
    "TopOne",
    "WeightsUnavailable",
    "WorstCaseAccuracy",
    "WorstCaseConsistency",
    "ZeroPadded",
    "adapted_twin",
    "canonical_twin",
    "find_protocols",
    "load_subject",
    "margin_of",
    "measure",
    "measure_segmentation",
    "read_scenes",
    "run_audit",
    "run_evaluation",
    "subject_of",
    "token_errors",
    "wilson_interval",
]
