"""Read images ahead of their use, in order; those that cannot be read are reported, not lost."""

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
    """An image ready for the network, except for normalising."""

    index: int
    name: str
    label: int | None
    canvas: UInt8[Tensor, "3 H W"]


@dataclass(frozen=True)
class Unreadable:
    """An image that could not be read, and why."""

    index: int
    name: str
    reason: str


@dataclass(frozen=True)
class _Images(Dataset[Any]):
    """The images asked for, read one at a time."""

    source: Source
    indices: Sequence[int]
    preparation: Preparation
    margin: Pair

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Prepared | Unreadable:
        index = self.indices[position]
        try:
            sample = self.source[index]
            canvas = self.preparation.canvas(sample.image, self.margin)
            return Prepared(index, sample.name, sample.target, canvas)
        except Exception as error:  # decoders raise many kinds; the other images are still to be read
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
    """Decode and resize in the background, at most about ``ahead`` images before the one in use.

    Args:
        for_gpu: read in processes, since threads would compete with the one that keeps the GPU busy, and put pixels
            where a GPU can fetch them while it works.
    """
    images = _Images(source, indices, preparation, margin)
    if for_gpu and len(indices) > _PARCEL:
        return _in_processes(images, workers)
    return in_threads(images.__getitem__, range(len(images)), workers, ahead)


def in_threads(read: Callable[[int], Read], positions: Iterable[int], workers: int, ahead: int) -> Iterator[Read]:
    """Read each position in order, at most about ``ahead`` before the one in use; without workers, on demand."""
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


_PARCEL = 16  # images that a process sends together: sending many costs as much as sending one


def _in_processes(images: _Images, workers: int) -> Iterator[Prepared | Unreadable]:
    loader = DataLoader(
        images,
        batch_size=_PARCEL,
        num_workers=workers,
        collate_fn=_packed,
        pin_memory=torch.cuda.is_available(),
    )
    for parcel, pixels in loader:
        rest = iter(pixels)
        for image in parcel:
            yield replace(image, canvas=next(rest)) if isinstance(image, Prepared) else image


def _packed(images: list[Prepared | Unreadable]) -> tuple[list[Prepared | Unreadable], Tensor]:
    """The images without their pixels, and all pixels in one tensor."""
    canvases = [image.canvas for image in images if isinstance(image, Prepared)]
    blank = torch.empty(3, 0, 0, dtype=torch.uint8)
    bare = [replace(image, canvas=blank) if isinstance(image, Prepared) else image for image in images]
    return bare, torch.stack(canvases) if canvases else torch.empty(0)
