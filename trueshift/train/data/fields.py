"""Batches of fields: pairs of states, normalized, and rolled together if wanted."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...data.fields import FieldPairs, FieldStatistics, open_fields
from ...ops.geometry.shift import IMAGE_DIMS, circular_shift
from ...utils.rng import uniform
from ..config import TrainConfig
from .on_device import LARGEST

_ROWS, _COLUMNS = 20, 21  # streams of random numbers, beside those of images


@dataclass(frozen=True)
class FieldData:
    """Pairs to learn from and to measure on, with the statistics of the former."""

    train: FieldPairs
    test: FieldPairs

    @cached_property
    def statistics(self) -> FieldStatistics:
        """By which both are normalized."""
        return self.train.statistics()

    @property
    def small(self) -> bool:
        """Whether a device can hold all states."""
        return max(pairs.states.size for pairs in (self.train, self.test)) * 4 <= LARGEST

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change when a checkpoint is resumed."""
        return {"pairs": len(self.train), "channels": self.train.channels, "size": list(self.train.size)}


def open_field_data(config: TrainConfig) -> FieldData:
    """Open the fields of a configuration, and report what is wrong with them before the first epoch."""
    wanted = config.data
    train = open_fields(wanted.path, wanted.train_split)
    if wanted.holdout:
        count = train.states.shape[0]
        out = max(1, round(count * wanted.holdout))
        if out >= count:
            raise ValueError(
                f"{train.title} has {count} trajectories: holding out {wanted.holdout:g} leaves none; needs more, or "
                "the last times in a file of their own, such as test.npy"
            )
        train, test = train.take(slice(count - out)), train.take(slice(count - out, None))
    else:
        test = open_fields(wanted.path, wanted.test_split)
        if np.array_equal(train.states[:1], test.states[:1]):
            raise ValueError(
                f"{wanted.path} has the same fields to learn from and to measure on: needs train.npy and test.npy in a "
                "folder, or --data.holdout 0.2 to keep a part of the trajectories for that"
            )
    test.check_variables(train.title, train.variables)
    if (train.channels, train.size) != (test.channels, test.size):
        shapes = f"{train.states.shape[2:]} to learn from and {test.states.shape[2:]} to measure on"
        raise ValueError(f"states of {shapes}: needs the same channels and size")
    test.statistics()  # refuses what is not finite
    return FieldData(train.limited(wanted.limit), test.limited(config.evaluate.limit))


class FieldReader:
    """Normalized pairs on a device, by index: from memory there, or read from the file each time.

    Args:
        rolls: whether each pair is rolled to learn from, another way in each epoch; ``"width"`` for columns alone.
        seed: of the rolls.
    """

    def __init__(
        self,
        pairs: FieldPairs,
        statistics: FieldStatistics,
        device: torch.device,
        on_device: bool,
        rolls: bool | str = False,
        seed: int = 0,
    ) -> None:
        self.pairs, self.statistics, self.device, self.rolls, self.seed = pairs, statistics, device, rolls, seed
        self.held: Tensor | None = None
        if on_device:
            states = torch.from_numpy(np.array(pairs.states, np.float32)).to(device)
            self.held = statistics.normalize(states)

    def __call__(self, indices: np.ndarray) -> tuple[Float[Tensor, "B C H W"], Float[Tensor, "B C H W"]]:
        """States, and the next ones."""
        if self.held is not None:
            trajectory, time = np.divmod(self.pairs.indices[indices], self.held.shape[1] - 1)
            at = torch.from_numpy(np.stack([trajectory, time])).to(self.device, non_blocking=True)
            return self.held[at[0], at[1]], self.held[at[0], at[1] + 1]
        now, following = (torch.from_numpy(part).to(self.device) for part in self.pairs.batch(indices))
        return self.statistics.normalize(now), self.statistics.normalize(following)

    def rolled(self, epoch: int, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """The same to learn from in an epoch, rolled together if wanted."""
        now, following = self(indices)
        if not self.rolls:
            return now, following
        offset = self.offsets(epoch, indices).to(self.device, non_blocking=True)
        return circular_shift(now, offset, IMAGE_DIMS), circular_shift(following, offset, IMAGE_DIMS)

    def offsets(self, epoch: int, indices: np.ndarray) -> Int64[Tensor, "B 2"]:
        """By how many rows and columns each pair is rolled."""
        rows, columns = self.pairs.size
        drawn = uniform(self.seed, epoch, indices[:, None], np.array([_ROWS, _COLUMNS]))
        return torch.from_numpy((drawn * (1 if self.rolls == "width" else rows, columns)).astype(np.int64))
