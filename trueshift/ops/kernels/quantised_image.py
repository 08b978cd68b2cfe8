r"""Kernels: the pixels of an image as 14-bit integers in two digits of eight bits, sorted for the matrix units.

An image row is known by its residue modulo the stride and by its block row :math:`i`; a column by its residue and by
its block column :math:`j`. All pixels of one pair of residues, channel and digit form a plane. The block rows of a
plane are dealt to eight lanes, :math:`i = \text{lane} \cdot n + a`, and the lane is the fastest index,

.. math:: \text{plane}[a, j, \text{lane}]

so that a neighbour one block to the right is 8 bytes further on, and one block below a whole row of ``a``: always
aligned, unlike one byte further. Both directions continue around the image by as many blocks as a kernel reaches.

The same pass adds up the differences between neighbouring rows and columns, for the seam.
"""

from collections.abc import Sequence
from math import ceil

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import INTERPRETED, operation
from .launching import blocks_in, launched, power_of_two

LANES = 8
SPLITS = 2 if INTERPRETED else 16  # parts of an image whose bounds are found by one program each
SLACK = 1024  # bytes after the last plane that a kernel may read but does not use


class Layout:
    """Sizes of the planes for a shape ``[B, H, W, C]``, stride and kernel, and where those of the number 1 begin."""

    def __init__(self, shape: Sequence[int], stride: Sequence[int], kernel: Sequence[int]) -> None:
        images, rows, columns, channels = shape
        self.block_rows, self.block_columns = rows // stride[0], columns // stride[1]
        self.per_lane = ceil(self.block_rows / LANES)
        self.below = (stride[0] + kernel[0] - 2) // stride[0]
        self.beside = (stride[1] + kernel[1] - 2) // stride[1]
        self.row = (self.block_columns + 2 * self.beside) * LANES
        self.plane = (self.per_lane + self.below) * self.row
        self.ones = images * channels * stride[0] * stride[1] * 2 * self.plane


def dense(x: Tensor) -> Tensor:
    """The image itself if each of its images is one run of memory, else a copy that is."""
    return x if x.is_contiguous() or x.permute(0, 3, 1, 2).is_contiguous() else x.contiguous()


def _bounds(x) -> Tensor:
    return x.new_empty((x.shape[0], 2, SPLITS), dtype=torch.float32)


@operation("find_bounds", _bounds)
def find_bounds(x: Tensor) -> Tensor:
    """Smallest and largest value of each part of each image."""
    x = dense(x)
    bounds, size = _bounds(x), x[0].numel()
    part = blocks_in(blocks_in(size, SPLITS), 2048) * 2048
    _find_bounds[(x.shape[0], SPLITS)](x, bounds, size, part, SPLITS, 2048, num_warps=4)
    return bounds


def _planes(x, bounds, stride, kernel) -> list[Tensor]:
    (images, rows, columns, channels), layout = x.shape, Layout(x.shape, stride, kernel)
    return [
        x.new_empty(layout.ones + 2 * layout.plane + SLACK, dtype=torch.int8),
        x.new_empty((images, channels, rows), dtype=torch.int32),
        x.new_empty((images, channels * stride[0] * layout.per_lane, columns), dtype=torch.int32),
        x.new_empty((images, 2), dtype=torch.float64),
    ]


@operation("planes", _planes)
def planes(x: Tensor, bounds: Tensor, stride: list[int], kernel: list[int]) -> list[Tensor]:
    """Digits in planes, parts of the differences between rows and columns, and centre and unit of each image.

    A last pair of planes holds zeros and ones: the digits of the number 1.
    """
    x = dense(x.detach())
    found, layout = _planes(x, bounds, stride, kernel), Layout(x.shape, stride, kernel)
    images, rows, columns, channels = x.shape
    width = columns + 2 * layout.beside * stride[1]
    _write_planes[(images * channels, (layout.per_lane + layout.below) * stride[0])](
        x, bounds, *found, layout.ones, *x.stride(), rows, columns, channels, *stride,
        layout.block_rows, layout.per_lane, layout.beside, layout.row, layout.plane, width, power_of_two(width),
        LANES, SPLITS,
        num_warps=4 if width <= 512 else 8, enable_fp_fusion=False,
    )  # fmt: skip
    return found


