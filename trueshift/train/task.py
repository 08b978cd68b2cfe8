"""What differs between classification and segmentation: network, target, loss and metric."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from timm.data import Mixup
from torch import Tensor, nn

from ..data import Preparation, Unreadable, read_ahead
from ..data.source import IGNORED
from ..data.transforms import ScenePreparation
from ..eval.metrics.consistency import MeanIoU
from ..eval.protocols.registry import PROTOCOLS
from ..eval.runner.read_scenes import read_scenes
from ..eval.runner.segment import labels_at
from ..layers.tokenize import check_size
from ..tasks import UperNet
from ..tasks.inference import segment_whole
from ..utils.evaluation_mode import in_evaluation
from .config import TrainConfig
from .data.augment import ClassificationTransform, Draws, SegmentationTransform
from .data.loader import AugmentedSamples, Batch, Feed, LoaderFeed, Share
from .data.on_device import ResidentFeed, ResidentImages, is_resident, needs_loader
from .data.sampler import BatchOrder
from .data.splits import open_training_data
from .network import build_network, build_segmenter, preparation_for, save_network


@dataclass(frozen=True)
class Measurement:
    """Result on the test images.

    Args:
        score: ranks weights, 0 to 1.
        values: for the log.
        text: for the screen.
    """

    score: float
    values: dict[str, float]
    text: str


@runtime_checkable
class Metric(Protocol):
    """Accumulates over batches and, at the end, over all processes."""

    def update(self, logits: Tensor, targets: Any) -> int:
        """Add a batch; returns its number of images."""
        ...

    def compute(self, images: int) -> Measurement:
        """Over all processes, which saw so many images together."""
        ...


class Task(ABC):
    """Classification or segmentation: opens its data, then builds a network, then a feed."""

    score_name: ClassVar[str]

    def __init__(self, config: TrainConfig, fetch: bool = True) -> None:
        self.config, self.share, self.device = config, Share(), torch.device("cpu")
        self.data = open_training_data(config, fetch)

    @abstractmethod
    def check_order(self, order: BatchOrder) -> None:
        """Refuse batches that cannot be trained on."""

    @abstractmethod
    def build_network(self) -> nn.Module:
        """The network to train; random numbers are seeded before."""

    def start(self, order: BatchOrder, share: Share, device: torch.device) -> Feed:
        """The training batches, once the network is built."""
        self.share, self.device = share, device
        return self._feed(order)

    @abstractmethod
    def _feed(self, order: BatchOrder) -> Feed: ...

    @abstractmethod
    def describe_input(self) -> str:
        """Size of the input and how it is read, for the screen."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean over a batch."""

    @abstractmethod
    def save(self, model: nn.Module, folder: Path) -> Path:
        """Write the network as a folder that ``trueshift eval`` and ``from_pretrained`` read."""

    @torch.no_grad()
    def measure(
        self,
        model: nn.Module,
        autocast: Callable[[], AbstractContextManager[Any]],
        stop: Callable[[], bool],
        unreadable: set[str],
    ) -> Measurement | None:
        """Metrics on the test images over all processes; None if asked to stop on the way.

        Args:
            unreadable: receives the images that could not be read, with the reason.
        """
        metric, images, stopped = self._metric(), 0, False
        with in_evaluation(model):
            for inputs, targets in self._test_batches(unreadable):
                with autocast():
                    logits = self._predict(model, inputs).float()
                images += metric.update(logits, targets)
                if stopped := stop():
                    break
        ends = torch.tensor([images, stopped])
        if dist.is_initialized():
            dist.all_reduce(ends)  # one process that stops stops all
        all_images, any_stopped = ends.tolist()
        if any_stopped:
            return None
        if not all_images:
            raise ValueError("none of the images to measure on could be read")
        return metric.compute(all_images)

    @abstractmethod
    def _metric(self) -> Metric: ...

    @abstractmethod
    def _predict(self, model: nn.Module, images: Tensor) -> Tensor: ...

    @abstractmethod
    def _test_batches(self, unreadable: set[str]) -> Iterator[tuple[Tensor, Any]]: ...

    def _own_test_indices(self) -> range:
        return range(self.share.rank, len(self.data.test), self.share.processes)

    def _batched(
        self,
        samples: Iterable[Any],
        parts: Callable[[Any], tuple[Tensor, Any]],
        normalize: Callable[[Tensor], Tensor],
        unreadable: set[str],
    ) -> Iterator[tuple[Tensor, list[Any]]]:
        """Prepared samples in order, batched while their sizes are equal; those without a target are left out."""
        waiting: list[tuple[Tensor, Any]] = []

        def together() -> tuple[Tensor, list[Any]]:
            canvases, targets = zip(*waiting, strict=True)
            waiting.clear()
            return normalize(torch.stack(canvases).to(self.device, non_blocking=True)), list(targets)

        for sample in samples:
            if isinstance(sample, Unreadable):
                unreadable.add(f"{sample.name}: {sample.reason}")
                continue
            canvas, target = parts(sample)
            if target is None:
                unreadable.add(f"{sample.name}: it has no label")
                continue
            if waiting and (len(waiting) == self.config.evaluate.batch_size or waiting[0][0].shape != canvas.shape):
                yield together()
            waiting.append((canvas, target))
        if waiting:
            yield together()


