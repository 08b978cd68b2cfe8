"""Batches: samples read and augmented by worker processes, finished on the device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice

import numpy as np
import torch
from jaxtyping import Int, Shaped, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ...data.prefetch import ignore_signals, started
from ...data.source import Source
from .augment import ClassificationTransform, SegmentationTransform
from .sampler import BatchOrder

_STAND_INS = 16  # tried in place of a sample that cannot be read

_Key = tuple[int, int]  # epoch and index
_Item = tuple[UInt8[Tensor, "C H W"], Int[Tensor, "..."], int, list[str]]


@dataclass(frozen=True)
class Batch:
    """One pass of one process."""

    images: Shaped[Tensor, "B C H W"]  # pixels, or once finished, normalized images; 6 channels for two views
    labels: Shaped[Tensor, "B ..."]  # a class for each image or pixel; of mixed images, their weights; the next state
    indices: np.ndarray  # of the samples in the data
    unreadable: list[str] = field(default_factory=list)  # with the reason; others stand in for them

    @classmethod
    def collate(cls, items: list[_Item]) -> "Batch":
        """For a DataLoader."""
        pixels, labels, indices, unreadable = zip(*items, strict=True)
        return cls(torch.stack(pixels), torch.stack(labels), np.array(indices), list(chain(*unreadable)))

    def pin_memory(self) -> "Batch":
        """Called by a DataLoader."""
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())


@dataclass(frozen=True)
class AugmentedSamples(Dataset[_Item]):
    """Training samples by epoch and index; another one stands in for what cannot be read."""

    source: Source
    transform: ClassificationTransform | SegmentationTransform

    def __getitem__(self, key: _Key) -> _Item:
        epoch, index = key
        unreadable: list[str] = []
        for number in range(index, index + _STAND_INS):
            at = number % len(self.source)
            try:
                return (*self.transform(self.source[at], epoch, at), at, unreadable)
            except Exception as error:  # decoders raise many kinds; training can continue after each
                unreadable.append(f"{self.source.name(at)}: {type(error).__name__}: {error}")
        raise ValueError(
            f"{_STAND_INS} images in a row could not be read, e.g. {unreadable[0]}: repair the data, then start again "
            "to resume from the last checkpoint"
        )


@dataclass
class _Keys:
    """The keys of each pass of a process, epoch after epoch, from an epoch and step on."""

    order: BatchOrder
    start: tuple[int, int] = (0, 0)

    def __iter__(self) -> Iterator[list[_Key]]:
        epoch, first = self.start
        for later in count():
            for indices in self.order.passes(epoch + later, 0 if later else first).tolist():
                yield [(epoch + later, index) for index in indices]


class LoaderFeed:
    """Batches from a DataLoader, which reads ahead into the next epoch: short epochs would else begin with a wait."""

    def __init__(self, samples: AugmentedSamples, order: BatchOrder, device: torch.device | str, workers: int) -> None:
        self.device, self.keys = device, _Keys(order)
        self.finish = samples.transform.finisher(device)
        self.reading: Iterator[Batch] = iter(())
        self.next: tuple[int, int] | None = None  # epoch and step the reader has come to, unless interrupted
        self.loader = DataLoader(
            samples,
            batch_sampler=self.keys,
            num_workers=workers,
            collate_fn=Batch.collate,
            pin_memory=torch.device(device).type == "cuda",
            persistent_workers=workers > 0,
            worker_init_fn=ignore_signals,
        )

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The passes of this process in one epoch."""
        if self.next != (epoch, first_step):
            self.keys.start = epoch, first_step
            self.reading = started(self.loader)
        order = self.keys.order
        self.next, left = None, (order.steps - first_step) * order.accumulate
        for number, batch in enumerate(islice(self.reading, left), 1):
            if number == left:
                self.next = (epoch + 1, 0)
            pixels = batch.images.to(self.device, non_blocking=True)
            labels = batch.labels.to(self.device, non_blocking=True)
            yield replace(batch, images=self.finish(pixels, epoch, batch.indices), labels=labels)


@dataclass(frozen=True)
class DirectFeed:
    """Batches of what needs no workers: ``read(epoch, indices)`` gives images and labels on the device."""

    read: Callable[[int, np.ndarray], tuple[Tensor, Tensor]]
    order: BatchOrder

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The passes of this process in one epoch."""
        for indices in self.order.passes(epoch, first_step):
            yield Batch(*self.read(epoch, indices), indices)