@launched
@triton.jit
def _find_bounds(x, bounds, size, part, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Smallest and largest value of one part of an image."""
    image, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = split * part
    end = tl.minimum(start + part, size)
    offsets = tl.arange(0, BLOCK)
    start_value = tl.load(x + image * size).to(tl.float32)  # stands for all that is outside
    low = tl.full([BLOCK], 0, tl.float32) + start_value
    high = low
    for at in range(start, end, BLOCK):
        inside = at + offsets < end
        value = tl.load(x + image * size + at + offsets, inside, other=0).to(tl.float32)
        value = tl.where(inside, value, start_value)
        low = tl.minimum(low, value)
        high = tl.maximum(high, value)
    tl.store(bounds + image * 2 * SPLITS + split, tl.min(low, 0))
    tl.store(bounds + image * 2 * SPLITS + SPLITS + split, tl.max(high, 0))


@triton.jit
def _power_of_two_above(x):
    """The exponent field of the smallest power of two above ``x >= 0``, clamped as in :mod:`.selection.exact`."""
    exponent = (x.to(tl.int64, bitcast=True) >> 52) & 0x7FF
    return tl.minimum(tl.maximum(exponent, 100), 2044) + 1


@triton.jit
def _round(x):
    """To the nearest integer, half to even, for less than 2**51: adding this leaves no bit for a fraction."""
    return (x + 6755399441055744.0) - 6755399441055744.0


@triton.jit
def scale_of(bounds, image, SPLITS: tl.constexpr):
    """Centre, unit and its inverse, of one image."""
    split = tl.arange(0, SPLITS)
    low = tl.min(tl.load(bounds + image * 2 * SPLITS + split), 0).to(tl.float64) * 0.5
    high = tl.max(tl.load(bounds + image * 2 * SPLITS + SPLITS + split), 0).to(tl.float64) * 0.5
    exponent = _power_of_two_above(high - low) - 14
    unit = (exponent << 52).to(tl.float64, bitcast=True)
    per_unit = ((2046 - exponent) << 52).to(tl.float64, bitcast=True)
    return low + high, unit, per_unit


@triton.jit
def integers_at(x, at, centre, per_unit):
    """The integers of pixels."""
    value = tl.load(x + at).to(tl.float32).to(tl.float64)
    return _round((value - centre) * per_unit).to(tl.int32)


@launched
@triton.jit
def _write_planes(
    x, bounds, planes, row_parts, column_parts, scale, ones, step_image, step_row, step_column, step_channel,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, PER_LANE: tl.constexpr, BESIDE: tl.constexpr, ROW: tl.constexpr, PLANE: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, LANES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One row of each lane, in one channel: rounded, split into digits, and compared with what is above and left."""
    which, place = tl.program_id(0).to(tl.int64), tl.program_id(1)
    image, channel = which // CHANNELS, which % CHANNELS
    inner, residue = place // SH, place % SH

    centre, unit, per_unit = scale_of(bounds, image, SPLITS)
    if (channel == 0) & (place == 0):
        tl.store(scale + image * 2, centre)
        tl.store(scale + image * 2 + 1, unit)

    lane = tl.arange(0, LANES)[None, :]
    at = tl.arange(0, PADDED)[:, None]
    block_row = lane * PER_LANE + inner
    row = (SH * block_row + residue) % ROWS
    column = (at + ((BESIDE * SW + COLUMNS - 1) // COLUMNS * COLUMNS - BESIDE * SW)) % COLUMNS
    inside = (at < WIDTH) & (lane < LANES)  # what is read outside is some pixel, and is not stored
    start = x + image * step_image + channel * step_channel
    integers = integers_at(start, row * step_row + column * step_column, centre, per_unit)

    upper = (integers + 128) >> 8
    lower = integers - upper * 256
    plane = ((which * SH + residue) * SW + at % SW) * 2 * PLANE
    spot = inner * ROW + at // SW * LANES + lane
    tl.store(planes + plane + spot, upper.to(tl.int8), inside)
    tl.store(planes + plane + PLANE + spot, lower.to(tl.int8), inside)
    if (which == 0) & (residue == 0):
        once = inside & (at % SW == 0)
        tl.store(planes + ones + spot, tl.zeros([PADDED, LANES], tl.int8), once)
        tl.store(planes + ones + PLANE + spot, tl.full([PADDED, LANES], 1, tl.int8), once)

    if inner < PER_LANE:
        own = (at >= BESIDE * SW) & (at < BESIDE * SW + COLUMNS) & (block_row < BLOCK_ROWS)
        above = (row + ROWS - 1) % ROWS
        left = (column + COLUMNS - 1) % COLUMNS
        other = integers_at(start, above * step_row + column * step_column, centre, per_unit)
        down = tl.sum(tl.where(own, tl.abs(integers - other), 0), 0)
        other = integers_at(start, row * step_row + left * step_column, centre, per_unit)
        across = tl.sum(tl.where(own, tl.abs(integers - other), 0), 1)
        lanes = tl.arange(0, LANES)
        places = tl.arange(0, PADDED)
        block_rows = lanes * PER_LANE + inner
        tl.store(row_parts + which * ROWS + SH * block_rows + residue, down, block_rows < BLOCK_ROWS)
        first = column_parts + (which * SH * PER_LANE + place) * COLUMNS - BESIDE * SW
        tl.store(first + places, across, (places >= BESIDE * SW) & (places < BESIDE * SW + COLUMNS))