class _Accuracy:
    """Top-1 and cross-entropy."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)

    def update(self, logits: Tensor, targets: Tensor) -> int:
        self.sums[0] += (logits.argmax(1) == targets).sum()
        self.sums[1] += F.cross_entropy(logits, targets, reduction="sum")
        return len(targets)

    def compute(self, images: int) -> Measurement:
        sums = self.sums.cpu()
        if dist.is_initialized():
            dist.all_reduce(sums)
        top1, loss = (sums / images).tolist()
        return Measurement(top1, {"top1": top1, "loss": loss, "images": images}, f"top-1 {100 * top1:.2f} %")


class Classification(Task):
    """One class per image."""

    score_name = "top1"
    preparation: Preparation
    test_images: ResidentImages | None = None

    def __init__(self, config: TrainConfig, fetch: bool = True) -> None:
        super().__init__(config, fetch)
        augment = config.augment
        self.mixup: Mixup | None = None
        if augment.mixup or augment.cutmix:
            self.mixup = Mixup(
                mixup_alpha=augment.mixup,
                cutmix_alpha=augment.cutmix,
                prob=augment.mix_probability,
                switch_prob=augment.switch_probability,
                label_smoothing=augment.label_smoothing,
                num_classes=len(self.data.classes),
            )

    def check_order(self, order: BatchOrder) -> None:
        """Refuse batches that cannot be trained on."""
        if self.mixup and order.batch_size // order.parts % 2:
            raise ValueError(
                f"batch_size {order.batch_size} in {order.parts} parts: mixup and cutmix need an even number of "
                f"images in each, e.g. {2 * order.parts * max(1, order.batch_size // (2 * order.parts))}"
            )

    def build_network(self) -> nn.Module:
        """The network to train."""
        network = build_network(self.config, len(self.data.classes))
        self.preparation = preparation_for(self.config, network)
        return network

    def _feed(self, order: BatchOrder) -> Feed:
        """From pixels on the device where they fit, otherwise from worker processes."""
        config, data = self.config, self.data
        draws = Draws(config.augment, config.seed)
        for_loader, small = needs_loader(config.augment), is_resident(data.train) and is_resident(data.test)
        wanted = config.data.on_device
        if wanted == "yes" and (for_loader or not small):
            why = f"augment.{for_loader[0]} works on single images" if for_loader else "the images are not small"
            raise ValueError(f"data.on_device is yes, but {why}: needs 'auto' or 'no'")
        if wanted == "yes" or (wanted == "auto" and self.device.type == "cuda" and small and not for_loader):
            self.test_images = ResidentImages(data.test, self.preparation, self.device)
            return ResidentFeed(ResidentImages(data.train, self.preparation, self.device), draws, order, self.share)
        samples = AugmentedSamples(data.train, ClassificationTransform(self.preparation, draws))
        return LoaderFeed(samples, order, self.share, self.device, config.data.workers)

    def describe_input(self) -> str:
        """Size of the input and how it is read."""
        how = "on the device" if self.test_images is not None else f"{self.config.data.workers} workers"
        return f"{self.preparation.size[0]} x {self.preparation.size[1]} ({how})"

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Cross-entropy, with mixed or smoothed labels if wanted."""
        if self.mixup is not None:
            # a copy, as timm mixes in place, and the same batch may be mixed again to check a compiler
            images, targets = self.mixup(batch.images.clone(), batch.labels)
            return F.cross_entropy(model(images).float(), targets)
        logits = model(batch.images).float()
        return F.cross_entropy(logits, batch.labels, label_smoothing=self.config.augment.label_smoothing)

    def _metric(self) -> _Accuracy:
        return _Accuracy(self.device)

    def _predict(self, model: nn.Module, images: Tensor) -> Tensor:
        return model(images)

    def _test_batches(self, unreadable: set[str]) -> Iterator[tuple[Tensor, Tensor]]:
        own = self._own_test_indices()
        if self.test_images is not None:
            for at in torch.tensor(own, device=self.device).split(self.config.evaluate.batch_size):
                yield self.test_images.normalize(self.test_images.resized(at)), self.test_images.labels[at]
            return
        for_gpu, workers = self.device.type == "cuda", self.config.data.workers
        samples = read_ahead(self.data.test, own, self.preparation, workers=workers, for_gpu=for_gpu)
        normalize = self.preparation.normaliser(self.device)
        batches = self._batched(samples, lambda sample: (sample.canvas, sample.label), normalize, unreadable)
        for images, labels in batches:
            yield images, torch.tensor(labels).to(self.device)

    def save(self, model: nn.Module, folder: Path) -> Path:
        """Write the network as a folder."""
        return save_network(model, folder, self.preparation, self.data.classes)


