from .audit.run import run_audit
from .fields import harmonic_share, measure_fields, relative_l2, rollout, run_field_evaluation, spectrum
from .metrics.aggregate import LabelTally, PixelTally
from .metrics.consistency import (
    BitExactFraction,
    FlickerRate,
    LargestLogitChange,
    LongestRun,
    MeanIoU,
    SegmentationConsistency,
    ShiftConsistency,
    TopOne,
    WorstCaseAccuracy,
    WorstCaseConsistency,
    wilson_interval,
)
from .models.eval_model import EvalModel, adapted_twin, canonical_twin, make_eval_model, steady_twin
from .models.feature_maps import token_errors
from .models.foreign import WeightsUnavailable
from .models.load import load_eval_model
from .options import AuditOptions, EvalOptions
from .protocols.registry import PROTOCOLS, SUITES, ShiftProtocol, find_protocols
from .protocols.shifts import Circular, Cropped, CropsApart, Jitter, Path, SubPixel, ZeroPadded
from .runner.classify import margin_of, measure
from .runner.evaluate import run_evaluation
from .runner.records import LabelAnswers, PixelAnswers, Record
from .runner.segment import measure_segmentation, read_scenes

__all__ = [
    "PROTOCOLS", "SUITES", "AuditOptions", "BitExactFraction", "Circular", "Cropped", "CropsApart", "EvalModel",
    "EvalOptions", "FlickerRate", "Jitter", "LabelAnswers", "LabelTally", "LargestLogitChange", "LongestRun", "MeanIoU",
    "Path", "PixelAnswers", "PixelTally", "Record", "SegmentationConsistency", "ShiftConsistency", "ShiftProtocol",
    "SubPixel", "TopOne", "WeightsUnavailable", "WorstCaseAccuracy", "WorstCaseConsistency", "ZeroPadded",
    "adapted_twin", "canonical_twin", "find_protocols", "harmonic_share", "load_eval_model", "make_eval_model",
    "margin_of", "measure", "measure_fields", "measure_segmentation", "read_scenes", "relative_l2", "rollout",
    "run_audit", "run_evaluation", "run_field_evaluation", "spectrum", "steady_twin", "token_errors", "wilson_interval",
]  # fmt: skip
