# mypy: allow-untyped-defs, allow-incomplete-defs
"""Kernels: which of a few grids has the largest scores, whether several have, and which of those the content prefers.

For images without a tie, the last question costs one look at a flag.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import operation
from .launching import launched, power_of_two

MOST = 4096  # grids


def _fake_pick(scores: Tensor) -> list[Tensor]:
    images = scores.shape[1]
    return [
        scores.new_empty(images, dtype=torch.int64),
        scores.new_empty(images, dtype=torch.bool),
        scores.new_empty(scores.shape[1:], dtype=torch.bool),
    ]


@operation("pick", _fake_pick)
def pick(scores: Tensor) -> list[Tensor]:
    """From scores ``[kinds, B, n]``, later kinds for where earlier ones tie: the first of the best, whether there are
    several, and which ones."""
    winner, tied, leading = _fake_pick(scores)
    kinds, images, grids = scores.shape
    _pick[(images,)](scores, winner, tied, leading, images, grids, kinds, power_of_two(grids), num_warps=1)
    return [winner, tied, leading]


@launched
@triton.jit
def _pick(scores, winner, tied, leading, images, grids, KINDS: tl.constexpr, PADDED: tl.constexpr):
    image = tl.program_id(0).to(tl.int64)
    grid = tl.arange(0, PADDED)
    ahead = grid < grids
    for kind in tl.static_range(KINDS):
        score = tl.load(scores + (kind * images + image) * grids + grid, ahead, other=float("-inf"))
        ahead = ahead & (score == tl.max(score, 0))
    tl.store(leading + image * grids + grid, ahead, grid < grids)
    tl.store(tied + image, tl.sum(ahead.to(tl.int32), 0) > 1)
    first = tl.min(tl.where(ahead, grid, PADDED), 0)
    tl.store(winner + image, tl.minimum(first, grids - 1).to(tl.int64))


def _fake_settle(winner: Tensor, tied: Tensor, leading: Tensor, keys: Tensor, grids: list[int]) -> Tensor:
    return winner.new_empty((winner.shape[0], 2))


@operation("settle", _fake_settle)
def settle(winner: Tensor, tied: Tensor, leading: Tensor, keys: Tensor, grids: list[int]) -> Tensor:
    """Row and column of the winner; of images that tie, the leading grid that holds the largest key."""
    offset = winner.new_empty((winner.shape[0], 2))
    _settle[(len(winner),)](
        winner, tied, leading, keys, offset, keys.shape[1], keys.shape[2], *grids,
        power_of_two(keys.shape[2]), num_warps=4,
    )  # fmt: skip
    return offset


@launched
@triton.jit
def _settle(
    winner, tied, leading, keys, offset, height, width, SH: tl.constexpr, SW: tl.constexpr, PADDED: tl.constexpr
):
    image = tl.program_id(0).to(tl.int64)
    best = tl.load(winner + image).to(tl.int32)
    if tl.load(tied + image):
        column = tl.arange(0, PADDED)
        largest = tl.full([], -1, tl.int64)
        best = tl.full([], SH * SW, tl.int32)
        for row in range(height):
            grid = row % SH * SW + column % SW
            ahead = tl.load(leading + image * (SH * SW) + grid, column < width, other=0) != 0
            found = tl.load(keys + (image * height + row) * width + column, ahead, other=-1)
            top = tl.max(found, 0)
            first = tl.min(tl.where(ahead & (found == top), grid, SH * SW), 0)
            # of content that repeats, the first grid
            if (top > largest) | ((top == largest) & (first < best)):
                best = first
                largest = top
        best = tl.minimum(best, SH * SW - 1)
    tl.store(offset + image * 2, (best // SW).to(tl.int64))
    tl.store(offset + image * 2 + 1, (best % SW).to(tl.int64))
