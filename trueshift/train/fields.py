"""The task ``fields``: the next state of a simulation from this one, by FieldNet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from ..eval.fields import relative_l2
from ..layers.checks import check_size
from ..models import hub as saving
from ..models.registry import is_ours, resolve_name
from ..tasks.adapted import LIBRARY
from ..tasks.fields import FieldNet, FieldNetConfig
from .data.fields import FieldData, FieldReader, open_field_data
from .data.loader import Batch, DirectFeed
from .network import backbone_arguments, decoder_arguments
from .task import Classification, Measurement, Segmentation, Task


class Fields(Task):
    """The next state from this one, both normalized; weights are ranked by 1 - relative L2, at least 0."""

    score_name, protocols_needed, tallied = "skill", "none", ()
    data: FieldData

    def open_data(self) -> FieldData:
        return open_field_data(self.config)

    def build_network(self) -> nn.Module:
        """FieldNet on the network of a configuration, at the size of the data."""
        asked, decoder = self.config.model, decoder_arguments(self.config, FieldNetConfig)
        if not (is_ours(asked.name) or asked.name.startswith(LIBRARY)):
            resolve_name(asked.name)  # raises with a suggestion
        pairs = self.data.train
        given: dict[str, Any] = {"img_size": pairs.size, **backbone_arguments(self.config), **decoder}
        network = FieldNet(asked.name, pairs.channels, **given)
        if asked.start_from:
            saving.load_weights(network, saving.fetch(asked.start_from, saving.WEIGHTS))
        check_size(pairs.size, network.size_multiple)
        return network.train()

    def feed(self) -> DirectFeed:
        how = self.data.statistics, self.device, self.on_device(self.data.small)
        self.test_reader = FieldReader(self.data.test, *how)
        reader = FieldReader(self.data.train, *how, self.config.fields.random_rolls, self.config.seed)
        return DirectFeed(reader.rolled, self.order)

    def describe_input(self) -> str:
        rows, columns = self.data.train.size
        where = "on the device" if self.on_device(self.data.small) else "from files"
        return f"{self.data.train.channels} x {rows} x {columns} ({where})"

    def describe_data(self) -> str:
        return f"{len(self.data.train):,} pairs of states of {self.describe_input()}"

    def shown(self, batch: Batch) -> Tensor:
        return batch.images

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean relative L2 error over a batch."""
        return relative_l2(model(batch.images).float(), batch.labels).mean()

    def _tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return relative_l2(outputs, targets).double().sum()

    def _measurement(self, sums: Tensor, images: int) -> Measurement:
        error = float(sums / images)
        values = {"relative_l2": error, "images": images}
        return Measurement(max(0.0, 1 - error), values, f"relative L2 {error:.4f}")

    def _test_batches(self, unreadable: set[str]) -> Iterator[tuple[Tensor, Tensor]]:
        own, size = np.array(self.own_test_indices), self.config.evaluate.batch_size
        for first in range(0, len(own), size):
            yield self.test_reader(own[first : first + size])

    def save(self, model: nn.Module, folder: Path) -> Path:
        assert isinstance(model, FieldNet)
        known, train = self.data.statistics, self.data.train
        about = {"mean": list(known.mean), "std": list(known.std), "size": list(train.size)}
        model.pretrained_cfg |= about | ({"variables": train.variables} if train.variables else {})
        return model.save_pretrained(folder)


TASKS: dict[str, type[Task]] = {"classification": Classification, "segmentation": Segmentation, "fields": Fields}
