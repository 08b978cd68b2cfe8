"""Feature maps of a network's stages, and how much of them changes when the image moves."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...canonical import Canonicalize, canonical_origin
from ...models.backbone import Backbone
from ...ops.geometry.shift import IMAGE_DIMS, circular_shift

StageMaps = Callable[[Float[Tensor, "B C H W"]], list[Float[Tensor, "B D h w"]]]
MOST = 4  # stages shown of a network that has many


def stage_maps(module: Any) -> StageMaps | None:
    """How to get the maps of a network's stages, if there is a way.

    Ours in the network's own frame; timm's by ``forward_intermediates``; transformers' from the hidden states.
    """
    if isinstance(module, Backbone):
        return lambda images: [tokens.values.permute(0, 3, 1, 2) for tokens in module.features(images)]
    if isinstance(module, Canonicalize):  # its network sees the image in a frame that does not move with it
        maps = stage_maps(module.model)
        return maps and (lambda images: maps(circular_shift(images, canonical_origin(images), IMAGE_DIMS)))
    if hasattr(module, "forward_intermediates"):
        return lambda images: _spread(module.forward_intermediates(images, intermediates_only=True))
    if hasattr(module, "config") and hasattr(module.config, "num_labels"):
        return lambda images: _spread(_hidden_maps(module, images))
    return None


def _hidden_maps(module: nn.Module, images: Tensor) -> list[Tensor]:
    output = module(images, output_hidden_states=True)
    hidden = getattr(output, "reshaped_hidden_states", None) or output.hidden_states or ()
    return [as_map for state in hidden if (as_map := _as_map(state)) is not None]


def _as_map(state: Tensor) -> Tensor | None:
    """A hidden state as a map, if its tokens lie on a square, with or without a class token in front."""
    if state.dim() == 4:
        return state
    for extra in (0, 1) if state.dim() == 3 else ():
        side = isqrt(state.shape[1] - extra)
        if side * side == state.shape[1] - extra:
            return state[:, extra:].transpose(1, 2).unflatten(2, (side, side))
    return None


def _spread(maps: list[Tensor]) -> list[Tensor]:
    """At most four of them, evenly spread, the last among them."""
    if len(maps) <= MOST:
        return list(maps)
    return [maps[round((index + 1) * len(maps) / MOST) - 1] for index in range(MOST)]


@dataclass(frozen=True)
class StageError:
    """How the tokens of one stage change under a shift."""

    error: np.ndarray  # [h, w], absolute difference in the channel with the highest energy
    scale: float  # the largest absolute value of that channel
    largest: float  # over all channels


def token_errors(maps: StageMaps, image: Float[Tensor, "C H W"], shift: tuple[int, int] = (1, 1)) -> list[StageError]:
    """The paper's figure on token stability: each stage's tokens after a circular shift beside those before.

    Grids that follow the content may have moved by a whole token, which is no error: of the nine ways to lay one map
    over the other by up to one token, the one with the smallest difference counts, for every model alike.
    """
    with torch.inference_mode():
        # one batch of one size for both, as kernels may round differently at another
        pair = torch.stack([image, torch.roll(image, shift, (1, 2))])
        return [_stage_error(*stage.float()) for stage in maps(pair)]


def _stage_error(before: Tensor, after: Tensor) -> StageError:
    laid = [torch.roll(after, (down, right), (1, 2)) for down in (0, -1, 1) for right in (0, -1, 1)]
    error = min(((before - map).abs() for map in laid), key=lambda difference: float(difference.double().sum()))
    strongest = int(before.double().square().sum((1, 2)).argmax())
    return StageError(error[strongest].cpu().numpy(), float(before[strongest].abs().max()), float(error.max()))
