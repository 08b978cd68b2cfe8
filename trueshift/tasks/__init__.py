"""Whole tasks on the backbones: segmentation with UperNet."""

from ..models.hub import from_pretrained
from .convert import adapt, from_smp, revert
from .upernet import UperNet, UperNetConfig

__all__ = ["UperNet", "UperNetConfig", "adapt", "from_pretrained", "from_smp", "revert"]
