"""Choose a grid: which of a few has the largest scores, whether several have, and which of those the content prefers.

For images without a tie, the last question costs one look at a flag. After an anchor, scores of positions are added up
and compared in one launch, a program for each image; few and large images are shared by several programs, and another
launch chooses.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..selection.choose import ROUNDING, Choice, Keys
from . import INTERPRETED, operation
from .launching import blocks_in, launched, power_of_two

BUSY = 4 if INTERPRETED else 132  # programs that a device runs at once
MOST_SHARES = 16


def choose(scores: Sequence[Tensor], keys: Keys) -> Choice:
    """Whether scores tie is decided on the device, and only images that tie pay for it."""
    flat = [score.flatten(1) for score in scores]
    winner, tied, leading = pick(flat[0][None].contiguous() if len(flat) == 1 else torch.stack(flat))
    return Choice(settle(winner, tied, leading, keys(tied), list(scores[0].shape[1:])), tuple(scores))


def choose_by_sum(scores: Tensor, stride: Sequence[int]) -> Choice:
    """Sums and choice in one launch."""
    offset, totals = pick_by_total(scores.float(), list(stride), False, ROUNDING)
    return Choice(offset, (totals,))


def choose_by_windows(norms: Tensor, window: Sequence[int]) -> Choice:
    """Window energies, sums and choice in one launch."""
    offset, totals = pick_by_total(norms.float(), list(window), True, ROUNDING)
    return Choice(offset, (totals,))


def _picked(scores: Tensor) -> list[Tensor]:
    winner, flags = scores.new_empty(scores.shape[1], dtype=torch.int64), torch.bool
    return [winner, torch.empty_like(winner, dtype=flags), scores.new_empty(scores.shape[1:], dtype=flags)]


@operation("pick", _picked)
def pick(scores: Tensor) -> list[Tensor]:
    """From scores ``[kinds, B, n]``, later kinds for where earlier ones tie: the first of the best, whether there are
    several, and which ones."""
    winner, tied, leading = _picked(scores)
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


@operation("settle", lambda winner, *_: winner.new_empty((winner.shape[0], 2)))
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


@triton.jit
def _winner(total, known, slack):
    """Which grids have the largest total among the known ones."""
    best = tl.max(tl.where(known, total, float("-inf")), 0)
    return known & (total >= best - tl.abs(best) * slack)


@triton.jit
def _write(image, total, known, leading, number, offset, totals, grids, columns):
    first = tl.min(tl.where(leading, number, grids), 0)
    first = tl.where(first == grids, 0, first)  # no number is the largest among those that are none
    tl.store(offset + 2 * image, (first // columns).to(tl.int64))
    tl.store(offset + 2 * image + 1, (first % columns).to(tl.int64))
    tl.store(totals + image * grids + number, total, known)


@launched
@triton.jit
def _add_up(
    scores, offset, totals, parts, stride, height, width, slack: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, G: tl.constexpr, K: tl.constexpr, alone: tl.constexpr,
    windows: tl.constexpr, spans: tl.constexpr,
):  # fmt: skip
    """The total of each grid: its scores, or with ``windows`` the squared mean scores of its windows."""
    image = tl.program_id(0).to(tl.int64)
    scores += image * height * width
    number, k = tl.arange(0, G), tl.arange(0, K)
    known = number < rows * columns
    per_row = width // columns
    count = height // rows * per_row
    total = tl.zeros((G,), tl.float64)
    tokens = tl.zeros((G,), tl.float64)
    for begin in range(tl.program_id(1) * K, count, tl.num_programs(1) * K):
        token = begin + k
        here = known[:, None] & (token < count)[None, :]
        row = (token // per_row)[None, :] * rows + (number // columns)[:, None]
        column = (token % per_row)[None, :] * columns + (number % columns)[:, None]
        if windows:
            energy = tl.zeros((G, K), tl.float64)
            for tap in range(rows * columns):
                y, z = row + tap // columns, column + tap % columns
                y, z = tl.where(y >= height, y - height, y), tl.where(z >= width, z - width, z)
                energy += tl.load(scores + y * width + z, here, 0.0).to(tl.float64)
            energy = energy / (rows * columns)
            total += tl.sum(energy * energy, 1)
            if spans:
                norm = tl.load(scores + row * width + column, here, 0.0).to(tl.float64)
                tokens += tl.sum(norm * norm, 1)
        else:
            place = row * width + column
            for part in range(parts):
                score = tl.load(scores + part * stride + place, here, 0.0)
                total += tl.sum(score.to(tl.float64), 1)
    if alone:
        leading = _winner(total, known, slack)
        if spans:  # all offsets along an axis hold the same window: its tokens choose
            leading = _winner(tokens, leading, slack)
        _write(image, total, known, leading, number, offset, totals, rows * columns, columns)
    else:  # for _choose
        share = image * tl.num_programs(1) + tl.program_id(1)
        tl.store(totals + share * (rows * columns) + number, total, known)


@launched
@triton.jit
def _choose(
    shared, offset, totals, shares, slack: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Of what several programs have added up for an image."""
    image = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, G)
    known = number < rows * columns
    total = tl.zeros((G,), tl.float64)
    for share in range(shares):
        total += tl.load(shared + (image * shares + share) * (rows * columns) + number, known, 0.0)
    leading = _winner(total, known, slack)
    _write(image, total, known, leading, number, offset, totals, rows * columns, columns)


def _totals(scores: Tensor, grids: list[int]) -> tuple[Tensor, Tensor]:
    images = scores.shape[-3]
    return scores.new_empty(images, 2, dtype=torch.int64), scores.new_empty(images, *grids, dtype=torch.float64)


def _shares(images: int, count: int, grids: int) -> tuple[int, int]:
    """How many tokens or windows of each grid a program takes at once, and how many programs share an image."""
    block = max(1, min(power_of_two(count), 4096 // grids))
    while block > 8 and 2 * images * blocks_in(count, block) <= BUSY and blocks_in(count, block) < MOST_SHARES:
        block //= 2
    return block, max(1, min(blocks_in(count, block), BUSY // images, MOST_SHARES))


@operation("pick_by_total", lambda scores, stride, windows, slack: _totals(scores, stride))
def pick_by_total(scores: Tensor, stride: list[int], windows: bool, slack: float) -> tuple[Tensor, Tensor]:
    """The grid with the largest total of scores ``[parts, B, H, W]``: its offset, and the totals of all.

    Args:
        windows: of the squared mean scores of the windows that a grid is made of; scores are ``[B, H, W]``.
    """
    parts, (images, height, width) = 1 if windows else scores.shape[0], scores.shape[-3:]
    scores = scores.contiguous()
    offset, totals = _totals(scores, stride)
    grids = power_of_two(stride[0] * stride[1])
    block, shares = _shares(images, height // stride[0] * (width // stride[1]), grids)
    spans = windows and (stride[0] == height or stride[1] == width)
    shares = 1 if spans else shares
    shared = totals if shares == 1 else totals.new_empty(images, shares, *stride)
    _add_up[(images, shares)](
        scores, offset, shared, parts, images * height * width, height, width, slack, *stride, grids, block,
        shares == 1, windows, spans, num_warps=8,
    )  # fmt: skip
    if shares > 1:
        _choose[(images,)](shared, offset, totals, shares, slack, *stride, grids, num_warps=1)
    return offset, totals
