"""3 x 3 depthwise convolutions at every position: their values, or only the squares of these, summed over channels.

A program goes down some rows of a strip of columns. Each row of tokens is read once, its neighbours to both sides from
the cache, and is added to the three rows of results that it belongs to. Every result is the sum of its nine products in
the same order, wherever it is.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..nn.depthwise import same
from . import INTERPRETED, operation
from .launching import blocks_in, launched, power_of_two
from .neighbours import (
    BY_HEAD,
    extent_of,
    groups_of_three,
    in_one_launch,
    kind_of_norm,
    norm_constants,
    normed,
    origin_of,
    pick,
    three,
    within_frame,
    within_head,
    wrapped,
)

VALUES = 512  # of one row of a program: more of them leave too few registers
LONGEST = 64 if INTERPRETED else 16  # rows of one program
BUSY = 1 if INTERPRETED else 512  # programs; with fewer, rows are shared among more


@triton.jit
def _three_columns(x, left, middle, right, of_left, of_middle, of_right):
    """A row of tokens and their neighbours to both sides, in float32."""
    before = tl.load(x + left, mask=of_left, other=0.0).to(tl.float32)
    here = tl.load(x + middle, mask=of_middle, other=0.0).to(tl.float32)
    after = tl.load(x + right, mask=of_right, other=0.0).to(tl.float32)
    return before, here, after


@triton.jit
def _three_taps(weight, row: tl.constexpr, channel, held):
    at = weight + channel * 9 + row * 3
    before = tl.load(at, mask=held, other=0.0).to(tl.float32)[None, :]
    here = tl.load(at + 1, mask=held, other=0.0).to(tl.float32)[None, :]
    after = tl.load(at + 2, mask=held, other=0.0).to(tl.float32)[None, :]
    return before, here, after


@triton.jit
def _added(total, before, here, after, tap_before, tap_here, tap_after):
    total += before * tap_before
    total += here * tap_here
    total += after * tap_after
    return total


@launched
@triton.jit
def _values(
    x0, x1, x2, w0, w1, w2, y0, y1, y2, g0, g1, g2, b0, b1, b2, m0, m1, m2, v0, v1, v2, offset, prefix,
    stride_b, stride_h, stride_w, stride_c, prefix_b, prefix_n, prefix_c, eps: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr, CIRCULAR: tl.constexpr, SHIFTED: tl.constexpr,
    MAPS: tl.constexpr, NORM: tl.constexpr, LEAD: tl.constexpr, EXTENT: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (C + EXTENT - 1) // EXTENT
    across: tl.constexpr = (W + COLUMNS - 1) // COLUMNS
    parts: tl.constexpr = (H + ROWS - 1) // ROWS
    program = tl.program_id(0)
    which = program % MAPS
    block = (program // MAPS) % blocks
    strip = (program // (MAPS * blocks)) % across
    part = (program // (MAPS * blocks * across)) % parts
    image = (program // (MAPS * blocks * across * parts)).to(tl.int64)
    x, y, weight = pick(which, x0, x1, x2, MAPS), pick(which, y0, y1, y2, MAPS), pick(which, w0, w1, w2, MAPS)

    lane = tl.arange(0, BLOCK)
    channel, of_head = block * EXTENT + lane, within_head(block, C, D, EXTENT) + lane
    held = (lane < EXTENT) & (channel < C)
    column = strip * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < W
    above = _three_taps(weight, 0, of_head, held)
    level = _three_taps(weight, 1, of_head, held)
    below = _three_taps(weight, 2, of_head, held)

    row_origin, column_origin = origin_of(offset, image, 0, H, SHIFTED), origin_of(offset, image, 1, W, SHIFTED)
    x += image * stride_b
    spread = (channel * stride_c)[None, :]
    left = (wrapped(column + column_origin - 1, W, COLUMNS) * stride_w)[:, None] + spread
    middle = (wrapped(column + column_origin, W, COLUMNS) * stride_w)[:, None] + spread
    right = (wrapped(column + column_origin + 1, W, COLUMNS) * stride_w)[:, None] + spread
    of_left = within_frame(column - 1, inside, W, CIRCULAR)[:, None] & held[None, :]
    of_middle = inside[:, None] & held[None, :]
    of_right = within_frame(column + 1, inside, W, CIRCULAR)[:, None] & held[None, :]

    factor, centre, start = norm_constants(
        which, g0, g1, g2, b0, b1, b2, m0, m1, m2, v0, v1, v2, channel, lane, held, eps, MAPS, NORM, BLOCK
    )
    first = part * ROWS
    done = tl.zeros((COLUMNS, BLOCK), tl.float32)
    half = tl.zeros((COLUMNS, BLOCK), tl.float32)
    place = image * ((LEAD + H * W) * C) + LEAD * C
    row = first - 1
    exists = within_frame(row, row < H + 1, H, CIRCULAR)
    line = x + wrapped(row + row_origin, H, ROWS + 2) * stride_h
    now = _three_columns(line, left, middle, right, of_left & exists, of_middle & exists, of_right & exists)
    for step in range(ROWS + 2):
        row = first + step  # the next one is on its way while this one is added
        exists = within_frame(row, row < H + 2, H, CIRCULAR)
        line = x + wrapped(row + row_origin, H, ROWS + 2) * stride_h
        coming = _three_columns(line, left, middle, right, of_left & exists, of_middle & exists, of_right & exists)
        done = _added(done, now[0], now[1], now[2], below[0], below[1], below[2])
        half = _added(half, now[0], now[1], now[2], level[0], level[1], level[2])
        begun = tl.zeros((COLUMNS, BLOCK), tl.float32)
        begun = _added(begun, now[0], now[1], now[2], above[0], above[1], above[2])
        total = normed(done, factor, centre, start, held, eps, D, NORM)
        finished = row - 2
        there = of_middle & (step >= 2) & (finished < H)
        at = y + place + (finished * W + column)[:, None] * C + channel[None, :]
        tl.store(at, total.to(y.dtype.element_ty), mask=there)
        done = half
        half = begun
        now = coming

    if LEAD:  # noqa: SIM102 -- known when compiled
        if (strip == 0) & (part == 0):
            for number in tl.static_range(LEAD):
                token = tl.load(
                    prefix + image * prefix_b + number * prefix_n + channel * prefix_c, mask=held, other=0.0
                )
                at = y + image * ((LEAD + H * W) * C) + number * C + channel
                tl.store(at, token.to(y.dtype.element_ty), mask=held)


@launched
@triton.jit
def _energies(
    x0, x1, w0, w1, energy, stride_b, stride_h, stride_w, stride_c,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr, MAPS: tl.constexpr, SHARED: tl.constexpr,
    EXTENT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = (W + COLUMNS - 1) // COLUMNS
    parts: tl.constexpr = (H + ROWS - 1) // ROWS
    program, block = tl.program_id(0), tl.program_id(1)
    strip, part = program % across, (program // across) % parts
    images = tl.num_programs(0) // (across * parts)
    image = (program // (across * parts)).to(tl.int64)

    lane = tl.arange(0, BLOCK)
    channel, of_head = block * EXTENT + lane, within_head(block, C, D, EXTENT) + lane
    held = (lane < EXTENT) & (channel < C)
    column = strip * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < W
    mask = inside[:, None] & held[None, :]
    spread = (channel * stride_c)[None, :]
    left = (wrapped(column - 1, W, COLUMNS) * stride_w)[:, None] + spread
    middle = (wrapped(column, W, COLUMNS) * stride_w)[:, None] + spread
    right = (wrapped(column + 1, W, COLUMNS) * stride_w)[:, None] + spread
    x0 += image * stride_b
    if not SHARED:
        x1 += image * stride_b
    above, level = _three_taps(w0, 0, of_head, held), _three_taps(w0, 1, of_head, held)
    below = _three_taps(w0, 2, of_head, held)
    if MAPS > 1:
        above1, level1 = _three_taps(w1, 0, of_head, held), _three_taps(w1, 1, of_head, held)
        below1 = _three_taps(w1, 2, of_head, held)

    first = part * ROWS
    done = tl.zeros((COLUMNS, BLOCK), tl.float32)
    half = tl.zeros((COLUMNS, BLOCK), tl.float32)
    done1 = tl.zeros((COLUMNS, BLOCK), tl.float32)
    half1 = tl.zeros((COLUMNS, BLOCK), tl.float32)
    line = wrapped(first - 1, H, ROWS + 2) * stride_h
    now = _three_columns(x0 + line, left, middle, right, mask, mask, mask)
    now1 = now
    if not SHARED:
        now1 = _three_columns(x1 + line, left, middle, right, mask, mask, mask)
    target = energy + (block * images + image) * (H * W)
    for step in range(ROWS + 2):
        row = first + step  # the next one is on its way while this one is added
        line = wrapped(row, H, ROWS + 2) * stride_h
        coming = _three_columns(x0 + line, left, middle, right, mask, mask, mask)
        done = _added(done, now[0], now[1], now[2], below[0], below[1], below[2])
        half = _added(half, now[0], now[1], now[2], level[0], level[1], level[2])
        begun = tl.zeros((COLUMNS, BLOCK), tl.float32)
        begun = _added(begun, now[0], now[1], now[2], above[0], above[1], above[2])
        squares = done * done
        done = half
        half = begun
        if MAPS > 1:
            if SHARED:
                now1 = now
            done1 = _added(done1, now1[0], now1[1], now1[2], below1[0], below1[1], below1[2])
            half1 = _added(half1, now1[0], now1[1], now1[2], level1[0], level1[1], level1[2])
            begun1 = tl.zeros((COLUMNS, BLOCK), tl.float32)
            begun1 = _added(begun1, now1[0], now1[1], now1[2], above1[0], above1[1], above1[2])
            squares += done1 * done1
            done1 = half1
            half1 = begun1
            if not SHARED:
                now1 = _three_columns(x1 + line, left, middle, right, mask, mask, mask)
        finished = row - 2
        tl.store(target + finished * W + column, tl.sum(squares, 1), mask=inside & (step >= 2) & (finished < H))
        now = coming


def _warps(channels: int) -> int:
    return 2 if channels <= 64 else 4


def _strips(images: int, height: int, width: int, others: int, channels: int) -> tuple[int, int, int]:
    """Rows and columns of one program, and how many programs cover all images; ``others`` share each strip."""
    columns = power_of_two(width) if INTERPRETED else min(16, max(2, VALUES // channels))
    parts = blocks_in(height, LONGEST)
    while images * blocks_in(width, columns) * parts * others < BUSY and height > 2 * parts:
        parts *= 2
    rows = blocks_in(height, parts)
    return rows, columns, images * blocks_in(width, columns) * blocks_in(height, rows)


def launch_values(
    maps: Sequence[Tensor], weights: Sequence[Tensor], norms: Sequence[Tensor], out: Sequence[Tensor],
    prefix: Tensor | None, offset: Tensor | None, circular: bool, eps: float,
) -> None:  # fmt: skip
    """Write the convolutions of maps of one layout; see :func:`~trueshift.ops.kernels.depthwise.depthwise_forward`."""
    x, count, width = maps[0], len(maps), weights[0].shape[0]
    images, height, columns, channels = x.shape
    kind = kind_of_norm(norms, count)
    extent = width if kind == BY_HEAD else extent_of(channels, width)
    block = power_of_two(extent)
    rows, strip, programs = _strips(images, height, columns, blocks_in(channels, extent) * count, block)
    lead = prefix.stride() if prefix is not None else (0, 0, 0)
    _values[(programs * blocks_in(channels, extent) * count,)](
        *three(maps), *three(weights), *three(out), *groups_of_three(norms, count),
        None if offset is None else offset.contiguous(), prefix,
        *x.stride(), *lead, eps,
        height, columns, channels, width, circular, offset is not None, count, kind,
        0 if prefix is None else prefix.shape[1], extent, block, rows, strip, num_warps=_warps(block),
    )  # fmt: skip


def _energy(maps: list[Tensor], weights: list[Tensor]) -> Tensor:
    channels = maps[0].shape[3]
    parts = blocks_in(channels, extent_of(channels, weights[0].shape[0]))
    return maps[0].new_empty((parts, *maps[0].shape[:3]), dtype=torch.float32)


@operation("depthwise_energy", _energy)
def launch_energy(maps: list[Tensor], weights: list[Tensor]) -> Tensor:
    """Squares of the outputs of one or two maps at every position, summed over maps and each part of the channels."""
    if not in_one_launch(maps):
        maps = [x.contiguous().to(maps[0].dtype) for x in maps]
    energy, x, width = _energy(maps, weights), maps[0], weights[0].shape[0]
    images, height, columns, channels = x.shape
    extent = extent_of(channels, width)
    block = power_of_two(extent)
    rows, strip, programs = _strips(images, height, columns, energy.shape[0], block)
    _energies[(programs, energy.shape[0])](
        x, None if same(maps) else maps[1], *three(weights)[:2], energy, *x.stride(),
        height, columns, channels, width, len(maps), same(maps), extent, block, rows, strip, num_warps=_warps(block),
    )  # fmt: skip
    return energy
