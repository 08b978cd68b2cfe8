"""Pictures read, decoded and augmented by processes of their own; normalised on the device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ...data.source import Source
from .augment import TrainTransform
from .batch import Batch, Share
from .random_erasing import erase
from .sampler import BatchOrder

_STAND_INS = 16  # tried in place of a picture that cannot be read

_Key = tuple[int, int]  # epoch and index


@dataclass(frozen=True)
class _Read:
    """One picture, and what could not be read before it."""

    pixels: UInt8[Tensor, "3 H W"]
    label: Int[Tensor, "..."]
    index: int
    unreadable: list[str]


@dataclass(frozen=True)
class _Parcel:
    """The pictures of one pass."""

    pixels: UInt8[Tensor, "B 3 H W"]
    labels: Int[Tensor, "B ..."]
    indices: np.ndarray
    unreadable: list[str]

    @classmethod
    def packed(cls, pictures: list[_Read]) -> "_Parcel":
        return cls(
            torch.stack([picture.pixels for picture in pictures]),
            torch.stack([picture.label for picture in pictures]),
            np.array([picture.index for picture in pictures]),
            [told for picture in pictures for told in picture.unreadable],
        )

    def pin_memory(self) -> "_Parcel":  # a DataLoader asks for this
        return _Parcel(self.pixels.pin_memory(), self.labels.pin_memory(), self.indices, self.unreadable)


class Named(Protocol):
    """As much of a source as is needed to number its pictures."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What a picture is called."""
        ...


Finish = Callable[[Tensor, Tensor, int, np.ndarray], Tensor]  # pixels and labels, epoch and indices to images


class Augmented(Dataset[_Read], ABC):
    """What is learned from, by epoch and index; another stands in for what cannot be read."""

    source: Named

    @abstractmethod
    def read(self, epoch: int, index: int) -> tuple[UInt8[Tensor, "3 H W"], Int[Tensor, "..."]]:
        """The pixels of one picture in one epoch, and what is to be learned of it."""

    @abstractmethod
    def finisher(self, device: torch.device | str) -> Finish:
        """What is left to do with a batch of pixels, on the device."""

    def __getitem__(self, key: _Key) -> _Read:
        epoch, index = key
        unreadable: list[str] = []
        for number in range(index, index + _STAND_INS):
            at = number % len(self.source)
            try:
                return _Read(*self.read(epoch, at), at, unreadable)
            except Exception as error:  # decoders raise many kinds; whichever it is, training can go on
                unreadable.append(f"{self.source.name(at)}: {type(error).__name__}: {error}")
        raise ValueError(
            f"{_STAND_INS} pictures in a row could not be read, e.g. {unreadable[0]}: repair the data, then start "
            "again to go on from the last checkpoint"
        )


@dataclass(frozen=True)
class AugmentedPictures(Augmented):
    """Pictures of which the class is learned."""

    source: Source
    transform: TrainTransform

    def read(self, epoch: int, index: int) -> tuple[UInt8[Tensor, "3 H W"], Int[Tensor, "..."]]:
        """The pixels of one in one epoch, and what is to be learned of them."""
        picture = self.source[index]
        if picture.target is None:
            raise ValueError("it has no class")
        return self.transform(picture.image, epoch, index), torch.tensor(picture.target)

    def finisher(self, device: torch.device | str) -> Finish:
        """Normalise, and erase if asked for."""
        draws, normalise = self.transform.draws, self.transform.preparation.normaliser(device)

        def finish(pixels: Tensor, labels: Tensor, epoch: int, indices: np.ndarray) -> Tensor:
            images = normalise(pixels)
            if draws.augment.erasing:
                images = erase(images, draws.erasing_seeds(epoch, indices), draws.augment.erasing)
            return images

        return finish


@dataclass
class _Passes(Sampler[list[_Key]]):
    """The keys of each pass of a process, epoch after epoch; where it begins is told before it is asked."""

    order: BatchOrder
    share: Share
    epoch: int = field(default=0, init=False)
    first_step: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[list[_Key]]:
        first = self.first_step
        for epoch in count(self.epoch):
            for indices in self.order.shares(epoch, self.share.rank, self.share.processes, first):
                yield [(epoch, int(index)) for index in indices]
            first = 0

    def left(self, first_step: int) -> int:
        """Passes of an epoch from a step on."""
        return (self.order.steps - first_step) * self.order.parts // self.share.processes


class LoaderFeed:
    """Batches from a DataLoader, which reads on into the next epoch: short ones would else begin with a wait."""

    def __init__(
        self,
        pictures: Augmented,
        order: BatchOrder,
        share: Share,
        device: torch.device | str,
        workers: int,
    ) -> None:
        self.device = device
        self.passes = _Passes(order, share)
        self.finish = pictures.finisher(device)
        self.reading: Iterator[_Parcel] = iter(())
        self.reading_next: tuple[int, int] | None = None  # epoch and step that come next, if nothing was skipped
        self.loader = DataLoader(
            pictures,
            batch_sampler=self.passes,
            num_workers=workers,
            collate_fn=_Parcel.packed,
            pin_memory=torch.device(device).type == "cuda",
            persistent_workers=workers > 0,
            worker_init_fn=_one_thread,
        )

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The passes of this process in one epoch."""
        if self.reading_next != (epoch, first_step):
            self.passes.epoch, self.passes.first_step = epoch, first_step
            self.reading = iter(self.loader)
        self.reading_next, left = None, self.passes.left(first_step)
        for number, parcel in enumerate(islice(self.reading, left), 1):
            if number == left:
                self.reading_next = (epoch + 1, 0)
            pixels = parcel.pixels.to(self.device, non_blocking=True)
            labels = parcel.labels.to(self.device, non_blocking=True)
            images = self.finish(pixels, labels, epoch, parcel.indices)
            yield Batch(images, labels, parcel.indices, parcel.unreadable)


def _one_thread(worker: int) -> None:
    torch.set_num_threads(1)  # the processes are the parallelism
