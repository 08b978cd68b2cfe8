"""Images that repeat: shifted by their period they are themselves, so what is said of their pixels must repeat too.

A network that works in one frame says something of every period, and rounding or the place of a pooling bin makes it
differ. Of such images one period is taken, the one the frame begins with, and repeated.
"""

import torch
from jaxtyping import Bool, Int, Int64, Shaped
from torch import Tensor

from ...utils.async_copy import AsyncCopy
from ..selection.content_hash import origin_keys
from ..selection.exact import within_graph
from .shift import IMAGE_DIMS, circular_shift

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def may_repeat(image: Shaped[Tensor, "B C H W"]) -> Bool[Tensor, " B"]:
    """Whether an image may be the same after some shift: cheap, exact, and never wrongly no.

    If it is, so are the sums of its rows or those of its columns, taken over the bits of the pixels as integers.
    """
    bits = image.contiguous().view(_BITS[image.element_size()])
    rows, columns = bits.sum((1, 3), dtype=torch.int64), bits.sum((1, 2), dtype=torch.int64)
    return _periodic(rows) | _periodic(columns)


def whether_repeating(image: Shaped[Tensor, "B C H W"]) -> AsyncCopy | None:
    """The same, copied from the device while a network runs; not within a graph, which cannot wait for it."""
    return None if within_graph(image) else AsyncCopy(may_repeat(image))


def _periodic(sums: Int64[Tensor, "B N"]) -> Bool[Tensor, " B"]:
    length = sums.shape[1]
    primes = [n for n in range(2, length + 1) if length % n == 0 and all(n % m for m in range(2, n))]
    found = torch.zeros_like(sums[:, 0], dtype=torch.bool)
    for prime in primes:  # every period divides one of these parts
        found |= (sums == sums.roll(length // prime, 1)).all(1)
    return found


def repeat_one_period(
    maps: Shaped[Tensor, "B D H W"],
    image: Shaped[Tensor, "B C H W"],
    origin: Int[Tensor, "B 2"],
    fixed_rows: bool = False,
) -> Shaped[Tensor, "B D H W"]:
    """Maps of an image's pixels, with every pixel taking the value of the first one, from ``origin`` on, like it.

    An image that does not repeat keeps its map as it is.

    Shift law: if the maps move with the image up to one of its periods, the result moves with it, bit for bit.

    Args:
        fixed_rows: the image goes around along its columns alone, so only pixels of one row are alike.
    """
    with torch.no_grad():
        # two pixels are alike if the image looks the same from both
        keys = circular_shift(origin_keys(image.permute(0, 2, 3, 1)), origin)
        keys = keys.flatten(0, 1) if fixed_rows else keys.flatten(1)
        ordered, positions = keys.sort(dim=1, stable=True)
        starts = torch.ones_like(ordered, dtype=torch.bool)
        starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        run = torch.where(starts, torch.arange(keys.shape[1], device=keys.device), 0).cummax(1).values
        first = torch.empty_like(positions).scatter_(1, positions, positions.gather(1, run))
    framed = circular_shift(maps, origin, IMAGE_DIMS)
    lines = framed if fixed_rows else framed.flatten(2)
    first = first.view(len(lines), 1, *lines.shape[2:])
    repeated = lines.gather(-1, first.expand_as(lines)).view_as(maps)
    return circular_shift(repeated, -origin, IMAGE_DIMS)


def repeated(
    maps: Shaped[Tensor, "B D H W"],
    images: Shaped[Tensor, "B C H W"],
    origin: Int[Tensor, "B 2"],
    fixed_rows: bool,
    repeats: AsyncCopy | None,
) -> Shaped[Tensor, "B D H W"]:
    """:func:`repeat_one_period` for the images of which :func:`whether_repeating` said that they may repeat."""
    if repeats is None or not len(which := repeats.numpy().nonzero()[0]):
        return maps
    at = torch.from_numpy(which).to(maps.device)
    return maps.index_copy(0, at, repeat_one_period(maps[at], images[at], origin[at], fixed_rows))
