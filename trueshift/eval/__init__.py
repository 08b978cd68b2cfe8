"""Measure how much a model's answers depend on where the image lies."""

from .audit import run_audit
from .evaluate import run_evaluation
from .intervals import wilson_interval
from .loading import WeightsUnavailable, load_subject
from .measure import measure
from .metrics import (
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
from .motions import Circular, Cropped, ZeroPadded
from .protocols import PROTOCOLS, SUITES, Protocol, find_protocols
from .records import Answers, ImageRecord, PixelAnswers, SceneRecord
from .scene_reading import read_scenes
from .scene_tally import SceneTally
from .segmentation import measure_segmentation
from .settings import AuditSettings, EvalSettings
from .stages import token_errors
from .subject import Request, Subject, adapted_twin, canonical_twin, subject_of
from .views import margin_of

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
