"""Networks for fields on a data set: their rollouts in numbers and, for an audit, one of them as maps."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...data.fields import FieldPairs, FieldStatistics, open_fields
from ...layers.tokenize import check_size
from ...ops.geometry.shift import IMAGE_DIMS, circular_shift
from ...tasks.fields import ARCHITECTURE, FieldNet
from ...utils.provenance import circumstances
from ..fields import STEPS, bounded, measure_fields, reached_steps, rollout
from ..models.eval_model import in_precision
from ..options import EvalOptions
from .evaluate import SCHEMA

_BATCH_SIZE = 32  # trajectories
_OPTIONS = ("shifts", "limit", "batch_size", "seed", "device", "precision")  # that apply to fields


def is_field_net(model: str) -> bool:
    """Whether a name is a folder of ``FieldNet.save_pretrained``."""
    try:
        config = json.loads((Path(model) / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("architecture") == ARCHITECTURE


@dataclass(frozen=True)
class FieldModel:
    """A network for fields, with the statistics of the split that it was trained on."""

    name: str
    net: FieldNet
    statistics: FieldStatistics

    @property
    def patches(self) -> list[int]:
        """Points along the sides of tokens, by stage."""
        return [stage["reduction"] for stage in self.net.encoder.feature_info]


def run_field_evaluation(
    folders: Sequence[str],
    data: str | Path,
    split: str = "test",
    options: EvalOptions | None = None,
    steps: Sequence[int] = STEPS,
) -> dict[str, Any]:
    """Measure networks on the same fields and shifts, see :func:`~trueshift.eval.measure_fields`; as plain data.

    Args:
        folders: of ``FieldNet.save_pretrained``, with mean and deviation of the training split, as ``trueshift train``
            writes them.
        data: as for :func:`~trueshift.data.open_fields`.
        steps: lengths of rollouts; those that the trajectories do not reach are left out, and named in the result.
    """
    options = options or EvalOptions()
    _check(options)
    models, pairs = [_load(folder) for folder in folders], open_fields(data, split)
    _check_fit(models, pairs)
    pairs = pairs.take(slice(options.limit)) if 0 < options.limit < len(pairs.states) else pairs
    pairs.statistics()  # refuses what is not finite
    count, times = pairs.states.shape[:2]
    reached = reached_steps(steps, times)
    asked = {key: value for key, value in asdict(options).items() if key in _OPTIONS}
    asked |= {
        "batch_size": options.batch_size or _BATCH_SIZE,
        "circular": "width" if any(model.net.circular == "width" for model in models) else "both",
    }
    given = {key: asked[key] for key in ("shifts", "batch_size", "device", "seed", "circular")}
    measured = []
    for model in models:
        step = in_precision(model.net.to(options.device), options)
        measured.append(measure_fields(step, pairs, model.statistics, model.patches, reached, **given))
    return {
        "schema": SCHEMA,
        **circumstances(options.seed),
        "task": "fields",
        "settings": asked,
        "data": {
            "title": pairs.title,
            "split": split,
            "trajectories": count,
            "times": times,
            "channels": pairs.channels,
            "size": list(pairs.size),
        },
        "steps": reached,
        "steps_left_out": sorted(set(steps) - set(reached)),  # longer than the trajectories
        "models": [
            {
                "name": model.name,
                "title": model.net.title,
                "parameters": sum(weight.numel() for weight in model.net.parameters()),
                "patches": model.patches,
                **asdict(model.statistics),
                "measured": found,
            }
            for model, found in zip(models, measured, strict=True)
        ],
    }


@torch.no_grad()
def example_rollouts(result: dict[str, Any], folders: Sequence[str], data: str | Path) -> dict[str, Any]:
    """What the networks of a result make of the first trajectory, normalized: states ``[time, C, H, W]``.

    Returns:
        true: the trajectory.
        models: for each, the rollout (``predicted``) and its difference (``apart``) from the rollout of the state that
            was rolled by half its sides and one point more, rolled back.
    """
    asked, steps = result["settings"], result["steps"][-1]
    options, models = EvalOptions(**{key: asked[key] for key in _OPTIONS}), [_load(folder) for folder in folders]
    states = open_fields(data, result["data"]["split"]).states[0, : steps + 1]
    true = models[0].statistics.normalize(torch.from_numpy(states.astype(np.float32)))
    rows, columns = (side // 2 + 1 for side in true.shape[2:])
    offset, made = torch.tensor([[rows * (asked["circular"] == "both"), columns]]), []
    for model in models:
        step = bounded(in_precision(model.net.to(options.device), options))
        said, moved = (
            torch.cat([start, *(state.cpu() for state in rollout(step, start.to(options.device), steps))])
            for start in (true[:1], circular_shift(true[:1], offset, IMAGE_DIMS))
        )
        back = circular_shift(moved, -offset.expand(len(moved), 2), IMAGE_DIMS)
        made.append({"predicted": said.numpy(), "apart": (back - said).numpy()})
    return {"true": true.numpy(), "models": made}


def _load(folder: str) -> FieldModel:
    """A network whose output can be its next input, with what normalizes it."""
    if not is_field_net(folder):
        raise ValueError(f"{folder} holds no network for fields: needs a folder of FieldNet.save_pretrained")
    net = FieldNet.from_pretrained(folder)
    if net.in_chans != net.out_chans:
        raise ValueError(f"{folder} has {net.in_chans} channels in and {net.out_chans} out: a rollout needs as many")
    mean, std = (net.pretrained_cfg.get(key, ()) for key in ("mean", "std"))
    if not len(mean) == len(std) == net.in_chans or min(std) <= 0:
        raise ValueError(
            f"{folder} does not say how to normalize its {net.in_chans} channels: needs mean and std of each over the "
            "training split in pretrained_cfg, as `trueshift train` saves them"
        )
    return FieldModel(Path(folder).as_posix(), net, FieldStatistics(tuple(mean), tuple(std)))


def _check(options: EvalOptions) -> None:
    """Refuse what has no meaning for fields."""
    given = [each.name for each in fields(options) if getattr(options, each.name) != each.default]
    if wrong := [f"--{name.replace('_', '-')}" for name in given if name not in _OPTIONS]:
        raise ValueError(f"{', '.join(wrong)}: for images; a network for fields needs none of these")
    if not options.shifts:
        raise ValueError("0 shifts: rollouts are compared under random ones; needs at least 2")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("fields are measured in one process: needs no torchrun")


def _check_fit(models: Sequence[FieldModel], pairs: FieldPairs) -> None:
    """Refuse fields that a network does not take, and networks whose errors have different units."""
    first = models[0].statistics
    for model in models:
        if pairs.channels != model.net.in_chans:
            raise ValueError(
                f"{pairs.title} has {pairs.channels} channels: needs the {model.net.in_chans} of {model.name}"
            )
        try:
            check_size(pairs.size, model.net.size_multiple)
        except ValueError as error:
            raise ValueError(f"{pairs.title} does not fit {model.name}: {error}") from error
        apart = np.subtract([model.statistics.mean, model.statistics.std], [first.mean, first.std]) / first.std
        if np.abs(apart).max() > 1e-3:
            raise ValueError(f"{model.name} is normalized unlike {models[0].name}: needs the same training split")
