from . import data as data
from . import eval as eval
from . import report as report
from . import testing as testing
from . import train as train
from .canonical import canonicalize, move_boxes, move_points, origin
from .criteria import Candidates, Criterion, FixedOffset, InputNorm, LearnedScore, MaxNorm, Spot
from .explain import explain
from .fit import fit
from .layers import (
    AdaptiveConvMerge,
    AdaptiveMerge,
    AdaptiveTokenize,
    AlignWindows,
    Anchor,
    CircularAttention,
    CircularConv2d,
    CircularRelativePosition,
    CosineWindowAttention,
    WindowAttention,
)
from .models import create_model, features, list_models
from .motion import mean_over_grids, steady, video
from .onnx_export import export_onnx
from .ops.geometry.grid import TokenGrid, Tokens, place
from .ops.geometry.resample import resample
from .ops.geometry.shift import circular_shift
from .ops.selection.choose import Choice
from .tasks import FieldNet, UperNet, adapt, from_pretrained, revert

__version__: str
__all__ = [
    "AdaptiveConvMerge", "AdaptiveMerge", "AdaptiveTokenize", "AlignWindows", "Anchor", "Candidates", "Choice",
    "CircularAttention", "CircularConv2d", "CircularRelativePosition", "CosineWindowAttention", "Criterion",
    "FieldNet", "FixedOffset", "InputNorm", "LearnedScore", "MaxNorm", "Spot", "TokenGrid", "Tokens", "UperNet",
    "WindowAttention", "adapt", "canonicalize", "circular_shift", "create_model", "explain", "export_onnx", "features",
    "fit", "from_pretrained", "list_models", "mean_over_grids", "move_boxes", "move_points", "origin", "place",
    "resample", "revert", "steady", "video",
]  # fmt: skip
