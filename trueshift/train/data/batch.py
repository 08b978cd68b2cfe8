"""What both ways of feeding a network have in common: batches, normalised and on the device."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One pass of one process.

    Args:
        labels: a class for each picture, or for each of its pixels.
        indices: of its pictures in the data.
        unreadable: pictures that could not be read, with the reason; others stand in for them.
    """

    images: Float[Tensor, "B 3 H W"]
    labels: Int[Tensor, "B ..."]
    indices: np.ndarray
    unreadable: list[str] = field(default_factory=list)


@runtime_checkable
class Feed(Protocol):
    """Gives a process its share of an epoch, from any step on."""

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The passes of this process."""
        ...


@dataclass(frozen=True)
class Share:
    """Which of the processes this one is."""

    rank: int = 0
    processes: int = 1
