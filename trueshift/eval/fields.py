"""How well networks follow fields in time: errors of rollouts, how they move, and the pattern of their patches."""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..data.fields import FieldPairs, FieldStatistics, open_fields
from ..layers.checks import check_size
from ..models.hub import check_path
from ..ops.geometry.shift import IMAGE_DIMS, Pair, circular_shift, pair
from ..tasks.fields import ARCHITECTURE, FieldNet
from ..utils.provenance import circumstances
from .models.eval_model import in_precision
from .options import EvalOptions
from .runner.evaluate import SCHEMA

Step = Callable[[Tensor], Tensor]
STEPS = (1, 10, 50)  # of rollouts, where nothing else is asked for
_LARGEST = 1e4  # deviations: a rollout that grows without end is cut there, so that its error is a number
_BATCH_SIZE = 32  # trajectories
_OPTIONS = ("shifts", "limit", "batch_size", "seed", "device", "precision")  # that apply to fields


def relative_l2(predicted: Float[Tensor, "B C H W"], true: Float[Tensor, "B C H W"]) -> Float[Tensor, " B"]:
    """The norm of the error over that of the truth, of each sample over all channels and points.

    Shift law: does not change when both move together, to rounding.
    """
    error, size = (part.flatten(1).norm(dim=1) for part in (predicted - true, true))
    return error / size.clamp_min(1e-6)


def rollout(net: Step, state: Float[Tensor, "B C H W"], steps: int) -> Iterator[Float[Tensor, "B C H W"]]:
    """What follows from a state after 1, 2, ... ``steps`` steps, each from what the network said before.

    Shift law: that of the network, at every step.
    """
    for _ in range(steps):
        state = net(state)
        yield state


def reached_steps(steps: Sequence[int], times: int) -> list[int]:
    """The lengths of rollouts, in order, that trajectories of so many times reach; refuses a list without one."""
    if any(count < 1 for count in steps):
        raise ValueError(f"steps {list(steps)}: needs lengths of at least 1")
    reached = [count for count in sorted(set(steps)) if count < times]
    if not reached:
        raise ValueError(f"steps {list(steps)}: needs some from 1 to {times - 1}, the longest that {times} times allow")
    return reached


def harmonic_share(fields: Float[Tensor, "B C H W"], patch: int | Pair) -> float:
    """The share of a field's variance in patterns that repeat with every patch: a checkerboard of patches.

    Those are waves whose numbers along both axes are multiples of the number of patches; the mean is left out.

    Shift law: does not change, to rounding.
    """
    pattern, whole = _pattern_energies(fields, patch)
    return float(pattern / whole.clamp_min(1e-300))


