"""A picture at more than one scale: what a protocol needs around the input must not change what others see."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from ...data import Preparation, Prepared, Unreadable
from ...ops.geometry.shift import Pair
from ..protocols.registry import Protocol
from .classify import Forward, measure
from .records import ImageRecord


def canvas_groups(protocols: list[Protocol], preparation: Preparation) -> list[list[Protocol]]:
    """Protocols that can look at one canvas: all that find room in the picture as the model wants it, others apart."""
    groups: dict[Pair, list[Protocol]] = {}
    for protocol in protocols:
        margin = protocol.motion.margin(preparation.size)
        groups.setdefault((0, 0) if preparation.has_room(margin) else margin, []).append(protocol)
    return list(groups.values())


def measure_groups(
    forward: Forward,
    images: Sequence[Iterable[Prepared | Unreadable]],
    groups: Sequence[list[Protocol]],
    preparation: Preparation,
    shifts: Mapping[str, int | None],
    seed: int = 0,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
) -> Iterator[ImageRecord | Unreadable]:
    """As :func:`.classify.measure`, with a stream of the same images for each of :func:`canvas_groups`."""
    streams = [
        measure(forward, pictures, group, preparation, shifts, seed, batch_size, device)
        for pictures, group in zip(images, groups, strict=True)
    ]
    return map(_joined, zip(*streams, strict=True))


def _joined(records: tuple[ImageRecord | Unreadable, ...]) -> ImageRecord | Unreadable:
    """All answers to one image, if it could be read each time."""
    first, *others = records
    for other in others:
        if isinstance(first, Unreadable):
            break
        if isinstance(other, Unreadable):
            return other
        first.answers.update(other.answers)
    return first
