"""Show a classifier every view of every image, in batches of one size, and record its answers.

One size, because kernels round differently at another: a last, smaller batch would make an exact model look inexact.
Some also round differently at another place in a batch: where single views differ from the first of their image, that
one is shown again in their places.
Images come in chunks. Views are made when they are shown and dropped once answered, so memory holds a few batches
whatever the number of images and shifts.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ...data import Preparation, Prepared, Unreadable
from ...utils.async_copy import AsyncCopy
from ..metrics.consistency import bit_identical, logit_change
from ..protocols.registry import ShiftProtocol
from .records import LabelAnswers, Record
from .view_batches import ViewMaker

_MOSTLY = 0.5  # of the shifted views of a batch: where fewer are exact, it is the model and not the place

Forward = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B classes"]]


def measure(
    forward: Forward,
    images: Iterable[Prepared | Unreadable],
    protocols: list[ShiftProtocol],
    preparation: Preparation,
    shifts: Mapping[str, int | None],
    seed: int = 0,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> Iterator[Record | Unreadable]:
    """The answers to each image, in order.

    Args:
        forward: normalised images to logits.
        images: from :func:`~trueshift.data.read_ahead`, with the margin of :func:`~trueshift.eval.margin_of` (where the
            preparation has no room for it, all protocols see the image larger), or with all of :func:`.canvas_margins`.
        protocols: what is done to each image.
        shifts: how many of each protocol, by its name; every shift for None.
    """
    views = ViewMaker(protocols, preparation, shifts, seed, batch_size, device)
    images, together = iter(images), views.images_together()
    unread: deque[_Chunk] = deque()
    while some := list(islice(images, together)):
        unread.append(_Chunk(forward, views, some))
        if len(unread) > 1:  # read one chunk late: the device works on the next one meanwhile
            yield from unread.popleft().records()
    for chunk in unread:
        yield from chunk.records()


def check_logits(logits: Any, count: int, shape: str) -> Tensor:
    """Refuse what is not a tensor of ``count`` rows with as many more dimensions as ``shape`` names."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 + shape.count(",") or len(logits) != count:
        what = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model answered {count} images with {what}: needs logits of shape [{count}, {shape}]")
    return logits


@dataclass(frozen=True)
class _Batch:
    """Views that were shown: some rows of a chunk."""

    rows: slice
    pixels: Float[Tensor, "B C H W"]
    logits: Float[Tensor, "rows classes"]
    answers: AsyncCopy  # label, change and exactness of each row


class _Chunk:
    """A few images, shown in all their views."""

    @torch.inference_mode()
    def __init__(self, forward: Forward, views: ViewMaker, images: list[Prepared | Unreadable]) -> None:
        self.forward, self.views = forward, views
        self.images = [i if isinstance(i, Unreadable) else Record(i.index, i.name, i.target) for i in images]
        self.unread: deque[_Batch] = deque()
        readable = [image for image in images if isinstance(image, Prepared)]
        if not readable:
            return
        self.plan = views.plan(readable)
        self.answers = np.zeros((self.plan.total, 3))  # label, change and exactness of each row
        self.first_pixels: list[Tensor] = []  # of the unshifted views shown so far
        self.first_logits: list[Tensor] = []
        for start, pixels in enumerate(views.batches(self.plan, readable)):
            self._show(pixels, slice(start * len(pixels), (start + 1) * len(pixels)))
            if len(self.unread) > 1:
                self._read(self.unread.popleft())

    def _show(self, pixels: Float[Tensor, "B C H W"], rows: slice) -> None:
        logits = check_logits(self.forward(pixels), len(pixels), "classes")
        first = self.plan.first[rows].nonzero().flatten()
        if len(first):
            self.first_pixels.append(_rows(pixels, first))
            self.first_logits.append(_rows(logits, first))
        reference = _rows(torch.cat(self.first_logits), self.plan.first_of[rows])
        logits = logits[: len(reference)]
        labels = logits.argmax(1).masked_fill(logits.isnan().any(1), -1)
        answers = torch.cat([labels.double()[:, None], _compared(reference, logits)], 1)
        self.unread.append(_Batch(rows, pixels, logits, AsyncCopy(answers)))

    def _read(self, batch: _Batch) -> None:
        """Keep the answers; single views that differ are compared with the first in the same place of the batch."""
        answers = self.answers[batch.rows]
        answers[:] = batch.answers.numpy()
        differ = torch.from_numpy(np.flatnonzero(answers[:, 2] == 0))
        shifted = ~self.plan.first[batch.rows].numpy()
        if not len(differ) or answers[shifted, 2].mean() < _MOSTLY:
            return
        with torch.inference_mode():
            first = _rows(torch.cat(self.first_pixels), self.plan.first_of[batch.rows][differ])
            again = self.forward(batch.pixels.index_copy(0, differ.to(first.device), first))
            answers[differ, 1:] = _compared(_rows(again, differ), _rows(batch.logits, differ)).cpu().numpy()

    def records(self) -> Iterator[Record | Unreadable]:
        """The answers to each image."""
        while self.unread:
            self._read(self.unread.popleft())
        place = 0
        for image in self.images:
            if isinstance(image, Record):
                for protocol in self.views.protocols:
                    shifts, rows = self.plan.shifts[protocol.name][place], self.plan.rows[protocol.name][place]
                    labels, change, exact = self.answers[rows].T
                    answers = LabelAnswers(shifts.numpy(), labels.astype(np.int64), change, exact.astype(bool))
                    image.answers[protocol.name] = answers
                place += 1
            yield image


def _rows(values: Tensor, numbers: Int64[Tensor, " n"]) -> Tensor:
    """Some rows, without waiting for the device."""
    return values[numbers.to(values.device, non_blocking=True)]


def _compared(reference: Float[Tensor, "n classes"], logits: Float[Tensor, "n classes"]) -> Float[Tensor, "n 2"]:
    """The change of each row, and whether it is exact."""
    return torch.stack([logit_change(reference, logits), bit_identical(reference, logits).double()], 1)
