"""Read images ahead of their use, in order; images that cannot be read are reported, not lost."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..ops.geometry.shift import Pair
from .source import Sample, Source
from .transforms import Preparation

_PARCEL = 16  # images that a process sends together: sending many costs as much as sending one


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
    """Some images of a source, each prepared by a function of its index and sample, or :class:`Unreadable`."""

    source: Source
    indices: Sequence[int]
    prepare: Callable[[int, Sample], Any]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Any:
        index = self.indices[position]
        try:
            return self.prepare(index, self.source[index])
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
        for_gpu: read in processes, since threads would compete with the one that keeps the GPU busy, and pin memory.
    """
    prepare = partial(_prepared, preparation, margin)
    if for_gpu and len(indices) > _PARCEL:
        return _in_processes(_Images(source, indices, prepare), workers)
    return read_samples(source, indices, prepare, workers, ahead)


def _prepared(preparation: Preparation, margin: Pair, index: int, sample: Sample) -> Prepared:
    return Prepared(index, sample.name, sample.target, preparation.canvas(sample.image, margin))


def read_samples(
    source: Source, indices: Sequence[int], prepare: Callable[[int, Sample], Any], workers: int, ahead: int
) -> Iterator[Any]:
    """What ``prepare`` makes of each index and sample, or :class:`Unreadable`; in threads, or without any on demand."""
    images = _Images(source, indices, prepare)
    if not workers:
        yield from map(images.__getitem__, range(len(images)))
        return
    waiting: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        for position in range(len(images)):
            waiting.append(pool.submit(images.__getitem__, position))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _in_processes(images: _Images, workers: int) -> Iterator[Prepared | Unreadable]:
    pin = torch.cuda.is_available()
    for parcel, pixels in DataLoader(images, _PARCEL, num_workers=workers, collate_fn=_packed, pin_memory=pin):
        rest = iter(pixels)
        for image in parcel:
            yield replace(image, canvas=next(rest)) if isinstance(image, Prepared) else image


def _packed(images: list[Prepared | Unreadable]) -> tuple[list[Prepared | Unreadable], Tensor]:
    """The images without their pixels, and all pixels in one tensor."""
    canvases = [image.canvas for image in images if isinstance(image, Prepared)]
    blank = torch.empty(3, 0, 0, dtype=torch.uint8)
    bare = [replace(image, canvas=blank) if isinstance(image, Prepared) else image for image in images]
    return bare, torch.stack(canvases) if canvases else torch.empty(0)
