"""All views of all images, in batches of one size.

Views are cut on the device, for several images at once, from extended images that protocols share; views of different
images share batches.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

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


class View(NamedTuple):
    """A row of a batch."""

    image: Pending
    protocol: str
    number: int  # among the views of the protocol; 0 is the unshifted image
    reference: str  # the protocol that has shown the unshifted image


@dataclass
class _Look:
    """Windows of one extended version of each image."""

    protocol: ShiftProtocol  # any of those that share it
    where: list[Tensor] = field(default_factory=list)  # number of the image, row and column of each window
    views: list[View] = field(default_factory=list)


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

    def batches(self, images: Iterable[tuple[Prepared, Pending]]) -> Iterator[tuple[Tensor, list[View]]]:
        """Exactly ``batch_size`` views at a time; the last batch is filled up with copies."""
        parts: list[Tensor] = []
        views: list[View] = []
        for pixels, belonging in self._chunks(iter(images)):
            parts.append(pixels)
            views += belonging
            if len(views) >= self.batch_size:  # a chunk is no larger than a batch, so one is enough
                parts[-1], rest = pixels.tensor_split([len(pixels) + self.batch_size - len(views)])
                yield torch.cat(parts), views[: self.batch_size]
                parts, views = [rest], views[self.batch_size :]
        if views:
            last = torch.cat(parts)
            copies = last[:1].expand(self.batch_size - len(last), *last.shape[1:])
            yield torch.cat([last, copies]), views

    def _chunks(self, images: Iterator[tuple[Prepared, Pending]]) -> Iterator[tuple[Tensor, list[View]]]:
        """Views of a few images, at most a batch at a time."""
        margin = margin_of(self.protocols, self.preparation.size)
        normalise = self.preparation.normaliser(self.device)
        counts = [self.shifts[protocol.name] for protocol in self.protocols]
        # as many images as fill a batch: more would only wait
        together = 1 if None in counts else max(1, self.batch_size // (1 + sum(count or 0 for count in counts)))
        while group := list(islice(images, together)):
            canvases = torch.stack([image.canvas.to(self.device, non_blocking=True) for image, _ in group])
            yield from self._views([pending for _, pending in group], normalise(canvases), margin)

    def _views(self, images: list[Pending], canvases: Tensor, margin: Pair) -> Iterator[tuple[Tensor, list[View]]]:
        size = self.preparation.size
        for look in self._looks(images):
            motion = look.protocol.motion
            rows, columns = (has - needs for has, needs in zip(margin, motion.margin(size), strict=True))
            middle = canvases[..., rows : canvases.shape[-2] - rows, columns : canvases.shape[-1] - columns]
            if look.protocol.distortion is not None:
                pairs = zip(middle, images, strict=True)
                middle = torch.stack([look.protocol.distort(one, each.record.index, self.seed) for one, each in pairs])
            extended = motion.extend(middle, size)
            views = iter(look.views)
            for part in torch.cat(look.where).split(self.batch_size):
                yield windows(extended, part, size), list(islice(views, len(part)))

    def _looks(self, images: list[Pending]) -> Iterable[_Look]:
        """What is to be seen of each image. The unshifted image is shown once for all protocols."""
        looks: dict[object, _Look] = {}
        size = self.preparation.size
        for index, image in enumerate(images):
            shown: dict[object, str] = {}
            for protocol in self.protocols:
                drawn = protocol.shifts(image.record.index, self.shifts[protocol.name], size, self.seed)
                all_shifts = torch.cat([torch.zeros(1, 2, dtype=torch.int64), drawn])
                image.record.answers[protocol.name] = LabelAnswers.blank(all_shifts.numpy())
                reference = image.shown_by[protocol.name] = shown.setdefault(protocol.unshifted(), protocol.name)
                numbers = range(0 if reference == protocol.name else 1, len(all_shifts))
                image.unanswered += len(numbers)
                look = looks.setdefault((protocol.unshifted(), protocol.motion.extension()), _Look(protocol))
                origins = protocol.motion.origin(all_shifts[numbers.start :], size)
                look.where.append(torch.cat([torch.full((len(numbers), 1), index), origins], 1))
                look.views += [View(image, protocol.name, number, reference) for number in numbers]
        return looks.values()
