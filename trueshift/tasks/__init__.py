"""Whole tasks on the backbones: segmentation with UperNet, fields with FieldNet."""

from ..models.hub import from_pretrained
from .convert import adapt, from_smp, revert
from .fields import FieldNet, FieldNetConfig
from .upernet import UperNet, UperNetConfig

__all__ = ["FieldNet", "FieldNetConfig", "UperNet", "UperNetConfig", "adapt", "from_pretrained", "from_smp", "revert"]