class _MaskAccuracy:
    """mIoU at the masks' own sizes."""

    def __init__(self, classes: int) -> None:
        self.mean_iou = MeanIoU(classes, IGNORED)

    def update(self, logits: Tensor, targets: list[Any]) -> int:
        for answer, mask in zip(logits, targets, strict=True):
            labels = labels_at(answer, (mask.shape[0], mask.shape[1]))
            self.mean_iou.update(labels[None].cpu(), torch.from_numpy(mask)[None])
        return len(targets)

    def compute(self, images: int) -> Measurement:
        score = float(self.mean_iou.compute())
        if isnan(score):
            raise ValueError("none of the images to measure on has a labelled pixel: needs masks that are not all void")
        values = {"mean_iou": score, "pixel_accuracy": self.mean_iou.pixel_accuracy(), "images": images}
        return Measurement(score, values, f"mIoU {100 * score:.2f} %")


class Segmentation(Task):
    """One class per pixel, by UperNet."""

    score_name = "mean_iou"
    preparation: ScenePreparation
    transform: SegmentationTransform

    def check_order(self, order: BatchOrder) -> None:
        """Refuse batches that cannot be trained on."""
        if order.batch_size // order.parts < 2:
            raise ValueError(
                f"batch_size {order.batch_size} in {order.parts} parts: batch norm over whole images needs at least "
                f"2 images in each, e.g. --batch_size {2 * order.parts}"
            )

    def build_network(self) -> nn.Module:
        """The network to train."""
        network = build_segmenter(self.config, len(self.data.classes))
        wanted, known = self.config.segmentation, network.pretrained_cfg
        if wanted.fit == "resize":  # otherwise crops are padded, as whole images are
            try:
                check_size(wanted.augment.crop, network.size_multiple)
            except ValueError as error:
                raise ValueError(f"segmentation.augment.crop, {error}, or --segmentation.fit pad") from None
        colors: dict[str, Any] = {key: tuple(known[key]) for key in ("mean", "std") if key in known}
        self.preparation = ScenePreparation(wanted.scale, network.size_multiple, wanted.fit, **colors)
        self.transform = SegmentationTransform(self.preparation, wanted.augment, self.config.seed)
        return network

    def _feed(self, order: BatchOrder) -> Feed:
        samples = AugmentedSamples(self.data.train, self.transform)
        return LoaderFeed(samples, order, self.share, self.device, self.config.data.workers)

    def describe_input(self) -> str:
        """Size of the input and how it is read."""
        crop, frame = self.config.segmentation.augment.crop, self.transform.frame
        padded = f" padded to {frame[0]} x {frame[1]}" if frame != crop else ""
        return f"{crop[0]} x {crop[1]}{padded} ({self.config.data.workers} workers)"

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean over the labelled pixels of a batch."""
        return model(batch.images, batch.labels)

    def _metric(self) -> _MaskAccuracy:
        return _MaskAccuracy(len(self.data.classes))

    def _predict(self, model: nn.Module, images: Tensor) -> Tensor:
        return segment_whole(model, images)  # type: ignore[arg-type]

    def _test_batches(self, unreadable: set[str]) -> Iterator[tuple[Tensor, list[Any]]]:
        fits = [PROTOCOLS["ade20k-standard"]]  # as the network is used: resized or padded
        workers = self.config.data.workers
        samples = read_scenes(self.data.test, self._own_test_indices(), self.preparation, fits, workers=workers)
        normalize, fit = self.preparation.normaliser(self.device), self.preparation.fit
        return self._batched(samples, lambda sample: (sample.canvases[fit], sample.mask), normalize, unreadable)

    def save(self, model: nn.Module, folder: Path) -> Path:
        """Write the network as a folder."""
        assert isinstance(model, UperNet)
        model.pretrained_cfg = {
            **model.pretrained_cfg,
            "label_names": list(self.data.classes),
            "scene": self.preparation.to_dict(),
            "crop": list(self.config.segmentation.augment.crop),
        }
        return model.save_pretrained(folder)


def open_task(config: TrainConfig, fetch: bool = True) -> Task:
    """The task of a configuration, with its data opened."""
    return (Classification if config.task == "classification" else Segmentation)(config, fetch)
