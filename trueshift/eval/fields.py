"""How well a network follows fields in time: errors of rollouts, how they move, and the pattern of its patches."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..data.fields import FieldPairs, FieldStatistics
from ..layers.tokenize import check_size
from ..ops.geometry.shift import IMAGE_DIMS, Pair, circular_shift, pair

Step = Callable[[Tensor], Tensor]
STEPS = (1, 10, 50)  # of rollouts, where nothing else is asked for
_LARGEST = 1e4  # deviations: a rollout that grows without end is cut there, so that its error is a number


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
    check_size(tuple(fields.shape[2:]), pair(patch))
    power = torch.fft.fft2(fields.double()).abs().square().mean((0, 1))
    power[0, 0] = 0
    rows, columns = (length // step for length, step in zip(power.shape, pair(patch), strict=True))
    return float(power[::rows, ::columns].sum() / power.sum().clamp_min(1e-300))


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
            predicted change and of the true one.
        spectrum: energy by wave number, by steps: of the rollout and of the truth; see :func:`spectrum`.
    """
    step = bounded(net)
    states, generator = pairs.states[: limit or None], torch.Generator().manual_seed(seed)
    wanted = reached_steps(steps, states.shape[1])
    if circular not in ("both", "width"):
        raise ValueError(f"circular {circular!r}: needs 'both' or 'width'")
    errors: dict[int, list[Tensor]] = {count: [] for count in wanted}
    apart = dict.fromkeys(wanted, 0.0)
    waves: dict[int, list[Tensor]] = {count: [] for count in wanted}
    single: dict[str, list[Tensor]] = {"one_step_l2": [], "persistence_l2": []}
    shares: dict[str, dict[int, list[float]]] = {
        key: {patch: [] for patch in patches} for key in ("error", "predicted_change", "true_change")
    }
    for first in range(0, len(states), batch_size):
        known = torch.from_numpy(states[first : first + batch_size].astype("float32")).to(device)
        true = statistics.normalize(known)
        for now, following in zip(true.unbind(1), true.unbind(1)[1:], strict=False):
            said = step(now)
            single["one_step_l2"].append(relative_l2(said, following))
            single["persistence_l2"].append(relative_l2(now, following))
            found = {"error": said - following, "predicted_change": said - now, "true_change": following - now}
            for key, by_patch in shares.items():
                for patch, values in by_patch.items():
                    values.append(harmonic_share(found[key], patch))
        start, size = true[:, 0], torch.tensor([1 if circular == "width" else true.shape[-2], true.shape[-1]])
        offsets = [(torch.rand(len(true), 2, generator=generator) * size).long().to(true.device) for _ in range(shifts)]
        moving = [rollout(step, circular_shift(start, offset, IMAGE_DIMS), wanted[-1]) for offset in offsets]
        for count, (said, *moved) in enumerate(zip(rollout(step, start, wanted[-1]), *moving, strict=True), 1):
            if count not in apart:
                continue
            errors[count].append(relative_l2(said, true[:, count]))
            waves[count].append(torch.stack([spectrum(said), spectrum(true[:, count])]) * len(true) / len(states))
            for offset, other in zip(offsets, moved, strict=True):
                difference = (other - circular_shift(said, offset, IMAGE_DIMS)).abs().max()
                apart[count] = max(apart[count], float(difference))
    return {
        "trajectories": len(states),
        "relative_l2": {str(count): _mean(values) for count, values in errors.items()},
        **{key: _mean(values) for key, values in single.items()},
        "shift_error": {str(count): value for count, value in apart.items()},
        "harmonics": {
            key: {str(patch): sum(values) / len(values) for patch, values in by_patch.items()}
            for key, by_patch in shares.items()
        },
        "spectrum": {
            str(count): dict(zip(("predicted", "true"), torch.stack(parts).sum(0).tolist(), strict=True))
            for count, parts in waves.items()
        },
    }


def bounded(net: Step) -> Step:
    """Its output in float32, finite; elementwise, so the shift law stays."""
    return lambda x: net(x).float().nan_to_num(_LARGEST).clamp(-_LARGEST, _LARGEST)


def _mean(values: list[Tensor]) -> float:
    return float(torch.cat(values).double().mean())
