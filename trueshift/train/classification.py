"""Learning the class of a picture."""

from dataclasses import asdict
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data.transforms import Preparation
from .accuracy import measure_accuracy, read_batches, resident_batches
from .config import TrainConfig
from .data.batch import Batch, Feed, Share
from .data.build import build_feed
from .data.on_device import ResidentImages
from .data.sampler import BatchOrder
from .data.splits import open_training_data
from .network import build_network, preparation_for, save_network
from .objective import Objective
from .task import Measured, Surroundings


class Classification:
    """See :class:`~trueshift.train.task.Task`."""

    score_name = "top1"
    preparation: Preparation
    test_images: ResidentImages | None = None

    def __init__(self, config: TrainConfig, fetch: bool) -> None:
        self.config = config
        self.data = open_training_data(config.data, config.evaluate, fetch)
        self.objective = Objective(config.augment, len(self.data.classes))

    def check_order(self, order: BatchOrder) -> None:
        """Refuse batches that cannot be learned from."""
        augment = self.config.augment
        if (augment.mixup or augment.cutmix) and order.batch_size // order.parts % 2:
            raise ValueError(
                f"batch_size {order.batch_size} in {order.parts} parts: mixup and cutmix need an even number of "
                f"images in each, e.g. {2 * order.parts * max(1, order.batch_size // (2 * order.parts))}"
            )

    def build_network(self) -> nn.Module:
        """What is trained."""
        network = build_network(self.config, len(self.data.classes))
        self.preparation = preparation_for(self.config, network)
        return network

    def start(self, order: BatchOrder, share: Share, device: torch.device) -> Feed:
        """What is learned from."""
        feed, self.test_images = build_feed(self.config, self.data, self.preparation, order, share, device)
        return feed

    def input_told(self) -> str:
        """Size of the input, and how it is fed, in words."""
        how = "on the device" if self.test_images is not None else f"{self.config.data.workers} workers"
        return f"{self.preparation.size[0]} x {self.preparation.size[1]} ({how})"

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean over a batch."""
        images, targets = self.objective.mixed(batch.images, batch.labels)
        return self.objective.loss(model(images), targets)

    def measure(self, model: nn.Module, where: Surroundings) -> Measured | None:
        """Top-1 and cross-entropy."""
        size, workers = self.config.evaluate.batch_size, self.config.data.workers
        if self.test_images is not None:
            batches = resident_batches(self.test_images, size, where.share)
        else:
            reading = (self.preparation, size, where.share, where.device, workers)
            batches = read_batches(self.data.test, *reading, where.left_out)
        accuracy = measure_accuracy(model, batches, where.device, where.autocast, where.stop)
        if accuracy is None:
            return None
        return Measured(accuracy.top1, asdict(accuracy), f"top-1 {100 * accuracy.top1:.2f} %")

    def write(self, model: nn.Module, folder: Path) -> Path:
        """The network as a folder."""
        return save_network(model, folder, self.preparation, self.data.classes)
