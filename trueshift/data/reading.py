"""Read pictures a little ahead of their use, in order, each once; those that cannot be read are told, not lost."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from ..ops.shift import Pair
from .prepare import Preparation
from .source import ImageSource


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


def read_ahead(
    source: ImageSource,
    indices: Iterable[int],
    preparation: Preparation,
    margin: Pair = (0, 0),
    workers: int = 4,
    ahead: int = 32,
    pinned: bool = False,
) -> Iterator[Prepared | Unreadable]:
    """Decode and resize in threads, never more than ``ahead`` pictures before the one that is used.

    Args:
        pinned: put pixels where a GPU can fetch them while it works.
    """

    def read(index: int) -> Prepared | Unreadable:
        try:
            picture = source[index]
            canvas = preparation.canvas(picture.image, margin)
            return Prepared(index, picture.name, picture.label, _pinned(canvas) if pinned else canvas)
        except Exception as error:  # decoders raise many kinds; whichever it is, the others can go on
            return Unreadable(index, source.name(index), f"{type(error).__name__}: {error}")

    waiting: deque[Future[Prepared | Unreadable]] = deque()
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        for index in indices:
            waiting.append(pool.submit(read, index))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _pinned(canvas: Tensor) -> Tensor:
    there = torch.empty_like(canvas, pin_memory=True)
    np.copyto(there.numpy(), canvas.numpy())  # by numpy: torch would start a pool of threads in each of ours
    return there
