"""Vision Transformers whose output does not change when the image moves."""

from importlib import import_module
from typing import Any

from . import _old_paths, _torchvision

_torchvision.make_importable()
_old_paths.install()

from .canonical import canonicalize, move_boxes, move_points, origin  # noqa: E402
from .criteria import Candidates, Criterion, FixedOffset, InputNorm, LearnedScore, MaxNorm  # noqa: E402
from .explain import explain  # noqa: E402
from .fit import fit  # noqa: E402
from .layers import (  # noqa: E402
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
from .models import create_model, features, list_models  # noqa: E402
from .motion import mean_over_grids, steady, video  # noqa: E402
from .onnx_export import export_onnx  # noqa: E402
from .ops.geometry.grid import TokenGrid, Tokens, place  # noqa: E402
from .ops.geometry.resample import resample  # noqa: E402
from .ops.geometry.shift import circular_shift  # noqa: E402
from .ops.selection.choose import Choice  # noqa: E402
from .tasks import FieldNet, UperNet, adapt, from_pretrained, revert  # noqa: E402

__version__ = "0.1.0.dev0"
_ON_DEMAND = ("data", "eval", "report", "testing", "train")  # imported when first used


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AdaptiveConvMerge", "AdaptiveMerge", "AdaptiveTokenize", "AlignWindows", "Anchor", "Candidates", "Choice",
    "CircularAttention", "CircularConv2d", "CircularRelativePosition", "CosineWindowAttention", "Criterion",
    "FieldNet", "FixedOffset", "InputNorm", "LearnedScore", "MaxNorm", "TokenGrid", "Tokens", "UperNet",
    "WindowAttention", "adapt", "canonicalize", "circular_shift", "create_model", "explain", "export_onnx", "features",
    "fit", "from_pretrained", "list_models", "mean_over_grids", "move_boxes", "move_points", "origin", "place",
    "resample", "revert", "steady", "video",
]  # fmt: skip
