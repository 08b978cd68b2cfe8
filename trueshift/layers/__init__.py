"""The adaptive modules: each a small network layer that moves with the image."""

from .align import AlignWindows
from .anchor import Anchor
from .attention import CircularAttention, CircularRelativePosition, CosineWindowAttention, WindowAttention
from .conv import CircularConv2d
from .merge import AdaptiveConvMerge, AdaptiveMerge
from .tokenize import AdaptiveTokenize

__all__ = [
    "AdaptiveConvMerge",
    "AdaptiveMerge",
    "AdaptiveTokenize",
    "AlignWindows",
    "Anchor",
    "CircularAttention",
    "CircularConv2d",
    "CircularRelativePosition",
    "CosineWindowAttention",
    "WindowAttention",
]
