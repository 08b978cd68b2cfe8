"""Read pictures a little ahead of their use, in order, each once; those that cannot be read are told, not lost."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..ops.geometry.shift import Pair
from .source import Source
from .transforms import Preparation

Read = TypeVar("Read")


@dataclass(frozen=True)
class Prepared:
    """A picture, ready for the network but for normalising."""

    index: int
    name: str
    label: int | None
    canvas: UInt8[Tensor, "3 H W"]


@dataclass(frozen=True)
class Unreadable:
    """A picture that could not be read, and why."""

    index: int
    name: str
    reason: str


@dataclass(frozen=True)
class _Pictures(Dataset[Any]):
    """The pictures asked for, read one at a time."""

    source: Source
    indices: Sequence[int]
    preparation: Preparation
    margin: Pair

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Prepared | Unreadable:
        index = self.indices[position]
        try:
            picture = self.source[index]
            canvas = self.preparation.canvas(picture.image, self.margin)
            return Prepared(index, picture.name, picture.target, canvas)
        except Exception as error:  # decoders raise many kinds; whichever it is, the others can go on
            return Unreadable(index, self.source.name(index), f"{type(error).__name__}: {error}")


def read_ahead(
    source: Source,
    indices: Sequence[int],
    preparation: Preparation,
    margin: Pair = (0, 0),
    workers: int = 4,
    ahead: int = 32,
    for_gpu: bool = False,
) -> Iterator[Prepared | Unreadable]:
    """Decode and resize in the background, never more than about ``ahead`` pictures before the one that is used.

    Args:
        for_gpu: read in processes, since threads would compete with the one that keeps the GPU busy, and put pixels
            where a GPU can fetch them while it works.
    """
    pictures = _Pictures(source, indices, preparation, margin)
    if for_gpu and len(indices) > _PARCEL:
        return _in_processes(pictures, workers)
    return in_threads(pictures.__getitem__, range(len(pictures)), workers, ahead)


def in_threads(read: Callable[[int], Read], positions: Iterable[int], workers: int, ahead: int) -> Iterator[Read]:
    """What is read at each position, in order, never more than about ``ahead`` before the one that is used.

    Without workers each is read when it is used.
    """
    if not workers:
        yield from map(read, positions)
        return
    waiting: deque[Future[Read]] = deque()
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        for position in positions:
            waiting.append(pool.submit(read, position))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


_PARCEL = 16  # pictures that a process sends together: sending costs as much for one as for many


@dataclass(frozen=True)
class _Parcel:
    """Some pictures with their pixels in one tensor."""

    pictures: list[Prepared | Unreadable]  # without their pixels
    pixels: Tensor

    @classmethod
    def packed(cls, pictures: list[Prepared | Unreadable]) -> "_Parcel":
        canvases = [picture.canvas for picture in pictures if isinstance(picture, Prepared)]
        pixels = torch.stack(canvases) if canvases else torch.empty(0)
        blank = torch.empty(3, 0, 0, dtype=torch.uint8)
        bare = [replace(picture, canvas=blank) if isinstance(picture, Prepared) else picture for picture in pictures]
        return cls(bare, pixels)

    def pin_memory(self) -> "_Parcel":  # a DataLoader asks for this
        return replace(self, pixels=self.pixels.pin_memory())

    def unpacked(self) -> Iterator[Prepared | Unreadable]:
        rest = iter(self.pixels)
        for picture in self.pictures:
            yield replace(picture, canvas=next(rest)) if isinstance(picture, Prepared) else picture


def _in_processes(pictures: _Pictures, workers: int) -> Iterator[Prepared | Unreadable]:
    parcels = DataLoader(
        pictures,
        batch_size=_PARCEL,
        num_workers=workers,
        collate_fn=_Parcel.packed,
        pin_memory=torch.cuda.is_available(),
    )
    for parcel in parcels:
        yield from parcel.unpacked()
