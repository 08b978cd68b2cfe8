"""What a run learns: the loop asks a task for its data, network and loss, and what it measures."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .data.batch import Batch, Feed, Share
from .data.sampler import BatchOrder


@dataclass(frozen=True)
class Measured:
    """What was found on the pictures that are not learned from.

    Args:
        score: by which the best weights are known, 0 to 1.
        values: for the log.
        told: for the screen.
    """

    score: float
    values: dict[str, float]
    told: str


@dataclass(frozen=True)
class Surroundings:
    """Where a measurement is made.

    Args:
        autocast: the precision of the run.
        stop: whether the run was asked to stop.
        left_out: takes the pictures that could not be read, with the reason.
    """

    share: Share
    device: torch.device
    autocast: Callable[[], torch.autocast]
    stop: Callable[[], bool]
    left_out: set[str]


@runtime_checkable
class TaskData(Protocol):
    """Two sources with the same classes."""

    @property
    def train(self) -> Any:
        """What is learned from."""
        ...

    @property
    def test(self) -> Any:
        """What is measured on."""
        ...

    @property
    def classes(self) -> list[str]:
        """What can be answered."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """What must stay the same for a checkpoint to go on."""
        ...


@runtime_checkable
class Task(Protocol):
    """Classification or segmentation. Made with its data opened; then told the order, and asked to build a network."""

    score_name: str

    @property
    def data(self) -> TaskData:
        """What is learned from and measured on."""
        ...

    def check_order(self, order: BatchOrder) -> None:
        """Refuse batches that cannot be learned from."""
        ...

    def build_network(self) -> nn.Module:
        """What is trained; random numbers were seeded before."""
        ...

    def start(self, order: BatchOrder, share: Share, device: torch.device) -> Feed:
        """What is learned from, once the network is there."""
        ...

    def input_told(self) -> str:
        """Size of the input, and how it is fed, in words."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean over a batch."""
        ...

    def measure(self, model: nn.Module, where: Surroundings) -> Measured | None:
        """On the pictures that are not learned from, over all processes; None if asked to stop on the way."""
        ...

    def write(self, model: nn.Module, folder: Path) -> Path:
        """The network as a folder that ``trueshift eval`` and ``from_pretrained`` read."""
        ...