def _pattern_energies(fields: Float[Tensor, "B C H W"], patch: int | Pair) -> Float[Tensor, "2"]:
    """The energy of the pattern and that of the whole field, summed over a batch."""
    check_size(tuple(fields.shape[2:]), pair(patch))
    power = torch.fft.fft2(fields.double()).abs().square().sum((0, 1))
    power[0, 0] = 0
    rows, columns = (length // step for length, step in zip(power.shape, pair(patch), strict=True))
    return torch.stack([power[::rows, ::columns].sum(), power.sum()])


def spectrum(fields: Float[Tensor, "B C H W"]) -> Float[Tensor, " waves"]:
    """The energy (mean square) of fields by wave number: 0, 1, ... waves per shorter side, in any direction.

    Points are as far apart along rows as along columns. Wave number k counts lengths of the wave vector from k - 1/2 up
    to k + 1/2: rings that are as wide as the coarser of the two spacings, so that none lacks the waves of one side. The
    mean is alone at 0; waves longer than the shorter side count as 1. The sum is the fields' mean square.

    Shift law: does not change, to rounding.
    """
    power = torch.fft.fft2(fields.double(), norm="forward").abs().square().mean((0, 1))
    like = {"dtype": power.dtype, "device": power.device}
    rows, columns = (torch.fft.fftfreq(length, **like) * min(power.shape) for length in power.shape)
    waves = ((rows.square()[:, None] + columns.square()).sqrt() + 0.5).long().clamp_min(1)
    waves[0, 0] = 0
    return power.new_zeros(int(waves.max()) + 1).index_add_(0, waves.flatten(), power.flatten())


@torch.no_grad()
def measure_fields(
    net: Step,
    pairs: FieldPairs,
    statistics: FieldStatistics,
    patches: Sequence[int],
    steps: Sequence[int] = STEPS,
    shifts: int = 4,
    batch_size: int = 32,
    limit: int = 0,
    device: torch.device | str = "cpu",
    seed: int = 0,
    circular: str = "both",
) -> dict[str, Any]:
    """Measure a network in evaluation mode on trajectories; states are normalized by the training split's statistics.

    Args:
        net: from states ``[B, C, H, W]`` to the next ones.
        patches: points along the sides of the network's tokens, by stage, for their patterns.
        steps: lengths of rollouts from the first state on; those that the trajectories do not reach are left out.
        shifts: random circular shifts of each batch under which rollouts are compared.
        limit: trajectories at most; 0 for all.
        circular: ``"width"`` to shift columns alone, for maps of the globe.

    Returns:
        relative_l2: the mean relative error after some steps of a rollout, by their number.
        one_step_l2: that of one step from every state but the last.
        persistence_l2: that of a network which repeats its input, for comparison.
        shift_error: the largest difference between the rollout of a rolled state and the rolled rollout, by steps.
        harmonics: the share of variance in the pattern of the patches, by their size: of one step's error, of the
            predicted change and of the true one; over all trajectories at a time, the mean over times.
        spectrum: energy by wave number, by steps: of the rollout and of the truth; see :func:`spectrum`.
    """
    step = bounded(net)
    states, generator = pairs.states[: limit or None], torch.Generator().manual_seed(seed)
    wanted = reached_steps(steps, states.shape[1])
    if circular not in ("both", "width"):
        raise ValueError(f"circular {circular!r}: needs 'both' or 'width'")
    errors: dict[str, list[Tensor]] = defaultdict(list)  # by the number of steps, or by name
    apart = dict.fromkeys(map(str, wanted), 0.0)
    waves: dict[str, list[Tensor]] = defaultdict(list)
    kinds = ("error", "predicted_change", "true_change")
    patterns = torch.zeros(len(kinds), len(patches), states.shape[1] - 1, 2, dtype=torch.float64)  # energies
    for first in range(0, len(states), batch_size):
        known = torch.from_numpy(states[first : first + batch_size].astype("float32")).to(device)
        true = statistics.normalize(known)
        for time, (now, following) in enumerate(pairwise(true.unbind(1))):
            said = step(now)
            errors["one_step_l2"].append(relative_l2(said, following))
            errors["persistence_l2"].append(relative_l2(now, following))
            for kind, field in enumerate((said - following, said - now, following - now)):
                for at, patch in enumerate(patches):
                    patterns[kind, at, time] += _pattern_energies(field, patch).cpu()
        start, size = true[:, 0], torch.tensor([1 if circular == "width" else true.shape[-2], true.shape[-1]])
        offsets = [(torch.rand(len(true), 2, generator=generator) * size).long().to(true.device) for _ in range(shifts)]
        moving = [rollout(step, circular_shift(start, offset, IMAGE_DIMS), wanted[-1]) for offset in offsets]
        for count, (said, *moved) in enumerate(zip(rollout(step, start, wanted[-1]), *moving, strict=True), 1):
            if count not in wanted:
                continue
            after, truth = str(count), true[:, count]
            errors[after].append(relative_l2(said, truth))
            waves[after].append(torch.stack([spectrum(said), spectrum(truth)]) * len(true) / len(states))
            for offset, other in zip(offsets, moved, strict=True):
                difference = (other - circular_shift(said, offset, IMAGE_DIMS)).abs().max()
                apart[after] = max(apart[after], float(difference))
    pattern, whole = patterns.unbind(3)
    shares = (pattern / whole.clamp_min(1e-300)).mean(2).tolist()
    means = {key: float(torch.cat(values).double().mean()) for key, values in errors.items()}
    return {
        "trajectories": len(states),
        "relative_l2": {after: means[after] for after in apart},
        **{key: means[key] for key in ("one_step_l2", "persistence_l2")},
        "shift_error": apart,
        "harmonics": {
            kind: dict(zip(map(str, patches), row, strict=True)) for kind, row in zip(kinds, shares, strict=True)
        },
        "spectrum": {
            after: dict(zip(("predicted", "true"), torch.stack(parts).sum(0).tolist(), strict=True))
            for after, parts in waves.items()
        },
    }


def bounded(net: Step) -> Step:
    """Its output in float32, finite; elementwise, so the shift law stays."""
    return lambda x: net(x).float().nan_to_num(_LARGEST).clamp(-_LARGEST, _LARGEST)


def is_field_net(model: str) -> bool:
    """Whether a name is a folder of ``FieldNet.save_pretrained``; a path that leads nowhere is refused."""
    check_path(model)
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
        options: those that apply to fields; the limit takes the first trajectories.
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
        pairs.check_variables(model.name, model.net.pretrained_cfg.get("variables", []))
        check_size(pairs.size, model.net.size_multiple, f"{pairs.title} does not fit {model.name}: ")
        apart = np.subtract([model.statistics.mean, model.statistics.std], [first.mean, first.std]) / first.std
        if np.abs(apart).max() > 1e-3:
            raise ValueError(f"{model.name} is normalized unlike {models[0].name}: needs the same training split")
