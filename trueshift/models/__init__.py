"""The four backbones: Swin, SwinV2, CvT and MViTv2, ordinary and adaptive."""

from .backbone import Backbone
from .config import BackboneConfig
from .convert import adapt, revert
from .cvt import Cvt, CvtConfig
from .foreign import features
from .hub import from_pretrained
from .mvit_v2 import MvitV2, MvitV2Config
from .registry import create_model, list_models
from .swin import Swin, SwinConfig, SwinV2, SwinV2Config

__all__ = [
    "Backbone", "BackboneConfig", "Cvt", "CvtConfig", "MvitV2", "MvitV2Config", "Swin", "SwinConfig", "SwinV2",
    "SwinV2Config", "adapt", "create_model", "features", "from_pretrained", "list_models", "revert",
]  # fmt: skip
