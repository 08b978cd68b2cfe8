"""Read images ahead of their use, in order; images that cannot be read are reported, not lost."""

import signal
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import active_children
from multiprocessing.util import Finalize
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..ops.geometry.shift import Pair
from .source import Source
from .transforms import Preparation

Canvases = dict[Any, UInt8[Tensor, "3 _ _"]]
_PARCEL = 16  # images that a process sends together: sending many costs as much as sending one


@dataclass(frozen=True)
class Prepared:
    """An image ready for the network, except for normalising.

    Args:
        target: as the source has it: a class, a mask, or None.
        canvases: its pixels, by the way they were prepared: the margin around a crop, or how a whole image fits.
    """

    index: int
    name: str
    target: Any
    canvases: Canvases

    @property
    def label(self) -> int | None:
        """The class of the image."""
        return self.target

    @property
    def canvas(self) -> UInt8[Tensor, "3 _ _"]:
        """The pixels, where there is one way to prepare them."""
        (canvas,) = self.canvases.values()
        return canvas


@dataclass(frozen=True)
class Unreadable:
    """An image that could not be read, and why."""

    index: int
    name: str
    reason: str


@dataclass(frozen=True)
class _Images(Dataset[Any]):
    """Some images of a source, each :class:`Prepared` or :class:`Unreadable`."""

    source: Source
    indices: Sequence[int]
    prepare: Callable[[Image.Image], Canvases]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Prepared | Unreadable:
        index = self.indices[position]
        try:
            sample = self.source[index]
            return Prepared(index, sample.name, sample.target, self.prepare(sample.image))
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
    return read_prepared(source, indices, partial(at_margins, preparation, [margin]), workers, ahead, for_gpu)


def at_margins(preparation: Preparation, margins: Sequence[Pair], image: Image.Image) -> Canvases:
    """An image with each margin around the crop."""
    return {margin: preparation.canvas(image, margin) for margin in margins}


def read_prepared(
    source: Source,
    indices: Sequence[int],
    prepare: Callable[[Image.Image], Canvases],
    workers: int = 4,
    ahead: int = 32,
    for_gpu: bool = False,
) -> Iterator[Prepared | Unreadable]:
    """The same with any preparation; ``for_gpu`` needs canvases of one size. Without workers, read on demand."""
    images = _Images(source, indices, prepare)
    if for_gpu and len(indices) > _PARCEL:
        yield from _in_processes(images, workers)
        return
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
    how: dict[str, Any] = {"collate_fn": _packed, "pin_memory": pin, "worker_init_fn": ignore_signals}
    for parcel, stacks in started(DataLoader(images, _PARCEL, num_workers=workers, **how)):
        rest = {key: iter(stack) for key, stack in stacks.items()}
        for image in parcel:
            readable = isinstance(image, Prepared)
            yield replace(image, canvases={key: next(rest[key]) for key in rest}) if readable else image


def ignore_signals(worker: int) -> None:
    """For a DataLoader: stop signals often go to a whole group of processes; the one that reads ends its workers."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)


def started(loader: DataLoader[Any]) -> Iterator[Any]:
    """Iterate over a loader whose workers ignore signals. Python would wait at exit for those that an error leaves."""
    before = active_children()
    batches = iter(loader)
    workers = WeakSet(child for child in active_children() if child not in before)
    Finalize(None, _kill, [workers], exitpriority=0)  # unlike atexit, after torch has ended what it can
    return batches


def _kill(workers: WeakSet[Any]) -> None:
    if workers and hasattr(signal, "SIGCHLD"):  # Windows has none
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would report them as crashed
    for worker in workers:
        worker.kill()


def _packed(images: list[Prepared | Unreadable]) -> tuple[list[Prepared | Unreadable], dict[Hashable, Tensor]]:
    """The images without their pixels, and all pixels of a kind in one tensor."""
    read = [image for image in images if isinstance(image, Prepared)]
    stacks = {key: torch.stack([image.canvases[key] for image in read]) for key in (read[0].canvases if read else ())}
    return [replace(image, canvases={}) if isinstance(image, Prepared) else image for image in images], stacks
