# mypy: allow-untyped-defs, allow-incomplete-defs
"""Kernels of the frame finder: no map of the image is kept, and all products are of bytes or small whole numbers.

Three passes: pixels are rounded to bytes, four to a pixel, row by row and column by column; the 4 lines, 4 columns and
4 channels around each pixel are one product (the fourth column and channel have no weight), whose layers are summed
over each line; lines are mixed with those around them.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..selection.frame_scores import COARSER, COLUMNS, DEPTH, HALF, LARGEST, LINES, REACH, UNIT
from ..selection.quantised_image import BITS, Pixels
from . import operation
from .launching import blocks_in, launched, power_of_two
from .quantised_image import SPLITS, dense, find_bounds, integers_at, scale_of

TILE, PADDED = 32, 32  # of the transposition; of depth and hidden layer
AROUND = 128  # sums of the lines around one, padded
BLOCK = 64  # of lines that are mixed


def frame_scores(
    pixels: Pixels, filters: Tensor, pointwise: Tensor, offset: Tensor, mixing: Tensor, bias: Tensor, output: Tensor
) -> tuple[Tensor, Tensor]:
    """The weights as the matrix units take them, then all passes."""
    more = PADDED - DEPTH
    taps = F.pad(filters.view(DEPTH, LINES, COLUMNS, 3), (0, 1, 0, 1, 0, 0, 0, more)).flatten(1).to(torch.int8)
    second = F.pad(pointwise, (0, more, 0, more)).to(torch.float16)
    mixed = F.pad(mixing, (0, AROUND - mixing.shape[1])).to(torch.int8)
    weights = (taps, second, F.pad(offset, (0, more)).to(torch.float32), mixed, bias, output)
    rows, columns = line_scores(pixels.image.detach(), *weights)
    return rows, columns


def _scores(x, *_) -> list[Tensor]:
    return [x.new_empty((x.shape[0], size), dtype=torch.float64) for size in x.shape[1:3]]


@operation("line_scores", _scores)
def line_scores(
    x: Tensor, taps: Tensor, second: Tensor, offset: Tensor, mixing: Tensor, bias: Tensor, output: Tensor
) -> list[Tensor]:
    """Of rows and columns, from weights in bytes (second layer: float16, offset: float32), padded to 32 and 128."""
    x = dense(x)
    images, height, width, _ = x.shape
    found = _scores(x)
    sizes = ((height, width), (width, height))
    by_rows, by_columns = (x.new_empty((images, *size), dtype=torch.int32) for size in sizes)
    _write_bytes[(images, blocks_in(height, TILE), blocks_in(width, TILE))](
        x, find_bounds(x), by_rows, by_columns, *x.stride(), height, width, SPLITS, BITS - HALF, TILE,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    for scores, lines, (size, length) in zip(found, (by_rows, by_columns), sizes, strict=True):
        sums = x.new_empty((images, size, DEPTH), dtype=torch.int32)
        totals = x.new_zeros((images, DEPTH), dtype=torch.int64)
        _sum_lines[(size, images)](
            lines.view(torch.int8), taps, second, offset, sums, totals, size, length,
            COARSER, DEPTH, PADDED, LINES, min(128, max(16, power_of_two(length))), num_warps=4,
        )  # fmt: skip
        _mix_lines[(blocks_in(size, BLOCK), images)](
            sums, totals, mixing, bias, output, scores, size,
            UNIT, LARGEST, REACH, DEPTH, PADDED, AROUND, BLOCK, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return found


@launched
@triton.jit
def _write_bytes(
    x, bounds, by_rows, by_columns, step_image, step_row, step_column, step_channel, height, width,
    SPLITS: tl.constexpr, DROPPED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The three channels of a tile of pixels, rounded down to fewer bits, in the bytes of one number each."""
    image = tl.program_id(0).to(tl.int64)
    centre, _, per_unit = scale_of(bounds, image, SPLITS)
    row = (tl.program_id(1) * TILE + tl.arange(0, TILE))[:, None]
    column = (tl.program_id(2) * TILE + tl.arange(0, TILE))[None, :]
    inside = (row < height) & (column < width)
    at = x + image * step_image + tl.minimum(row, height - 1) * step_row + tl.minimum(column, width - 1) * step_column
    packed = tl.zeros([TILE, TILE], tl.int32)
    for channel in tl.static_range(3):
        value = integers_at(at, channel * step_channel, centre, per_unit) >> DROPPED
        packed |= (value & 255) << (8 * channel)
    first = image * height * width
    tl.store(by_rows + first + row * width + column, packed, inside)
    tl.store(by_columns + first + column * height + row, packed, inside)


