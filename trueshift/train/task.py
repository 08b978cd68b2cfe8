"""What differs between tasks: network, target, loss and metric. Classification and segmentation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import groupby, islice
from math import isnan
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from rich.console import Console
from timm.data import Mixup
from torch import Tensor, nn

from ..data import Preparation, Prepared, Unreadable, read_ahead
from ..data.source import IGNORED
from ..data.transforms import ScenePreparation
from ..eval.metrics.consistency import MeanIoU, class_counts
from ..eval.models.eval_model import EvalModel
from ..eval.models.load import load_eval_model
from ..eval.options import EvalOptions
from ..eval.protocols.registry import PROTOCOLS, find_protocols
from ..eval.runner.evaluate import run_evaluation
from ..eval.runner.segment import labels_at, read_scenes
from ..layers.checks import check_size
from ..ops.geometry.shift import pair
from ..report.console import progress_bars
from ..tasks import UperNet
from ..tasks.inference import segment_whole
from ..utils.evaluation_mode import in_evaluation
from .config import TrainConfig
from .data.augment import ClassificationTransform, SegmentationTransform
from .data.loader import AugmentedSamples, Batch, DirectFeed, LoaderFeed
from .data.on_device import ResidentImages, is_resident, needs_loader
from .data.sampler import ALONE, BatchOrder, Share
from .data.splits import open_training_data
from .network import build_network, build_segmenter, preparation_for, save_network


@dataclass(frozen=True)
class Measurement:
    """Result on the test images: a score from 0 to 1 that ranks weights, values for the log, text for the screen."""

    score: float
    values: dict[str, float]
    text: str


class Task(ABC):
    """What is learned: opens its data, then builds a network, then a feed."""

    score_name: ClassVar[str]
    protocols_needed: ClassVar[str]
    tallied: tuple[int, ...]  # shape of what is summed over the test images
    preparation: Preparation | ScenePreparation  # once the network is built

    def __init__(self, config: TrainConfig, share: Share = ALONE, device: torch.device | str = "cpu") -> None:
        self.config, self.share, self.device = config, share, torch.device(device)
        self.data: Any = self.open_data()
        self.protocols = find_protocols(config.evaluate.protocols)
        if wrong := [each.name for each in self.protocols if each.dense != (config.task == "segmentation")]:
            raise ValueError(f"evaluate.protocols {', '.join(wrong)}: {config.task} needs {self.protocols_needed}")
        self.own_test_indices = range(share.rank, len(self.data.test), share.processes)
        self.order = BatchOrder(len(self.data.train), config.batch_size, share, config.accumulate, config.seed)

    def open_data(self) -> Any:
        """What to learn from and to measure on."""
        return open_training_data(self.config, fetch=self.share.rank == 0)

    @abstractmethod
    def build_network(self) -> nn.Module:
        """The network to train; random numbers are seeded before."""

    @abstractmethod
    def feed(self) -> LoaderFeed | DirectFeed:
        """The training batches, once the network is built."""

    def on_device(self, small: bool) -> bool:
        """Whether data of this size is to be held on the training device."""
        wanted = self.config.data.on_device
        return wanted == "yes" or (wanted == "auto" and self.device.type == "cuda" and small)

    @abstractmethod
    def describe_input(self) -> str:
        """Size of the input and how it is read, for the screen."""

    def describe_data(self) -> str:
        """What is learned from, for the screen."""
        return f"{len(self.data.classes)} classes; {len(self.data.train):,} images of {self.describe_input()}"

    def shown(self, batch: Batch) -> Tensor:
        """What the network is shown of a batch; of two views the first."""
        return batch.images[:, :3]

    def mixed(self, batch: Batch) -> Batch:
        """The batch to learn from: mixed as the host draws it, in a copy."""
        return batch

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean over a batch, mixed before; the host looks at no value and draws no number."""

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

        Images that could not be read are added to ``unreadable``, with the reason.
        """
        sums, images, stopped = torch.zeros(self.tallied, dtype=torch.float64, device=self.device), 0, False
        with in_evaluation(model):
            for inputs, targets in self._test_batches(unreadable):
                with autocast():
                    outputs = self._predict(model, inputs).float()
                sums += self._tally(outputs, targets)
                images += len(targets)
                if stopped := stop():
                    break
        sums, ends = sums.cpu(), torch.tensor([images, stopped])
        if dist.is_initialized():
            dist.all_reduce(sums)
            dist.all_reduce(ends)  # one process that stops stops all
        all_images, any_stopped = ends.tolist()
        if any_stopped:
            return None
        if not all_images:
            raise ValueError("none of the images to measure on could be read")
        return self._measurement(sums, all_images)

    @abstractmethod
    def _tally(self, outputs: Tensor, targets: Any) -> Tensor:
        """What a batch adds to the sums."""

    @abstractmethod
    def _measurement(self, sums: Tensor, images: int) -> Measurement:
        """The metrics of all sums."""

    def _predict(self, model: nn.Module, images: Tensor) -> Tensor:
        return model(images)

    @abstractmethod
    def _test_batches(self, unreadable: set[str]) -> Iterator[tuple[Tensor, Any]]: ...

    def _batched(
        self, samples: Iterable[Prepared | Unreadable], unreadable: set[str]
    ) -> Iterator[tuple[Tensor, list[Any]]]:
        """Prepared samples in order, batched while their sizes are equal; those without a target are left out."""
        normalize = self.preparation.normaliser(self.device)

        def readable() -> Iterator[Prepared]:
            for sample in samples:
                if isinstance(sample, Prepared) and sample.target is not None:
                    yield sample
                else:
                    unreadable.add(f"{sample.name}: {getattr(sample, 'reason', 'it has no label')}")

        for _, alike in groupby(readable(), lambda sample: sample.canvas.shape):
            while batch := list(islice(alike, self.config.evaluate.batch_size)):
                canvases = torch.stack([sample.canvas for sample in batch])
                yield normalize(canvases.to(self.device, non_blocking=True)), [sample.target for sample in batch]

    def evaluate(self, folder: Path, step: int, console: Console) -> dict[str, Any]:
        """Results of the protocols on weights as they were written, in float32 as in the paper."""
        config, device = self.config, str(self.device)
        subject = load_eval_model(str(folder), EvalOptions(device=device))
        subject = replace(subject, name=config.model.name, weights=f"trained, {step} steps")
        options = EvalOptions(
            batch_size=config.evaluate.batch_size, seed=config.seed, device=device, workers=config.data.workers
        )
        with progress_bars(console) as progress:
            return run_evaluation(subject, self.data.test, self.protocols, options, progress=progress)


def divergence(first: Float[Tensor, "B classes"], second: Float[Tensor, "B classes"]) -> Float[Tensor, ""]:
    """Symmetric Kullback-Leibler divergence of two predictions, given as logits: the mean over a batch."""
    one, other = first.log_softmax(1), second.log_softmax(1)
    return ((one.exp() - other.exp()) * (one - other)).sum(1).mean() / 2


def distillation(
    logits: Float[Tensor, "B classes"], teacher: Float[Tensor, "B classes"], temperature: float
) -> Float[Tensor, ""]:
    """Kullback-Leibler divergence of a network's predictions from its teacher's, at a temperature, times its square."""
    own, taught = ((each.float() / temperature).log_softmax(1) for each in (logits, teacher))
    return F.kl_div(own, taught, reduction="batchmean", log_target=True) * temperature**2


class Classification(Task):
    """One class per image."""

    score_name, protocols_needed = "top1", "those for whole images, e.g. circular"
    tallied = (2,)  # right answers, cross-entropy
    preparation: Preparation
    mixup: Mixup | None = None
    teacher: EvalModel | None = None
    test_images: ResidentImages | None = None

    def __init__(self, config: TrainConfig, share: Share = ALONE, device: torch.device | str = "cpu") -> None:
        super().__init__(config, share, device)
        augment = config.augment
        if augment.mixup or augment.cutmix:
            self.mixup = Mixup(
                mixup_alpha=augment.mixup,
                cutmix_alpha=augment.cutmix,
                prob=augment.mix_probability,
                switch_prob=augment.switch_probability,
                label_smoothing=augment.label_smoothing,
                num_classes=len(self.data.classes),
            )
            size, parts = config.batch_size, self.order.parts
            if size // parts % 2:
                raise ValueError(
                    f"batch_size {size} in {parts} parts: mixup and cutmix need an even number of "
                    f"images in each, e.g. {2 * parts * max(1, size // (2 * parts))}"
                )

    def build_network(self) -> nn.Module:
        network = build_network(self.config, len(self.data.classes))
        self.preparation = preparation_for(self.config, network)
        if self.config.distill.teacher:
            self.teacher = self._load_teacher(self.config.distill.teacher)
        return network

    def _load_teacher(self, name: str) -> EvalModel:
        """It sees what the network sees, so it has to be made for such images and for the same classes."""
        precision = "bf16" if self.config.precision == "bf16" else "float32"
        teacher = load_eval_model(name, EvalOptions(device=str(self.device), precision=precision))
        for what in ("size", "mean", "std"):
            needed, found = getattr(self.preparation, what), getattr(teacher.preparation, what, None)
            if needed != found:
                raise ValueError(f"distill.teacher {name} takes images of {what} {found}: needs {needed}")
        if (classes := len(self.data.classes)) != teacher.num_classes:
            raise ValueError(f"distill.teacher {name} has {teacher.num_classes} classes: needs {classes}, as the data")
        return teacher

    def feed(self) -> LoaderFeed | DirectFeed:
        """From pixels on the device where they fit, otherwise from worker processes."""
        config, data = self.config, self.data
        transform = ClassificationTransform(self.preparation, config.augment, config.seed)
        for_loader, small = needs_loader(config.augment), is_resident(data.train) and is_resident(data.test)
        if config.data.on_device == "yes" and (for_loader or not small):
            why = f"augment.{for_loader[0]} works on single images" if for_loader else "the images are not small"
            raise ValueError(f"data.on_device is yes, but {why}: needs 'auto' or 'no'")
        if self.on_device(small and not for_loader):
            self.test_images = ResidentImages(data.test, self.preparation, self.device)
            images = ResidentImages(data.train, self.preparation, self.device)
            return DirectFeed(images.augmented(transform), self.order)
        return LoaderFeed(AugmentedSamples(data.train, transform), self.order, self.device, config.data.workers)

    def describe_input(self) -> str:
        how = "on the device" if self.test_images is not None else f"{self.config.data.workers} workers"
        return f"{self.preparation.size[0]} x {self.preparation.size[1]} ({how})"

    def mixed(self, batch: Batch) -> Batch:
        """By Mixup or CutMix if wanted, labels smoothed as well."""
        if self.mixup is None:
            return batch
        # a copy, as timm mixes in place, and the same batch may be mixed again to check a compiler
        images, labels = self.mixup(batch.images.clone(), batch.labels)
        return replace(batch, images=images, labels=labels)

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """Cross-entropy, with smoothed labels if wanted; a teacher's part; the divergence of two views."""
        smoothing = self.config.augment.label_smoothing if self.mixup is None else 0.0  # mixed labels are smooth
        consistency, images, targets = self.config.augment.consistency, batch.images, batch.labels
        if consistency:  # one call, as parallel and compiled networks expect
            images, targets = torch.cat(images.chunk(2, 1)), torch.cat([targets, targets])
        logits = model(images).float()
        loss = F.cross_entropy(logits, targets, label_smoothing=smoothing)
        if self.teacher is not None:
            given = self.config.distill
            with torch.no_grad():
                taught = self.teacher.forward(images)
            loss = torch.lerp(loss, distillation(logits, taught, given.temperature), given.weight)
        return loss + consistency * divergence(*logits.chunk(2)) if consistency else loss

    def _tally(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([(outputs.argmax(1) == targets).sum(), F.cross_entropy(outputs, targets, reduction="sum")])

    def _measurement(self, sums: Tensor, images: int) -> Measurement:
        top1, loss = (sums / images).tolist()
        return Measurement(top1, {"top1": top1, "loss": loss, "images": images}, f"top-1 {100 * top1:.2f} %")

    def _test_batches(self, unreadable: set[str]) -> Iterator[tuple[Tensor, Tensor]]:
        own, size = self.own_test_indices, self.config.evaluate.batch_size
        if self.test_images is not None:
            for first in range(0, len(own), size):  # none for a process beyond the images
                at = torch.tensor(own[first : first + size], device=self.device)
                yield self.test_images.normalize(self.test_images.resized(at)), self.test_images.labels[at]
            return
        for_gpu, workers = self.device.type == "cuda", self.config.data.workers
        samples = read_ahead(self.data.test, own, self.preparation, workers=workers, for_gpu=for_gpu)
        for images, labels in self._batched(samples, unreadable):
            yield images, torch.tensor(labels).to(self.device)

    def save(self, model: nn.Module, folder: Path) -> Path:
        return save_network(model, folder, self.preparation, self.data.classes)


class Segmentation(Task):
    """One class per pixel, by UperNet."""

    score_name, protocols_needed = "mean_iou", "those for pixels, e.g. ade20k"
    preparation: ScenePreparation
    transform: SegmentationTransform

    def __init__(self, config: TrainConfig, share: Share = ALONE, device: torch.device | str = "cpu") -> None:
        super().__init__(config, share, device)
        self.tallied = (len(self.data.classes), 3)  # of class_counts
        if config.batch_size // self.order.parts < 2:
            raise ValueError(
                f"batch_size {config.batch_size} in {self.order.parts} parts: batch norm over whole images needs at "
                f"least 2 images in each, e.g. --batch_size {2 * self.order.parts}"
            )

    def build_network(self) -> nn.Module:
        network = build_segmenter(self.config, len(self.data.classes))
        wanted, known = self.config.segmentation, network.pretrained_cfg
        needed, multiple = network.size_multiple, pair(wanted.multiple or network.size_multiple)
        check_size(multiple, needed, "segmentation.multiple, ")
        if wanted.fit == "resize":  # otherwise crops are padded, as whole images are
            check_size(wanted.augment.crop, needed, "segmentation.augment.crop, ", ", or --segmentation.fit pad")
        colors: dict[str, Any] = {key: tuple(known[key]) for key in ("mean", "std") if key in known}
        self.preparation = ScenePreparation(wanted.scale, multiple, wanted.fit, **colors)
        self.transform = SegmentationTransform(self.preparation, wanted.augment, self.config.seed)
        return network

    def feed(self) -> LoaderFeed:
        samples = AugmentedSamples(self.data.train, self.transform)
        return LoaderFeed(samples, self.order, self.device, self.config.data.workers)

    def describe_input(self) -> str:
        crop, frame = self.config.segmentation.augment.crop, self.transform.frame
        padded = f" padded to {frame[0]} x {frame[1]}" if frame != crop else ""
        return f"{crop[0]} x {crop[1]}{padded} ({self.config.data.workers} workers)"

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean over the labelled pixels of a batch."""
        return model(batch.images, batch.labels)

    def _tally(self, outputs: Tensor, targets: list[Any]) -> Tensor:
        """At the masks' own sizes."""
        counts = [
            class_counts(labels_at(logits, mask.shape).cpu(), torch.from_numpy(mask), self.tallied[0], IGNORED)
            for logits, mask in zip(outputs, targets, strict=True)
        ]
        return torch.stack(counts).sum(0).to(self.device)

    def _measurement(self, sums: Tensor, images: int) -> Measurement:
        measure = MeanIoU(self.tallied[0], IGNORED, distributed_available_fn=lambda: False)  # all are summed already
        measure.add(sums.long())
        score = float(measure.by_class().nanmean())
        if isnan(score):
            raise ValueError("none of the images to measure on has a labelled pixel: needs masks that are not all void")
        values = {"mean_iou": score, "pixel_accuracy": measure.pixel_accuracy(), "images": images}
        return Measurement(score, values, f"mIoU {100 * score:.2f} %")

    def _predict(self, model: nn.Module, images: Tensor) -> Tensor:
        return segment_whole(model, images)  # type: ignore[arg-type]

    def _test_batches(self, unreadable: set[str]) -> Iterator[tuple[Tensor, list[Any]]]:
        own, fits = self.own_test_indices, [PROTOCOLS["ade20k-standard"]]  # as the network is used: resized or padded
        samples = read_scenes(self.data.test, own, self.preparation, fits, workers=self.config.data.workers)
        return self._batched(samples, unreadable)

    def save(self, model: nn.Module, folder: Path) -> Path:
        assert isinstance(model, UperNet)
        model.pretrained_cfg |= {
            "label_names": list(self.data.classes),
            "scene": self.preparation.to_dict(),
            "crop": list(self.config.segmentation.augment.crop),
        }
        return model.save_pretrained(folder)
