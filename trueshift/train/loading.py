"""Pictures read, decoded and augmented by processes of their own; normalised on the device."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..data.source import ImageSource
from .augment import TrainTransform
from .erasing import erase
from .feed import Batch, Share
from .order import BatchOrder

_STAND_INS = 16  # tried in place of a picture that cannot be read

_Key = tuple[int, int]  # epoch and index


@dataclass(frozen=True)
class _Read:
    """One picture, and what could not be read before it."""

    pixels: UInt8[Tensor, "3 H W"]
    label: int
    index: int
    unreadable: list[str]


@dataclass(frozen=True)
class _Parcel:
    """The pictures of one pass."""

    pixels: UInt8[Tensor, "B 3 H W"]
    labels: Int[Tensor, " B"]
    indices: np.ndarray
    unreadable: list[str]

    @classmethod
    def packed(cls, pictures: list[_Read]) -> "_Parcel":
        return cls(
            torch.stack([picture.pixels for picture in pictures]),
            torch.tensor([picture.label for picture in pictures]),
            np.array([picture.index for picture in pictures]),
            [told for picture in pictures for told in picture.unreadable],
        )

    def pin_memory(self) -> "_Parcel":  # a DataLoader asks for this
        return _Parcel(self.pixels.pin_memory(), self.labels.pin_memory(), self.indices, self.unreadable)


@dataclass(frozen=True)
class AugmentedPictures(Dataset[_Read]):
    """Pictures by epoch and index."""

    source: ImageSource
    transform: TrainTransform

    def __getitem__(self, key: _Key) -> _Read:
        epoch, index = key
        unreadable: list[str] = []
        for number in range(index, index + _STAND_INS):
            at = number % len(self.source)
            try:
                picture = self.source[at]
                if picture.label is None:
                    raise ValueError("it has no class")
                return _Read(self.transform(picture.image, epoch, at), picture.label, at, unreadable)
            except Exception as error:  # decoders raise many kinds; whichever it is, training can go on
                unreadable.append(f"{self.source.name(at)}: {type(error).__name__}: {error}")
        raise ValueError(
            f"{_STAND_INS} pictures in a row could not be read, e.g. {unreadable[0]}: repair the data, then start "
            "again to go on from the last checkpoint"
        )


@dataclass
class _Passes(Sampler[list[_Key]]):
    """The keys of each pass of a process; which epoch, and from which step on, is told before it is asked."""

    order: BatchOrder
    share: Share
    epoch: int = field(default=0, init=False)
    first_step: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[list[_Key]]:
        for indices in self.order.shares(self.epoch, self.share.rank, self.share.processes, self.first_step):
            yield [(self.epoch, int(index)) for index in indices]

    def __len__(self) -> int:
        return (self.order.steps - self.first_step) * self.order.parts // self.share.processes


class LoaderFeed:
    """Batches from a DataLoader."""

    def __init__(
        self,
        pictures: AugmentedPictures,
        order: BatchOrder,
        share: Share,
        device: torch.device | str,
        workers: int,
    ) -> None:
        self.draws = pictures.transform.draws
        self.device = device
        self.passes = _Passes(order, share)
        self.normalise = pictures.transform.preparation.normaliser(device)
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
        self.passes.epoch, self.passes.first_step = epoch, first_step
        for parcel in self.loader:
            images = self.normalise(parcel.pixels.to(self.device, non_blocking=True))
            if self.draws.augment.erasing:
                seeds = self.draws.erasing_seeds(epoch, parcel.indices)
                images = erase(images, seeds, self.draws.augment.erasing)
            labels = parcel.labels.to(self.device, non_blocking=True)
            yield Batch(images, labels, parcel.indices, parcel.unreadable)


def _one_thread(worker: int) -> None:
    torch.set_num_threads(1)  # the processes are the parallelism
