"""Weights of Swin from elsewhere: timm's, and those that its authors published."""

from collections.abc import Mapping
from typing import Any

from timm.models.swin_transformer import checkpoint_filter_fn
from torch import nn


def read_swin_weights(weights: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Published or saved weights as a model needs them: under timm's names, tables interpolated to its windows.

    timm takes the window of every table for a square: one that fits a rectangle already is kept from it.
    """
    own = model.state_dict()
    tables = [key for key in weights if key in own and key.endswith("relative_position_bias_table")]
    fitting = {key: weights[key] for key in tables if weights[key].shape == own[key].shape}
    others = {key: value for key, value in weights.items() if key not in fitting}
    return {**checkpoint_filter_fn(others, model), **fitting}
