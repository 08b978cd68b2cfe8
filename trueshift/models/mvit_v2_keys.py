"""Weights of MViTv2 from elsewhere: timm's, and those that its authors published."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from timm.models.mvitv2 import checkpoint_filter_fn

from .mvit_v2 import MvitV2


def read_mvit_v2_weights(weights: Mapping[str, Any], model: MvitV2) -> dict[str, Any]:
    """Published or saved weights as a model needs them: under timm's names, with position tables as it reads them."""
    if "stages.0.blocks.0.norm1.weight" not in weights:
        # timm's filter renames such weights; it also stretches tables of those that have timm's names already
        sizes = SimpleNamespace(depths=model.config.depths, expand_attn=model.config.expand_attn)
        weights = checkpoint_filter_fn(dict(weights), sizes)
    return model.with_fitting_tables(weights)
