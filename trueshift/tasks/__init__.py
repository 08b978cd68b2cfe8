"""Whole tasks on the backbones: segmentation with UperNet."""

from .convert import adapt, from_smp, revert
from .hub import from_pretrained
from .upernet import UperNet, UperNetConfig

__all__ = ["UperNet", "UperNetConfig", "adapt", "from_pretrained", "from_smp", "revert"]
