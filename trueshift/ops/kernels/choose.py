# mypy: allow-untyped-defs, allow-incomplete-defs
"""Choose a grid: which of a few has the largest scores, whether several have, and which of those the content prefers.

For images without a tie, the last question costs one look at a flag. Behind an anchor, scores of positions are added up
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
    offset, totals = pick_by_sum(scores.float(), list(stride), ROUNDING)
    return Choice(offset, (totals,))


def choose_by_windows(norms: Tensor, window: Sequence[int]) -> Choice:
    """Window energies, sums and choice in one launch."""
    offset, totals = pick_by_windows(norms.float(), list(window), ROUNDING)
    return Choice(offset, (totals,))


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


@triton.jit
def _winner(total, known, number, slack):
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


@triton.jit
def _share(image, total, known, number, totals, grids):
    """What this program has added up, for :func:`_choose`."""
    tl.store(totals + (image * tl.num_programs(1) + tl.program_id(1)) * grids + number, total, known)


@launched
@triton.jit
def _by_sum(
    scores, offset, totals, parts, stride, height, width, slack,
    rows: tl.constexpr, columns: tl.constexpr, G: tl.constexpr, K: tl.constexpr, alone: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    number, k = tl.arange(0, G), tl.arange(0, K)
    known = number < rows * columns
    per_row = width // columns
    count = height // rows * per_row
    total = tl.zeros((G,), tl.float64)
    for begin in range(tl.program_id(1) * K, count, tl.num_programs(1) * K):
        token = begin + k
        row = (token // per_row)[None, :] * rows + (number // columns)[:, None]
        place = row * width + (token % per_row)[None, :] * columns + (number % columns)[:, None]
        here = known[:, None] & (token < count)[None, :]
        for part in range(parts):
            score = tl.load(scores + part * stride + image * height * width + place, here, 0.0)
            total += tl.sum(score.to(tl.float64), 1)
    if alone:
        leading = _winner(total, known, number, slack)
        _write(image, total, known, leading, number, offset, totals, rows * columns, columns)
    else:
        _share(image, total, known, number, totals, rows * columns)


@launched
@triton.jit
def _by_windows(
    norms, offset, totals, height, width, slack,
    rows: tl.constexpr, columns: tl.constexpr, G: tl.constexpr, K: tl.constexpr, alone: tl.constexpr,
    spans: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    norms += image * height * width
    number, k = tl.arange(0, G), tl.arange(0, K)
    known = number < rows * columns
    per_row = width // columns
    count = height // rows * per_row
    total = tl.zeros((G,), tl.float64)
    tokens = tl.zeros((G,), tl.float64)
    for begin in range(tl.program_id(1) * K, count, tl.num_programs(1) * K):
        window = begin + k
        here = known[:, None] & (window < count)[None, :]
        row = (window // per_row)[None, :] * rows + (number // columns)[:, None]
        column = (window % per_row)[None, :] * columns + (number % columns)[:, None]
        energy = tl.zeros((G, K), tl.float64)
        for tap in range(rows * columns):
            y, z = row + tap // columns, column + tap % columns
            y, z = tl.where(y >= height, y - height, y), tl.where(z >= width, z - width, z)
            energy += tl.load(norms + y * width + z, here, 0.0).to(tl.float64)
        energy = energy / (rows * columns)
        total += tl.sum(energy * energy, 1)
        if spans:
            norm = tl.load(norms + row * width + column, here, 0.0).to(tl.float64)
            tokens += tl.sum(norm * norm, 1)
    if alone:
        leading = _winner(total, known, number, slack)
        if spans:  # all offsets along an axis hold the same window: its tokens choose
            leading = _winner(tokens, leading, number, slack)
        _write(image, total, known, leading, number, offset, totals, rows * columns, columns)
    else:
        _share(image, total, known, number, totals, rows * columns)


@launched
@triton.jit
def _choose(shared, offset, totals, shares, slack, rows: tl.constexpr, columns: tl.constexpr, G: tl.constexpr):
    """Of what several programs have added up for an image."""
    image = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, G)
    known = number < rows * columns
    total = tl.zeros((G,), tl.float64)
    for share in range(shares):
        total += tl.load(shared + (image * shares + share) * (rows * columns) + number, known, 0.0)
    leading = _winner(total, known, number, slack)
    _write(image, total, known, leading, number, offset, totals, rows * columns, columns)


def _results(images: int, grids: list[int], like: Tensor) -> tuple[Tensor, Tensor]:
    offset = like.new_empty(images, 2, dtype=torch.int64)
    return offset, like.new_empty(images, *grids, dtype=torch.float64)


def _shares(images: int, count: int, grids: int) -> tuple[int, int]:
    """How many tokens or windows of each grid a program takes at once, and how many programs share an image."""
    block = max(1, min(power_of_two(count), 4096 // grids))
    while block > 8 and 2 * images * blocks_in(count, block) <= BUSY and blocks_in(count, block) < MOST_SHARES:
        block //= 2
    return block, max(1, min(blocks_in(count, block), BUSY // images, MOST_SHARES))


@operation("pick_by_sum", lambda scores, stride, slack: _results(scores.shape[1], stride, scores))
def pick_by_sum(scores: Tensor, stride: list[int], slack: float) -> tuple[Tensor, Tensor]:
    """The grid with the largest sum of scores ``[parts, B, H, W]``: its offset, and the sums of all."""
    parts, images, height, width = scores.shape
    scores = scores.contiguous()
    offset, totals = _results(images, stride, scores)
    grids = power_of_two(stride[0] * stride[1])
    count = height // stride[0] * (width // stride[1])
    block, shares = _shares(images, count, grids)
    shared = totals if shares == 1 else totals.new_empty(images, shares, *stride)
    _by_sum[(images, shares)](
        scores, offset, shared, parts, images * height * width, height, width, slack, *stride, grids, block,
        shares == 1, num_warps=8,
    )  # fmt: skip
    if shares > 1:
        _choose[(images,)](shared, offset, totals, shares, slack, *stride, grids, num_warps=1)
    return offset, totals


@operation("pick_by_windows", lambda norms, window, slack: _results(norms.shape[0], window, norms))
def pick_by_windows(norms: Tensor, window: list[int], slack: float) -> tuple[Tensor, Tensor]:
    """The offset at which windows have the largest sum of squared mean norms ``[B, H, W]``, and all sums."""
    images, height, width = norms.shape
    norms = norms.contiguous()
    offset, totals = _results(images, window, norms)
    grids = power_of_two(window[0] * window[1])
    count = height // window[0] * (width // window[1])
    block, shares = _shares(images, count, grids)
    spans = window[0] == height or window[1] == width
    shares = 1 if spans else shares
    shared = totals if shares == 1 else totals.new_empty(images, shares, *window)
    _by_windows[(images, shares)](
        norms, offset, shared, height, width, slack, *window, grids, block, shares == 1, spans, num_warps=8
    )
    if shares > 1:
        _choose[(images,)](shared, offset, totals, shares, slack, *window, grids, num_warps=1)
    return offset, totals
