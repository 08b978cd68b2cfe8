"""Show a model every view of every image, in batches of one size, and keep what it answered.

One size, because kernels round differently at another: a last, smaller batch would make an exact model look inexact.
Views of different images share batches, are cut on the device from an image that was decoded once, and are dropped once
answered, so that memory holds a few batches whatever the number of images and shifts.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..data import Preparation, Prepared, Unreadable
from ..ops.shift import Pair
from .metrics import bit_identical, logit_change
from .motions import windows
from .protocols import Protocol

Forward = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B classes"]]


@dataclass
class Answers:
    """What a model said to one image under one protocol. The first view is the unshifted image."""

    shifts: np.ndarray  # [views, 2]; the first is (0, 0)
    labels: np.ndarray  # [views]
    change: np.ndarray  # [views], the largest change of a logit against the first view
    exact: np.ndarray  # [views], whether all bits of the logits are the first view's

    @classmethod
    def blank(cls, shifts: np.ndarray) -> "Answers":
        """Nothing said yet."""
        count = len(shifts)
        return cls(shifts, np.full(count, -1), np.full(count, np.nan), np.zeros(count, bool))


@dataclass
class ImageRecord:
    """All answers to one image."""

    index: int
    name: str
    label: int | None
    answers: dict[str, Answers] = field(default_factory=dict)


@dataclass
class _Pending:
    """An image whose views are on their way."""

    record: ImageRecord
    unanswered: int = 0
    references: dict[str, Tensor] = field(default_factory=dict)  # logits of the first view, by protocol
    shown_by: dict[str, str] = field(default_factory=dict)  # which protocol shows the first view for which


@dataclass
class _Segment:
    """Rows of a batch that belong to one image and protocol."""

    image: _Pending
    protocol: str
    first: int  # which view the first row shows
    count: int
    reference: str  # the protocol that has shown the unshifted image


def measure(
    forward: Forward,
    images: Iterable[Prepared | Unreadable],
    protocols: list[Protocol],
    preparation: Preparation,
    shifts: Mapping[str, int | None],
    seed: int = 0,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> Iterator[ImageRecord | Unreadable]:
    """The answers to each image, in order, as soon as they are complete.

    Args:
        forward: normalised images to logits.
        images: from :func:`~trueshift.data.read_ahead`, with the margin that :func:`margin_of` names.
        protocols: what is done to each image.
        shifts: how many of each protocol, by its name; every shift there is for None.
    """
    margin = margin_of(protocols, preparation.size)
    normalise = preparation.normaliser(device)
    waiting: deque[_Pending | Unreadable] = deque()
    unread: deque[tuple[_Arriving, list[_Segment]]] = deque()

    def chunks() -> Iterator[tuple[Tensor, list[_Segment]]]:
        for image in images:
            if isinstance(image, Unreadable):
                waiting.append(image)
                continue
            pending = _Pending(ImageRecord(image.index, image.name, image.label))
            waiting.append(pending)
            canvas = normalise(image.canvas.to(device, non_blocking=True))
            yield from _views(pending, canvas, protocols, preparation.size, margin, shifts, seed, batch_size)

    def finished() -> Iterator[ImageRecord | Unreadable]:
        while waiting:
            first = waiting[0]
            if isinstance(first, _Pending):
                if first.unanswered or not first.record.answers:
                    return
                _share_first_views(first)
                yield first.record
            else:
                yield first
            waiting.popleft()

    for batch, segments in _batches(chunks(), batch_size):
        with torch.inference_mode():
            answers = _Arriving(_compare(_checked(forward(batch), len(batch)), segments))
        unread.append((answers, segments))
        if len(unread) > 1:  # read one batch late: the device works on the next one meanwhile
            _keep(*unread.popleft())
        yield from finished()
    while unread:
        _keep(*unread.popleft())
    yield from finished()


def margin_of(protocols: list[Protocol], size: Pair) -> Pair:
    """How many pixels beyond the input the images must have for all protocols."""
    margins = [protocol.motion.margin(size) for protocol in protocols]
    return max(rows for rows, _ in margins), max(columns for _, columns in margins)


def _views(
    pending: _Pending,
    canvas: Tensor,
    protocols: list[Protocol],
    size: Pair,
    margin: Pair,
    shifts: Mapping[str, int | None],
    seed: int,
    batch_size: int,
) -> Iterator[tuple[Tensor, list[_Segment]]]:
    """All views of one image, at most a batch at a time. The unshifted image is shown once for all protocols."""
    record = pending.record
    shown: dict[object, str] = {}
    looks: dict[object, list[tuple[Protocol, Tensor, _Segment]]] = {}  # by the extended image they are windows of
    for protocol in protocols:
        drawn = protocol.shifts(record.index, shifts[protocol.name], size, seed)
        all_shifts = torch.cat([torch.zeros(1, 2, dtype=torch.int64), drawn])
        record.answers[protocol.name] = Answers.blank(all_shifts.numpy())
        reference = shown.setdefault(protocol.distortion, protocol.name)
        pending.shown_by[protocol.name] = reference
        start = 0 if reference == protocol.name else 1
        segment = _Segment(pending, protocol.name, start, len(all_shifts) - start, reference)
        pending.unanswered += segment.count
        origins = protocol.motion.origin(all_shifts[start:], size)
        looks.setdefault((protocol.distortion, protocol.motion.extension()), []).append((protocol, origins, segment))
    for together in looks.values():
        first = together[0][0]
        image = first.distort(_middle(canvas, margin, first.motion.margin(size)), record.index, seed)
        extended = first.motion.extend(image, size)
        origins = torch.cat([each for _, each, _ in together])
        segments = deque(segment for _, _, segment in together)
        for part in origins.split(batch_size):
            yield windows(extended, part, size), _taken(segments, len(part))


def _taken(segments: deque[_Segment], count: int) -> list[_Segment]:
    """The next ``count`` rows off the segments, which keep the rest."""
    taken = []
    while count:
        first = segments.popleft()
        if first.count > count:
            segments.appendleft(replace(first, first=first.first + count, count=first.count - count))
            first = replace(first, count=count)
        taken.append(first)
        count -= first.count
    return taken


def _middle(canvas: Tensor, margin: Pair, wanted: Pair) -> Tensor:
    rows, columns = margin[0] - wanted[0], margin[1] - wanted[1]
    return canvas[:, rows : canvas.shape[1] - rows, columns : canvas.shape[2] - columns]


def _batches(
    chunks: Iterable[tuple[Tensor, list[_Segment]]], batch_size: int
) -> Iterator[tuple[Tensor, list[_Segment]]]:
    """Views of any images, exactly ``batch_size`` at a time; the last batch is filled up with copies."""
    parts: list[Tensor] = []
    segments: deque[_Segment] = deque()
    filled = 0
    for views, belonging in chunks:
        segments.extend(belonging)
        parts.append(views)
        filled += len(views)
        if filled >= batch_size:  # a chunk is no larger than a batch, so one is enough
            rest = filled - batch_size
            parts[-1] = views[: len(views) - rest]
            yield torch.cat(parts), _taken(segments, batch_size)
            parts, filled = ([views[len(views) - rest :]] if rest else []), rest
    if filled:
        last = torch.cat(parts)
        copies = last[:1].expand(batch_size - filled, *last.shape[1:])
        yield torch.cat([last, copies]), list(segments)


def _checked(logits: Any, count: int) -> Tensor:
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != count:
        what = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model answered {count} images with {what}: needs logits of shape [{count}, classes]")
    return logits


def _compare(logits: Tensor, segments: list[_Segment]) -> Tensor:
    """Labels, changes and exactness of a batch, still on its device."""
    row, references = 0, []
    for segment in segments:
        if segment.first == 0:
            segment.image.references[segment.protocol] = logits[row].clone()
        references.append(segment.image.references[segment.reference].expand(segment.count, -1))
        row += segment.count
    logits, reference = logits[:row], torch.cat(references)
    labels = logits.argmax(1).masked_fill(logits.isnan().any(1), -1)
    parts = (labels, logit_change(reference, logits), bit_identical(reference, logits))
    return torch.stack([part.double() for part in parts], 1)


class _Arriving:
    """A small tensor on its way from the device; asked for, it waits for its own batch and for no later one."""

    def __init__(self, values: Tensor) -> None:
        self.ready: torch.cuda.Event | None = None
        if values.is_cuda:
            self.values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.values.copy_(values, non_blocking=True)
            self.ready = torch.cuda.Event()
            self.ready.record()
        else:
            self.values = values.cpu()

    def numpy(self) -> np.ndarray:
        """The values, once they are here."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.values.numpy()


def _keep(answers: _Arriving, segments: list[_Segment]) -> None:
    """Write a batch's answers to the records they belong to."""
    values, row = answers.numpy(), 0
    for segment in segments:
        here = values[row : row + segment.count]
        there = slice(segment.first, segment.first + segment.count)
        said = segment.image.record.answers[segment.protocol]
        said.labels[there], said.change[there], said.exact[there] = here[:, 0], here[:, 1], here[:, 2]
        segment.image.unanswered -= segment.count
        row += segment.count


def _share_first_views(image: _Pending) -> None:
    """Protocols that did not show the unshifted image again take the answer of the one that did."""
    for name, source in image.shown_by.items():
        said, first = image.record.answers[name], image.record.answers[source]
        said.labels[0], said.change[0], said.exact[0] = first.labels[0], first.change[0], first.exact[0]
