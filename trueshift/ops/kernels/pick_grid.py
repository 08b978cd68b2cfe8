# mypy: allow-untyped-defs, allow-incomplete-defs
"""Add up the scores of each grid and choose one, in one launch: a program for each image.

Where there are few images, and large ones, several programs share each and another launch chooses.

Only behind an anchor: scores are compared up to rounding, and the first of those that tie is taken, as
:func:`trueshift.ops.selection.choose.choose` does without keys.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import INTERPRETED, operation
from .launching import blocks_in, launched, power_of_two

BUSY = 4 if INTERPRETED else 132  # programs that a device runs at once
MOST_SHARES = 16


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