@launched
@triton.jit
def _sum_lines(
    lines, taps, second, offset, sums, totals, size, length,
    COARSER: tl.constexpr, DEPTH: tl.constexpr, PADDED: tl.constexpr, LINES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Both layers at each pixel of one line, added up."""
    line, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    depth, tap = tl.arange(0, PADDED), tl.arange(0, 64)
    near = (line + tap // 16 - LINES // 2 + size * LINES) % size  # of each tap, its line, column and channel
    start = lines + (image * size + near) * length * 4 + tap % 4
    weights = tl.load(taps + depth[None, :] * 64 + tap[:, None])
    pointwise = tl.load(second + depth[None, :] * PADDED + depth[:, None])
    added = tl.load(offset + depth)
    total = tl.zeros([PADDED], tl.int32)
    for begin in range(0, length, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        beside = place[:, None] + (tap // 4 % 4)[None, :] - 1
        beside = tl.where(beside < 0, beside + length, tl.where(beside < length, beside, beside - length))
        there = (place < length)[:, None] & (tap // 4 % 4 < 3)[None, :]
        seen = tl.load(start[None, :] + beside * 4, there, other=0)
        found = tl.maximum(tl.dot(seen, weights, out_dtype=tl.int32), 0) // COARSER
        found = tl.dot(found.to(tl.float16), pointwise, out_dtype=tl.float32) + added[None, :]
        found = tl.where((place < length)[:, None], tl.maximum(found, 0), 0)
        total += tl.sum(found.to(tl.int32), 0)
    tl.store(sums + (image * size + line) * DEPTH + depth, total, depth < DEPTH)
    tl.atomic_add(totals + image * DEPTH + depth, total.to(tl.int64), depth < DEPTH)


@launched
@triton.jit
def _mix_lines(
    sums, totals, mixing, bias, output, scores, size,
    UNIT: tl.constexpr, LARGEST: tl.constexpr, REACH: tl.constexpr, DEPTH: tl.constexpr, PADDED: tl.constexpr,
    AROUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums as multiples of their mean, of the lines around each, through one hidden layer; in two digits of 6 bits."""
    line = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image = tl.program_id(1).to(tl.int64)
    tap, hidden = tl.arange(0, AROUND), tl.arange(0, PADDED)
    there = (line < size)[:, None] & (tap < (2 * REACH + 1) * DEPTH)[None, :]
    near = (line[:, None] + (tap // DEPTH)[None, :] - REACH + size * REACH) % size
    own = tl.load(sums + (image * size + near) * DEPTH + (tap % DEPTH)[None, :], there, other=0).to(tl.float64)
    total = tl.maximum(tl.load(totals + image * DEPTH + tap % DEPTH), 1).to(tl.float64)
    level = tl.minimum(UNIT * tl.sqrt(own * size / total[None, :]), LARGEST).to(tl.int32)
    weights = tl.load(mixing + hidden[None, :] * AROUND + tap[:, None])
    upper = tl.dot((level >> 6).to(tl.int8), weights, out_dtype=tl.int32)
    lower = tl.dot((level & 63).to(tl.int8), weights, out_dtype=tl.int32)
    mixed = tl.maximum(64 * upper + lower + UNIT * tl.load(bias + hidden).to(tl.int32)[None, :], 0)
    score = tl.sum(mixed.to(tl.int64) * tl.load(output + hidden)[None, :], 1)
    tl.store(scores + image * size + line, score.to(tl.float64), line < size)
