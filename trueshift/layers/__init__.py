"""The adaptive modules: each a small network layer that moves with the image."""

from .attention import AlignWindows, CosineWindowAttention, WindowAttention
from .circular_attention import CircularAttention, CircularRelativePosition
from .merge import AdaptiveConvMerge, AdaptiveMerge, CircularConv2d
from .tokenize import AdaptiveTokenize, Anchor

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
