"""Show a classifier every view of every image, in batches of one size, and record its answers.

One size, because kernels round differently at another: a last, smaller batch would make an exact model look inexact.
Some also round differently at another place in a batch: where single views differ from the first of their image, that
one is shown again in their places.
Images come in chunks. Views are cut on the device when they are shown, for several images at once, from extended images
that protocols share, and dropped once answered, so memory holds a few batches whatever the number of images and shifts.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ...data import Preparation, Prepared, Unreadable
from ...ops.geometry.shift import Pair
from ...utils.async_copy import AsyncCopy
from ..metrics.consistency import bit_identical, logit_change
from ..protocols.registry import ShiftProtocol
from ..protocols.shifts import Jitter, windows
from .records import LabelAnswers, Record

_MOSTLY = 0.5  # of the shifted views of a batch: where fewer are exact, it is the model and not the place
_MOST = 8  # batches that are made of several images
_WELL = 0.95  # of the rows of a batch are views, not copies

Shifted = Int64[Tensor, "images views 2"]
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


def margin_of(protocols: list[ShiftProtocol], size: Pair) -> Pair:
    """How many pixels beyond the input the images must have for all protocols."""
    margins = [protocol.motion.margin(size) for protocol in protocols]
    return max(rows for rows, _ in margins), max(columns for _, columns in margins)


def canvas_margins(protocols: list[ShiftProtocol], preparation: Preparation) -> dict[str, Pair]:
    """The margin of the canvas that each protocol sees.

    One for all that fit into the image as the model wants it. Each other sees the image enlarged to its own margin, so
    that what a protocol measures does not depend on which others are asked for.
    """
    fitting = [each for each in protocols if preparation.has_room(each.motion.margin(preparation.size))]
    own = {each.name: each.motion.margin(preparation.size) for each in protocols}
    return own | {each.name: margin_of(fitting, preparation.size) for each in fitting}


class Plan:
    """The views of some images. A row is the number of a view, in the order in which they are shown."""

    def __init__(self) -> None:
        self.total = 0
        self.blocks: list[tuple[ShiftProtocol, Shifted]] = []  # shown one after the other
        self.rows: dict[str, Int64[Tensor, "images views"]] = {}  # of each protocol, the unshifted view first
        self.shifts: dict[str, Shifted] = {}  # of the same views
        self.reference = torch.empty(0, dtype=torch.int64)  # the row that each is compared with

    def add(self, protocol: ShiftProtocol, shifts: Shifted, reference: Tensor | None = None) -> Tensor:
        """The rows of more views; without others that they are compared with, they are compared with themselves."""
        rows = torch.arange(self.total, self.total + shifts[..., 0].numel()).view(shifts.shape[:2])
        self.total += rows.numel()
        self.blocks.append((protocol, shifts))
        compared = rows if reference is None else reference.expand(rows.shape)
        self.reference = torch.cat([self.reference, compared.flatten()])
        return rows

    @cached_property
    def first(self) -> Bool[Tensor, " rows"]:
        """Whether a row is an unshifted view."""
        return self.reference == torch.arange(self.total)

    @cached_property
    def first_of(self) -> Int64[Tensor, " rows"]:
        """The unshifted view of each row, as a number among these."""
        return (self.first.cumsum(0) - 1)[self.reference]


@dataclass(frozen=True)
class ViewMaker:
    """Makes views of images."""

    protocols: list[ShiftProtocol]
    preparation: Preparation
    shifts: Mapping[str, int | None]  # how many of each protocol, by its name; every shift there is for None
    seed: int
    batch_size: int
    device: torch.device | str

    def images_together(self) -> int:
        """The fewest images that fill their batches well; otherwise those that fill them best."""
        margins = canvas_margins(self.protocols, self.preparation)
        views = len({(each.unshifted(), margins[each.name]) for each in self.protocols})
        for each in self.protocols:
            views += each.motion.count(self.shifts[each.name], self.preparation.size)
        few = range(1, max(1, _MOST * self.batch_size // views) + 1)
        full = {images: images * views / ceil(images * views / self.batch_size) / self.batch_size for images in few}
        return next((images for images in few if full[images] >= _WELL), max(few, key=full.__getitem__))

    def plan(self, images: list[Prepared]) -> Plan:
        """All views of some images; an unshifted one is shown once, before those that are compared with it."""
        plan, unshifted = Plan(), {}
        looks = [self._look(protocol, images) for protocol in self.protocols]
        for look, protocol in sorted(zip(looks, self.protocols, strict=True), key=lambda each: looks.index(each[0])):
            image, margin, _ = look
            none = torch.zeros(len(images), 1, 2, dtype=torch.int64)
            if (image, margin) not in unshifted:
                unshifted[image, margin] = plan.add(protocol, none)
            count, size = self.shifts[protocol.name], self.preparation.size
            drawn = torch.stack([protocol.shifts(each.index, count, size, self.seed) for each in images])
            first = unshifted[image, margin]
            plan.rows[protocol.name] = torch.cat([first, plan.add(protocol, drawn, first)], 1)
            plan.shifts[protocol.name] = torch.cat([none, drawn], 1)
        return plan

    def _look(self, protocol: ShiftProtocol, images: list[Prepared]) -> tuple[Hashable, Pair, Hashable]:
        """What a protocol sees windows of: the image before it moves, its margin, and how it is extended."""
        margin, given = canvas_margins(self.protocols, self.preparation)[protocol.name], images[0].canvases
        return protocol.unshifted(), margin if margin in given else next(iter(given)), protocol.motion.extension()

    def batches(self, plan: Plan, images: list[Prepared]) -> Iterator[Float[Tensor, "B C H W"]]:
        """The views in the order of their rows, ``batch_size`` at a time; the last batch is filled up with copies."""
        parts: list[Tensor] = []
        missing = self.batch_size
        for views in self._views(plan, images):
            parts += views[:missing], views[missing:]  # no more than a batch at a time, so one is enough
            missing -= len(views)
            if missing <= 0:
                *whole, rest = parts
                yield torch.cat(whole)
                parts, missing = [rest], missing + self.batch_size
        if missing < self.batch_size:
            last = torch.cat(parts)
            yield torch.cat([last, last[:1].expand(missing, *last.shape[1:])])

    def _views(self, plan: Plan, images: list[Prepared]) -> Iterator[Float[Tensor, "some C H W"]]:
        """The views in the order of their rows, at most a batch at a time."""
        size, current, extended, pixels = self.preparation.size, None, torch.empty(0), {}
        for margin in images[0].canvases:  # all images on the device
            stack = [image.canvases[margin].to(self.device, non_blocking=True) for image in images]
            pixels[margin] = self._normalise(torch.stack(stack))
        for protocol, shifts in plan.blocks:
            look = self._look(protocol, images)
            if look != current:  # blocks of a look come one after the other
                current, extended = look, self._extended(protocol, pixels[look[1]], look[1], images)
            numbers = torch.arange(len(images)).repeat_interleave(shifts.shape[1])
            where = torch.cat([numbers[:, None], protocol.motion.origin(shifts.flatten(0, 1), size)], 1)
            for part in where.split(self.batch_size):
                yield windows(extended, part, size, protocol.motion.step)

    @cached_property
    def _normalise(self) -> Callable[[Tensor], Tensor]:
        return self.preparation.normaliser(self.device)  # made once: it waits for the device

    def _extended(self, protocol: ShiftProtocol, pixels: Tensor, margin: Pair, images: list[Prepared]) -> Tensor:
        """Images as a protocol distorts them, beyond their border."""
        needed = protocol.motion.margin(self.preparation.size)
        rows, columns = margin[0] - needed[0], margin[1] - needed[1]
        inside = (..., slice(rows, pixels.shape[-2] - rows), slice(columns, pixels.shape[-1] - columns))
        middle = pixels[inside]
        if isinstance(protocol.motion, Jitter):
            versions = [protocol.repaint(one.canvases[margin][inside], one.index, self.seed) for one in images]
            middle = self._normalise(torch.stack(versions).to(self.device, non_blocking=True))
        if protocol.distortion is not None:
            pairs = zip(middle, images, strict=True)
            middle = torch.stack([protocol.distort(one, image.index, self.seed) for one, image in pairs])
        return protocol.motion.extend(middle, self.preparation.size)


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
