"""Show a classifier every view of every image, in batches of one size, and record its answers.

One size, because kernels round differently at another: a last, smaller batch would make an exact model look inexact.
Some also round differently at another place in a batch: where single views differ from the first of their image, that
one is shown again in their places.
Views are dropped once answered, so memory holds a few batches whatever the number of images and shifts.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...data import Preparation, Prepared, Unreadable
from ...ops.geometry.shift import Pair
from ...utils.async_copy import AsyncCopy
from ..metrics.consistency import bit_identical, logit_change
from ..protocols.registry import ShiftProtocol
from .records import Record
from .view_batches import Pending, View, ViewMaker

MOSTLY = 0.5  # of the shifted views of a batch: where fewer are exact, it is the model and not the place

Forward = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B classes"]]


@dataclass
class _Shown:
    """A batch that was answered."""

    pixels: Float[Tensor, "B C H W"]
    views: list[View]
    logits: Float[Tensor, "B classes"]
    answers: AsyncCopy  # label, change and exactness of each row


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
    """The answers to each image, in order, as soon as they are complete.

    Args:
        forward: normalised images to logits.
        images: from :func:`~trueshift.data.read_ahead`, with the margin of :func:`~trueshift.eval.margin_of`; where the
            preparation has no room for it, all protocols see the image larger (see :func:`canvas_groups`).
        protocols: what is done to each image.
        shifts: how many of each protocol, by its name; every shift for None.
    """
    waiting: deque[Pending | Unreadable] = deque()
    unread: deque[_Shown] = deque()

    def readable() -> Iterator[tuple[Prepared, Pending]]:
        for image in images:
            if isinstance(image, Unreadable):
                waiting.append(image)
            else:
                pending = Pending(Record(image.index, image.name, image.label))
                waiting.append(pending)
                yield image, pending

    def finished() -> Iterator[Record | Unreadable]:
        while waiting:
            first = waiting[0]
            if isinstance(first, Pending):
                if first.unanswered or not first.record.answers:
                    return
                _share_first_views(first)
                yield first.record
            else:
                yield first
            waiting.popleft()

    for batch, views in ViewMaker(protocols, preparation, shifts, seed, batch_size, device).batches(readable()):
        with torch.inference_mode():
            logits = check_logits(forward(batch), len(batch), "classes")
            unread.append(_Shown(batch, views, logits, AsyncCopy(_compare(batch, logits, views))))
        if len(unread) > 1:  # read one batch late: the device works on the next one meanwhile
            _keep(unread.popleft(), forward)
        yield from finished()
    while unread:
        _keep(unread.popleft(), forward)
    yield from finished()


def check_logits(logits: Any, count: int, shape: str) -> Tensor:
    """Refuse what is not a tensor of ``count`` rows with as many more dimensions as ``shape`` names."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 + shape.count(",") or len(logits) != count:
        what = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model answered {count} images with {what}: needs logits of shape [{count}, {shape}]")
    return logits


def _compare(pixels: Tensor, logits: Tensor, views: list[View]) -> Tensor:
    """Labels, changes and exactness of a batch, still on its device."""
    for row, view in enumerate(views):
        if view.number == 0:
            view.image.references[view.protocol] = logits[row].clone()
            view.image.first_views[view.protocol] = pixels[row]
    reference, logits = torch.stack([view.image.references[view.reference] for view in views]), logits[: len(views)]
    labels = logits.argmax(1).masked_fill(logits.isnan().any(1), -1)
    parts = (labels, logit_change(reference, logits), bit_identical(reference, logits))
    return torch.stack([part.double() for part in parts], 1)


def _keep(shown: _Shown, forward: Forward) -> None:
    """Write the answers of a batch to their records."""
    for view, (label, change, exact) in zip(shown.views, _in_their_places(shown, forward), strict=True):
        answers, number = view.image.record.answers[view.protocol], view.number
        answers.labels[number], answers.change[number], answers.exact[number] = label, change, exact
        view.image.unanswered -= 1


def _in_their_places(shown: _Shown, forward: Forward) -> np.ndarray:
    """The answers; single views that differ are compared with the first view in the same place of the same batch."""
    values = shown.answers.numpy().copy()
    shifted = [view.number > 0 for view in shown.views]
    differ = np.flatnonzero(values[:, 2] == 0)
    if not len(differ) or np.mean(values[shifted, 2]) < MOSTLY:
        return values
    first_views = torch.stack([shown.views[row].image.first_views[shown.views[row].reference] for row in differ])
    rows = torch.from_numpy(differ).to(shown.pixels.device)
    with torch.inference_mode():
        reference = forward(shown.pixels.index_copy(0, rows, first_views))[rows]
        logits = shown.logits[rows]
        again = torch.stack([logit_change(reference, logits), bit_identical(reference, logits).double()], 1)
    values[differ, 1:] = again.cpu().numpy()
    return values


def _share_first_views(image: Pending) -> None:
    """Protocols that did not show the unshifted image again take the answer of the one that did."""
    for name, source in image.shown_by.items():
        answers, first = image.record.answers[name], image.record.answers[source]
        answers.labels[0], answers.change[0], answers.exact[0] = first.labels[0], first.change[0], first.exact[0]


def canvas_groups(protocols: list[ShiftProtocol], preparation: Preparation) -> list[list[ShiftProtocol]]:
    """Protocols that can share a canvas: all that fit into the image as the model wants it; each other margin apart."""
    groups: dict[Pair, list[ShiftProtocol]] = {}
    for protocol in protocols:
        margin = protocol.motion.margin(preparation.size)
        groups.setdefault((0, 0) if preparation.has_room(margin) else margin, []).append(protocol)
    return list(groups.values())


def joined(records: Sequence[Record | Unreadable]) -> Record | Unreadable:
    """The answers of all canvas groups to one image, if it could be read each time."""
    first, *others = records
    for other in others:
        if isinstance(first, Unreadable):
            break
        if isinstance(other, Unreadable):
            return other
        first.answers.update(other.answers)
    return first
