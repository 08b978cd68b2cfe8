"""Kernels of the frame finder: no map of the image is kept, and all products are of bytes.

Pixels are rounded to bytes, four to a pixel, column by column for the sums over rows and row by row for those over
columns, and continue around both ends. Then the 4 lines, 4 columns and 4 channels around each pixel are one product;
the fourth column and channel have no weight. A program takes one pixel of many lines at a time, so that every number of
a layer is added to its own line's. The sums become multiples of their mean, and lines are mixed with those around them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..selection.frame_scores import COARSER, COLUMNS, DEPTH, HALF, LARGEST, LINES, REACH, UNIT
from ..selection.quantised_image import BITS, Pixels
from . import operation
from .launching import blocks_in, launched
from .quantised_image import SPLITS, dense, integers_at, scale_of

TILE, PADDED = 32, 32  # of the transposition; of depth and hidden layer
BLOCK, PART = 32, 56  # lines, and pixels of each, that one program sums
BEFORE, ROOM = LINES // 2, 8  # pixels that continue around an end; places for them, a whole sector of memory
AROUND = 128  # sums of the lines around one, padded


def frame_scores(
    pixels: Pixels, filters: Tensor, pointwise: Tensor, offset: Tensor, mixing: Tensor, bias: Tensor, output: Tensor
) -> tuple[Tensor, Tensor]:
    """All weights fit in bytes, and so does the first layer."""
    weights = [filters, pointwise, offset, mixing, bias, output]
    rows, columns = line_scores(pixels.image.detach(), pixels.bounds(), weights)
    return rows, columns


def _scores(x, *_) -> list[Tensor]:
    return [x.new_empty((x.shape[0], size), dtype=torch.float64) for size in x.shape[1:3]]


@operation("line_scores", _scores)
def line_scores(x: Tensor, bounds: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Of rows and columns."""
    x, (filters, pointwise, offset, mixing, bias, output) = dense(x), weights
    images, height, width, _ = x.shape
    sizes = ((height, width), (width, height))
    pitches = [blocks_in(size, BLOCK) * BLOCK + 2 * ROOM for size, _ in sizes]  # some of the last block are not used
    both = [
        x.new_empty((images, length, pitch), dtype=torch.int32)
        for (_, length), pitch in zip(sizes, pitches, strict=True)
    ]
    _write_bytes[(images, blocks_in(height, TILE), blocks_in(width, TILE))](
        x, bounds, *both, *x.stride(), height, width, *pitches, SPLITS, BITS - HALF, BEFORE, ROOM, TILE,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    found = _scores(x)
    for scores, across, (size, length), pitch in zip(found, both, sizes, pitches, strict=True):
        sums = x.new_zeros((images, size, DEPTH), dtype=torch.int32)
        totals = x.new_zeros((images, DEPTH), dtype=torch.int64)
        _sum_lines[(blocks_in(size, BLOCK), images, blocks_in(length, PART))](
            across.view(torch.int8), filters, pointwise, offset, sums, totals, size, length, pitch,
            COARSER, DEPTH, PADDED, LINES, COLUMNS, BEFORE, ROOM, PART, length % 2, BLOCK, num_warps=1,
        )  # fmt: skip
        _compare[(blocks_in(sums.numel(), 1024),)](
            sums, totals, sums.numel(), size, UNIT, LARGEST, DEPTH, 1024, num_warps=4, enable_fp_fusion=False
        )
        _mix_lines[(blocks_in(size, 64), images)](
            sums, mixing, bias, output, scores, size, UNIT, REACH, DEPTH, PADDED, AROUND, 64, num_warps=4
        )
    return found


@launched
@triton.jit
def _write_bytes(
    x, bounds, by_columns, by_rows, step_image, step_row, step_column, step_channel, height, width, column, row,
    SPLITS: tl.constexpr, DROPPED: tl.constexpr, BEFORE: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The three channels of a tile of pixels, rounded down to fewer bits, in the bytes of one number each."""
    image = tl.program_id(0).to(tl.int64)
    centre, _, per_unit = scale_of(bounds, image, SPLITS)
    down = (tl.program_id(1) * TILE + tl.arange(0, TILE))[:, None]
    right = (tl.program_id(2) * TILE + tl.arange(0, TILE))[None, :]
    inside = (down < height) & (right < width)
    at = x + image * step_image + tl.minimum(down, height - 1) * step_row + tl.minimum(right, width - 1) * step_column
    packed = tl.zeros([TILE, TILE], tl.int32)
    for channel in tl.static_range(3):
        value = integers_at(at, channel * step_channel, centre, per_unit) >> DROPPED
        packed |= (value & 255) << (8 * channel)
    by_columns += (image * width + right) * column + ROOM + down
    by_rows += (image * height + down) * row + ROOM + right
    _store_around(by_columns, packed, down, tl.program_id(1), height, inside, BEFORE, TILE)
    _store_around(by_rows, packed, right, tl.program_id(2), width, inside, BEFORE, TILE)


@triton.jit
def _store_around(places, packed, at, tile, length, inside, BEFORE: tl.constexpr, TILE: tl.constexpr):
    """The first pixels after the last too, and the last before the first."""
    tl.store(places, packed, inside)
    if tile == 0:
        tl.store(places + length, packed, inside & (at < BEFORE))
    if (tile + 1) * TILE > length - BEFORE:
        tl.store(places - length, packed, inside & (at >= length - BEFORE))


@triton.jit
def _first_layer(
    filters, skipped, DEPTH: tl.constexpr, PADDED: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr
):
    """Its weights for three of the four columns that are seen: those after the skipped ones."""
    depth, tap = tl.arange(0, PADDED), tl.arange(0, 64)
    column, row, channel = tap // 16 - skipped, tap // 4 % 4, tap % 4
    known = (depth < DEPTH)[None, :] & ((column >= 0) & (column < COLUMNS) & (channel < 3))[:, None]
    of_tap = (row * COLUMNS + column) * 3 + channel
    return tl.load(filters + depth[None, :] * (LINES * COLUMNS * 3) + of_tap[:, None], known, other=0).to(tl.int8)


@triton.jit
def _both_layers(seen, first, second, least, COARSER: tl.constexpr, DEPTH: tl.constexpr):
    """What they make of some pixels, without the offset: max(0, x + b) = max(-b, x) + b."""
    found = tl.maximum(tl.dot(seen, first, out_dtype=tl.int32), 0) // COARSER
    depth = tl.arange(0, second.shape[0])
    found = tl.where((depth < DEPTH)[None, :], found, 0)  # zeros already, but the compiler leaves them out
    return tl.maximum(tl.dot(found.to(tl.int8), second, out_dtype=tl.int32), least)


@launched
@triton.jit
def _sum_lines(
    across, filters, pointwise, offset, sums, totals, size, length, pitch,
    COARSER: tl.constexpr, DEPTH: tl.constexpr, PADDED: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
    BEFORE: tl.constexpr, ROOM: tl.constexpr, PART: tl.constexpr, ODD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Both layers at each pixel of a part of some lines, added up: two pixels at a time, of the same four columns."""
    line, image = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    first = tl.program_id(2) * PART
    end = tl.minimum(first + PART, length)
    depth, tap = tl.arange(0, PADDED), tl.arange(0, 64)
    left = _first_layer(filters, 0, DEPTH, PADDED, LINES, COLUMNS)
    right = _first_layer(filters, 1, DEPTH, PADDED, LINES, COLUMNS)
    known = (depth < DEPTH)[None, :] & (depth < DEPTH)[:, None]
    second = tl.load(pointwise + depth[None, :] * DEPTH + depth[:, None], known, other=0).to(tl.int8)
    added = tl.load(offset + depth, depth < DEPTH, other=0).to(tl.int32)[None, :]

    start = across + image * length * pitch * 4 + (line + ROOM - BEFORE)[:, None] * 4 + (tap % 16)[None, :]
    place = (first + tap // 16 - COLUMNS // 2 + length * COLUMNS) % length
    layer = tl.zeros([BLOCK, PADDED], tl.int32)
    for at in range(first, end, 2):
        seen = tl.load(start + (place * pitch * 4)[None, :])
        one = _both_layers(seen, left, second, -added, COARSER, DEPTH)
        other = _both_layers(seen, right, second, -added, COARSER, DEPTH)
        layer += one + (other * (at + 1 < end) if ODD else other)
        place += 2
        place = tl.where(place >= length, place - length, place)
    own = (line < size)[:, None] & (depth < DEPTH)[None, :]
    layer = tl.where(own, layer + (end - first) * added, 0)
    tl.atomic_add(sums + (image * size + line[:, None]) * DEPTH + depth[None, :], layer, own, sem="relaxed")
    tl.atomic_add(totals + image * DEPTH + depth, tl.sum(layer.to(tl.int64), 0), depth < DEPTH, sem="relaxed")


@launched
@triton.jit
def _compare(
    sums, totals, count, size, UNIT: tl.constexpr, LARGEST: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Sums as multiples of their mean over all lines, in their place."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    total = tl.load(totals + at // (size * DEPTH) * DEPTH + at % DEPTH, inside, other=1)
    own = tl.load(sums + at, inside, other=0).to(tl.float64)
    level = tl.minimum(UNIT * tl.sqrt(own * size / tl.maximum(total, 1).to(tl.float64)), LARGEST)
    tl.store(sums + at, level.to(tl.int32), inside)


@launched
@triton.jit
def _mix_lines(
    levels, mixing, bias, output, scores, size,
    UNIT: tl.constexpr, REACH: tl.constexpr, DEPTH: tl.constexpr, PADDED: tl.constexpr, AROUND: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The lines around each through one hidden layer, in two digits of 6 bits."""
    line = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image = tl.program_id(1).to(tl.int64)
    tap, hidden = tl.arange(0, AROUND), tl.arange(0, PADDED)
    taps: tl.constexpr = (2 * REACH + 1) * DEPTH
    near = (line[:, None] + (tap // DEPTH)[None, :] - REACH + size * REACH) % size
    there = (line < size)[:, None] & (tap < taps)[None, :]
    level = tl.load(levels + (image * size + near) * DEPTH + (tap % DEPTH)[None, :], there, other=0)
    weights = tl.load(mixing + hidden[None, :] * taps + tap[:, None], (tap < taps)[:, None], other=0).to(tl.int8)
    upper = tl.dot((level >> 6).to(tl.int8), weights, out_dtype=tl.int32)
    lower = tl.dot((level & 63).to(tl.int8), weights, out_dtype=tl.int32)
    mixed = tl.maximum(64 * upper + lower + UNIT * tl.load(bias + hidden).to(tl.int32)[None, :], 0)
    score = tl.sum(mixed.to(tl.int64) * tl.load(output + hidden)[None, :], 1)
    tl.store(scores + image * size + line, score.to(tl.float64), line < size)
