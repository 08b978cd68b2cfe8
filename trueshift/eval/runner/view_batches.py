"""All views of all images, in batches of one size.

Views are cut on the device, for several images at once, from extended images that protocols share; views of different
images share batches.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import torch
from torch import Tensor

from ...data import Preparation, Prepared
from ...ops.geometry.shift import Pair
from ..protocols.registry import ShiftProtocol
from ..protocols.shifts import windows
from .records import LabelAnswers, Record


@dataclass
class Pending:
    """An image whose views are on their way."""

    record: Record
    unanswered: int = 0
    references: dict[str, Tensor] = field(default_factory=dict)  # logits of the first view, by protocol
    first_views: dict[str, Tensor] = field(default_factory=dict)  # the view itself, a row of its batch
    shown_by: dict[str, str] = field(default_factory=dict)  # which protocol shows the first view for which


@dataclass
class Segment:
    """Rows of a batch that belong to one image and protocol."""

    image: Pending
    protocol: str
    first: int  # which view the first row shows
    count: int
    reference: str  # the protocol that has shown the unshifted image


@dataclass
class _Look:
    """Windows of one extended version of each image."""

    protocol: ShiftProtocol  # any of those that share it
    which: list[int] = field(default_factory=list)  # of the images, for each segment
    origins: list[Tensor] = field(default_factory=list)
    segments: deque[Segment] = field(default_factory=deque)


def margin_of(protocols: list[ShiftProtocol], size: Pair) -> Pair:
    """How many pixels beyond the input the images must have for all protocols."""
    margins = [protocol.motion.margin(size) for protocol in protocols]
    return max(rows for rows, _ in margins), max(columns for _, columns in margins)


@dataclass(frozen=True)
class ViewMaker:
    """Makes views of images.

    Args:
        shifts: how many of each protocol, by its name; every shift there is for None.
    """

    protocols: list[ShiftProtocol]
    preparation: Preparation
    shifts: Mapping[str, int | None]
    seed: int
    batch_size: int
    device: torch.device | str

    def batches(self, images: Iterable[tuple[Prepared, Pending]]) -> Iterator[tuple[Tensor, list[Segment]]]:
        """Exactly ``batch_size`` views at a time; the last batch is filled up with copies."""
        parts: list[Tensor] = []
        segments: deque[Segment] = deque()
        filled = 0
        for views, belonging in self._chunks(iter(images)):
            segments.extend(belonging)
            parts.append(views)
            filled += len(views)
            if filled >= self.batch_size:  # a chunk is no larger than a batch, so one is enough
                rest = filled - self.batch_size
                parts[-1] = views[: len(views) - rest]
                yield torch.cat(parts), _taken(segments, self.batch_size)
                parts, filled = ([views[len(views) - rest :]] if rest else []), rest
        if filled:
            last = torch.cat(parts)
            copies = last[:1].expand(self.batch_size - filled, *last.shape[1:])
            yield torch.cat([last, copies]), list(segments)

    def _chunks(self, images: Iterator[tuple[Prepared, Pending]]) -> Iterator[tuple[Tensor, list[Segment]]]:
        """Views of a few images, at most a batch at a time."""
        margin = margin_of(self.protocols, self.preparation.size)
        normalise = self.preparation.normaliser(self.device)
        together = self._images_together()
        while group := list(islice(images, together)):
            canvases = torch.stack([image.canvas.to(self.device, non_blocking=True) for image, _ in group])
            yield from self._views([pending for _, pending in group], normalise(canvases), margin)

    def _images_together(self) -> int:
        """As many images as fill a batch: more would only wait."""
        views = [self.shifts[protocol.name] for protocol in self.protocols]
        if None in views:
            return 1
        return max(1, self.batch_size // (1 + sum(count or 0 for count in views)))

    def _views(self, images: list[Pending], canvases: Tensor, margin: Pair) -> Iterator[tuple[Tensor, list[Segment]]]:
        size = self.preparation.size
        for look in self._looks(images):
            motion = look.protocol.motion
            middle = _middle(canvases, margin, motion.margin(size))
            if look.protocol.distortion is not None:
                pairs = zip(middle, images, strict=True)
                middle = torch.stack([look.protocol.distort(one, each.record.index, self.seed) for one, each in pairs])
            extended = motion.extend(middle, size)
            counts = torch.tensor([len(origins) for origins in look.origins])
            which = torch.tensor(look.which).repeat_interleave(counts)
            where = torch.cat([which[:, None], torch.cat(look.origins)], 1)
            for part in where.split(self.batch_size):
                yield windows(extended, part, size), _taken(look.segments, len(part))

    def _looks(self, images: list[Pending]) -> Iterable[_Look]:
        """What is to be seen of each image. The unshifted image is shown once for all protocols."""
        looks: dict[object, _Look] = {}
        size = self.preparation.size
        for number, pending in enumerate(images):
            shown: dict[object, str] = {}
            for protocol in self.protocols:
                drawn = protocol.shifts(pending.record.index, self.shifts[protocol.name], size, self.seed)
                all_shifts = torch.cat([torch.zeros(1, 2, dtype=torch.int64), drawn])
                pending.record.answers[protocol.name] = LabelAnswers.blank(all_shifts.numpy())
                reference = shown.setdefault(protocol.unshifted(), protocol.name)
                pending.shown_by[protocol.name] = reference
                start = 0 if reference == protocol.name else 1
                segment = Segment(pending, protocol.name, start, len(all_shifts) - start, reference)
                pending.unanswered += segment.count
                look = looks.setdefault((protocol.unshifted(), protocol.motion.extension()), _Look(protocol))
                look.which.append(number)
                look.origins.append(protocol.motion.origin(all_shifts[start:], size))
                look.segments.append(segment)
        return looks.values()


def _taken(segments: deque[Segment], count: int) -> list[Segment]:
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


def _middle(canvases: Tensor, margin: Pair, wanted: Pair) -> Tensor:
    rows, columns = margin[0] - wanted[0], margin[1] - wanted[1]
    return canvases[..., rows : canvases.shape[-2] - rows, columns : canvases.shape[-1] - columns]
