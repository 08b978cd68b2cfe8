"""The task ``fields``: the next state of a simulation from this one, by FieldNet."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from ..eval.fields import relative_l2
from ..layers.tokenize import check_size
from ..models import hub as saving
from ..models.registry import is_ours, resolve_name
from ..tasks.adapted import LIBRARY
from ..tasks.fields import FieldNet, FieldNetConfig
from .config import TrainConfig
from .data.fields import FieldData, FieldFeed, FieldReader, kept_on_device, open_field_data
from .data.loader import Batch
from .data.sampler import BatchOrder
from .network import backbone_arguments
from .task import Measurement, Task


class _RelativeError:
    """The mean relative L2 error."""

    def __init__(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64)

    def update(self, predicted: Tensor, targets: Tensor) -> None:
        self.total += relative_l2(predicted, targets).double().sum().cpu()

    def compute(self, images: int) -> Measurement:
        if dist.is_initialized():
            dist.all_reduce(self.total)
        error = float(self.total / images)
        values = {"relative_l2": error, "images": images}
        return Measurement(max(0.0, 1 - error), values, f"relative L2 {error:.4f}")


class Fields(Task):
    """The next state from this one, both normalized; weights are ranked by 1 - relative L2, at least 0."""

    score_name, protocols_needed = "skill", "none"
    data: FieldData

    def open_data(self) -> FieldData:
        return open_field_data(self.config)

    def check_order(self, order: BatchOrder) -> None:
        """Any batch will do."""

    def build_network(self) -> nn.Module:
        network = build_field_net(self.config, self.data)
        check_size(self.data.train.size, network.size_multiple)
        self.on_device = kept_on_device(self.config, self.data, self.device)
        return network.train()

    def _reader(self, name: str) -> FieldReader:
        return FieldReader(getattr(self.data, name), self.data.statistics, self.device, self.on_device)

    def feed(self, order: BatchOrder) -> FieldFeed:
        self.test_reader = self._reader("test")
        return FieldFeed(self._reader("train"), order, self.share, self.config.fields.random_rolls, self.config.seed)

    def describe_input(self) -> str:
        rows, columns = self.data.train.size
        return (
            f"{self.data.train.channels} x {rows} x {columns} ({'on the device' if self.on_device else 'from files'})"
        )

    def describe_data(self) -> str:
        return f"{len(self.data.train):,} pairs of states of {self.describe_input()}"

    def shown(self, batch: Batch) -> Tensor:
        return batch.images

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean relative L2 error over a batch."""
        return relative_l2(model(batch.images).float(), batch.labels).mean()

    def _metric(self) -> _RelativeError:
        return _RelativeError()

    def _predict(self, model: nn.Module, images: Tensor) -> Tensor:
        return model(images)

    def _test_batches(self, unreadable: set[str]) -> Iterator[tuple[Tensor, Tensor]]:
        own, size = np.array(self.own_test_indices), self.config.evaluate.batch_size
        for first in range(0, len(own), size):
            yield self.test_reader(own[first : first + size])

    def save(self, model: nn.Module, folder: Path) -> Path:
        assert isinstance(model, FieldNet)
        known = self.data.statistics
        model.pretrained_cfg |= {"mean": list(known.mean), "std": list(known.std), "size": list(self.data.train.size)}
        return model.save_pretrained(folder)


def build_field_net(config: TrainConfig, data: FieldData) -> FieldNet:
    """FieldNet on the network of a configuration, at the size of the data."""
    asked, decoder = config.model, config.fields.decoder
    known = [field.name for field in fields(FieldNetConfig) if field.name != "out_chans"]
    if unknown := sorted(decoder.keys() - set(known)):
        raise ValueError(f"fields.decoder has {', '.join(unknown)}: needs some of {', '.join(known)}")
    if not (is_ours(asked.name) or asked.name.startswith(LIBRARY)):
        resolve_name(asked.name)  # raises with a suggestion
    given: dict[str, Any] = {"img_size": data.train.size, **backbone_arguments(config), **decoder}
    network = FieldNet(asked.name, data.train.channels, **given)
    if asked.start_from:
        saving.load_weights(network, saving.fetch(asked.start_from, saving.WEIGHTS))
    return network
