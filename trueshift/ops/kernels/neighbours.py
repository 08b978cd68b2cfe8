"""Kernels that read neighbouring tokens: depthwise convolutions and pooling by the largest value.

A program computes a tile of neighbouring positions and channels, so that all taps but the first come from the cache.
Each image has its own shift, and up to three maps share a launch. Gradients are not added atomically: each result is
summed by one program in one order.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from ..geometry.shift import Pair
from ..nn.depthwise import pooled_shape
from . import INTERPRETED
from .launching import blocks_in, launched, power_of_two

# positions and channels of one program; the interpreter takes as long for a large one as for a small one
TILE = (16, 16) if INTERPRETED else (8, 8)
CHANNELS = 256 if INTERPRETED else 64
WARPS = 4
NO_NORM, BY_CHANNEL, BY_HEAD = 0, 1, 2  # none; BatchNorm in evaluation; LayerNorm over the channels of a head


@triton.jit
def pick(which, a, b, c, MAPS: tl.constexpr):
    """One of up to three pointers."""
    chosen = a
    if MAPS > 1:  # noqa: SIM102 -- known when compiled
        if which == 1:
            chosen = b
    if MAPS > 2:  # noqa: SIM102
        if which == 2:
            chosen = c
    return chosen


@triton.jit
def within_head(block, C: tl.constexpr, D: tl.constexpr, EXTENT: tl.constexpr):
    """Where a block of channels starts in its head; written so that a compiler sees that it reads aligned."""
    if D < C:
        block = block % (D // EXTENT)
    return block * EXTENT


@triton.jit
def origin_of(offset, image, axis: tl.constexpr, SIZE: tl.constexpr, SHIFTED: tl.constexpr):
    """Where an image's frame starts: 0 .. SIZE - 1."""
    at = 0
    if SHIFTED:
        at = (tl.load(offset + image * 2 + axis) % SIZE).to(tl.int32)
        at = tl.where(at < 0, at + SIZE, at)
    return at


@triton.jit
def tile_of(tile, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr):
    """Rows and columns of a tile of positions, and which of them exist."""
    across: tl.constexpr = (WIDTH + TW - 1) // TW
    place = tl.arange(0, TH * TW)
    row = (tile // across) * TH + place // TW
    column = (tile % across) * TW + place % TW
    return row, column, (row < HEIGHT) & (column < WIDTH)


@triton.jit
def wrapped(at, SIZE: tl.constexpr, FURTHER: tl.constexpr):
    """A row or column around the circle, from up to ``FURTHER`` before the first or after the last of two rounds.

    By comparisons: of a remainder the compiler knows how small it is, computes with 8 or 16 bits, two at a time, and
    has been seen to lose one of the two.
    """
    for _ in tl.static_range((FURTHER + SIZE - 1) // SIZE):
        at = tl.where(at < 0, at + SIZE, at)
    for _ in tl.static_range(1 + (FURTHER + SIZE - 1) // SIZE):
        at = tl.where(at >= SIZE, at - SIZE, at)
    return at


@triton.jit
def within_frame(at, mask, SIZE: tl.constexpr, CIRCULAR: tl.constexpr):
    """Which rows or columns are not beyond the border, if there is one."""
    if not CIRCULAR:
        mask = mask & (at >= 0) & (at < SIZE)
    return mask


@triton.jit
def reader_of(
    at, mask, ahead: tl.constexpr, SIZE: tl.constexpr, OUTPUTS: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr,
    CIRCULAR: tl.constexpr,
):  # fmt: skip
    """Which output, if any, reads a position of the shifted frame by the tap so far ahead of it."""
    first = at - ahead
    if CIRCULAR:
        first = wrapped(first, SIZE, K)
    else:
        mask = mask & (first >= 0)
    if STRIDE > 1:
        mask = mask & (first % STRIDE == 0)
    number = first // STRIDE
    return number, mask & (number < OUTPUTS)


@triton.jit
def norm_constants(
    which, g0, g1, g2, b0, b1, b2, m0, m1, m2, v0, v1, v2, channel, lane, held, eps,
    MAPS: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What the channels of a map are multiplied by, what is subtracted before and added after."""
    factor = tl.full((BLOCK,), 1.0, tl.float32)
    centre = tl.zeros((BLOCK,), tl.float32)
    start = tl.zeros((BLOCK,), tl.float32)
    if NORM > 0:
        at = channel if NORM == 1 else lane
        gain, shift = pick(which, g0, g1, g2, MAPS), pick(which, b0, b1, b2, MAPS)
        factor = tl.load(gain + at, mask=held, other=0.0).to(tl.float32)
        start = tl.load(shift + at, mask=held, other=0.0).to(tl.float32)
    if NORM == 1:
        mean, variance = pick(which, m0, m1, m2, MAPS), pick(which, v0, v1, v2, MAPS)
        factor *= tl.rsqrt(tl.load(variance + channel, mask=held, other=1.0).to(tl.float32) + eps)
        centre = tl.load(mean + channel, mask=held, other=0.0).to(tl.float32)
    return factor, centre, start


@triton.jit
def normed(total, factor, centre, start, held, eps, D: tl.constexpr, NORM: tl.constexpr):
    """Positions by channels; of a head, all channels are here."""
    if NORM == 1:
        total = (total - centre[None, :]) * factor[None, :] + start[None, :]
    if NORM == 2:
        centred = tl.where(held[None, :], total - (tl.sum(total, 1) / D)[:, None], 0.0)
        spread = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)
        total = centred * spread[:, None] * factor[None, :] + start[None, :]
    return total


@launched
@triton.jit
def _forward(
    x0, x1, x2, w0, w1, w2, y0, y1, y2, g0, g1, g2, b0, b1, b2, m0, m1, m2, v0, v1, v2, offset, prefix, winner,
    stride_b, stride_h, stride_w, stride_c, prefix_b, prefix_n, prefix_c, eps: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    CIRCULAR: tl.constexpr, SHIFTED: tl.constexpr, MAPS: tl.constexpr, NORM: tl.constexpr, LEAD: tl.constexpr,
    LARGEST: tl.constexpr, REMEMBERED: tl.constexpr, EXTENT: tl.constexpr, BLOCK: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """Weighted sums of neighbours, normed; with ``LARGEST`` the largest of them and, if remembered, which one."""
    blocks: tl.constexpr = (C + EXTENT - 1) // EXTENT
    tiles: tl.constexpr = ((OH + TH - 1) // TH) * ((OW + TW - 1) // TW)
    program = tl.program_id(0)
    which = program % MAPS
    block = (program // MAPS) % blocks
    tile = (program // (MAPS * blocks)) % tiles
    image = program // (MAPS * blocks * tiles)
    x, y = pick(which, x0, x1, x2, MAPS), pick(which, y0, y1, y2, MAPS)
    if not LARGEST:
        weight = pick(which, w0, w1, w2, MAPS)

    lane = tl.arange(0, BLOCK)
    channel, of_head = block * EXTENT + lane, within_head(block, C, D, EXTENT) + lane
    held = (lane < EXTENT) & (channel < C)
    row, column, inside = tile_of(tile, OH, OW, TH, TW)
    row_origin, column_origin = origin_of(offset, image, 0, H, SHIFTED), origin_of(offset, image, 1, W, SHIFTED)
    nothing: tl.constexpr = float("-inf") if LARGEST else 0.0
    total = tl.full((TH * TW, BLOCK), nothing, tl.float32)
    if LARGEST:
        number = tl.zeros((TH * TW, BLOCK), tl.int32)
    x += image.to(tl.int64) * stride_b
    for i in tl.static_range(KH):
        at_row = row * SH + (i - PH)
        line = wrapped(at_row + row_origin, H, KH) * stride_h
        exists = within_frame(at_row, inside, H, CIRCULAR)
        for j in tl.static_range(KW):
            at_column = column * SW + (j - PW)
            place = line + wrapped(at_column + column_origin, W, KW) * stride_w
            mask = within_frame(at_column, exists, W, CIRCULAR)[:, None] & held[None, :]
            value = tl.load(x + place[:, None] + (channel * stride_c)[None, :], mask=mask, other=nothing)
            if LARGEST:
                value = value.to(tl.float32)
                larger = (value > total) | (value != value)  # NaN wins, as in torch
                total = tl.where(larger, value, total)
                number = tl.where(larger, i * KW + j, number)
            else:
                tap = tl.load(weight + of_head * (KH * KW) + (i * KW + j), mask=held, other=0.0)
                total += value.to(tl.float32) * tap.to(tl.float32)[None, :]

    factor, centre, start = norm_constants(
        which, g0, g1, g2, b0, b1, b2, m0, m1, m2, v0, v1, v2, channel, lane, held, eps, MAPS, NORM, BLOCK
    )
    total = normed(total, factor, centre, start, held, eps, D, NORM)
    first = image.to(tl.int64) * ((LEAD + OH * OW) * C)
    place = first + (LEAD + row * OW + column) * C
    mask = inside[:, None] & held[None, :]
    tl.store(y + place[:, None] + channel[None, :], total.to(y.dtype.element_ty), mask=mask)
    if REMEMBERED:
        tl.store(winner + place[:, None] + channel[None, :], number.to(tl.uint8), mask=mask)
    if LEAD:  # noqa: SIM102
        if tile == 0:
            for lead in tl.static_range(LEAD):
                source = prefix + image.to(tl.int64) * prefix_b + lead * prefix_n + channel * prefix_c
                token = tl.load(source, mask=held, other=0.0)
                tl.store(y + first + lead * C + channel, token.to(y.dtype.element_ty), mask=held)


@launched
@triton.jit
def _back_to_input(
    g0, g1, g2, w0, w1, w2, d0, d1, d2, offset, winner,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    CIRCULAR: tl.constexpr, SHIFTED: tl.constexpr, MAPS: tl.constexpr, TOGETHER: tl.constexpr, LARGEST: tl.constexpr,
    EXTENT: tl.constexpr, BLOCK: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """What each position of the input gave, from all outputs that read it; with ``LARGEST``, that it won."""
    blocks: tl.constexpr = (C + EXTENT - 1) // EXTENT
    tiles: tl.constexpr = ((H + TH - 1) // TH) * ((W + TW - 1) // TW)
    apart: tl.constexpr = MAPS // TOGETHER
    program = tl.program_id(0)
    block, lane = (program // apart) % blocks, tl.arange(0, BLOCK)
    channel, of_head = block * EXTENT + lane, within_head(block, C, D, EXTENT) + lane
    tile = (program // (apart * blocks)) % tiles
    image = program // (apart * blocks * tiles)
    held = (lane < EXTENT) & (channel < C)
    row, column, inside = tile_of(tile, H, W, TH, TW)
    row_origin, column_origin = origin_of(offset, image, 0, H, SHIFTED), origin_of(offset, image, 1, W, SHIFTED)
    # in the shifted frame
    framed_row, framed_column = wrapped(row - row_origin, H, H), wrapped(column - column_origin, W, W)
    total = tl.zeros((TH * TW, BLOCK), tl.float32)
    if LARGEST:
        winner += image.to(tl.int64) * (OH * OW * C)
    for number in tl.static_range(TOGETHER):
        which = number if TOGETHER > 1 else program % apart
        grad = pick(which, g0, g1, g2, MAPS)
        if not LARGEST:
            weight = pick(which, w0, w1, w2, MAPS)
        grad += image.to(tl.int64) * (OH * OW * C)
        for i in tl.static_range(KH):
            at_row, read_row = reader_of(framed_row, inside, i - PH, H, OH, SH, KH, CIRCULAR)
            for j in tl.static_range(KW):
                at_column, read = reader_of(framed_column, read_row, j - PW, W, OW, SW, KW, CIRCULAR)
                place = (at_row * OW + at_column) * C
                mask = read[:, None] & held[None, :]
                if LARGEST:
                    won = tl.load(winner + place[:, None] + channel[None, :], mask=mask, other=255).to(tl.int32)
                else:
                    tap = tl.load(weight + of_head * (KH * KW) + (i * KW + j), mask=held, other=0.0).to(tl.float32)
                value = tl.load(grad + place[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
                total += tl.where(won == i * KW + j, value, 0.0) if LARGEST else value * tap[None, :]
    target = d0 if TOGETHER > 1 else pick(program % apart, d0, d1, d2, MAPS)
    place = image.to(tl.int64) * (H * W * C) + (row * W + column) * C
    tl.store(
        target + place[:, None] + channel[None, :],
        total.to(target.dtype.element_ty),
        mask=inside[:, None] & held[None, :],
    )


def three(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """As many arguments as a kernel takes; those beyond the number of maps are not read."""
    return [*tensors, *[None] * (3 - len(tensors))]


def in_one_launch(maps: Sequence[Tensor]) -> bool:
    """Whether maps lie in memory in the same way."""
    return all(x.stride() == maps[0].stride() and x.dtype == maps[0].dtype for x in maps[1:]) and len(maps) <= 3


def extent_of(channels: int, width: int) -> int:
    """Channels of one program: part of a head's where heads share a weight, in powers of two if there are some."""
    if width == channels and channels % 16:
        return min(CHANNELS, power_of_two(channels))
    even = min(width & -width, CHANNELS)
    return even if even >= 16 else width


def tiles_in(height: int, width: int, tile: Pair) -> int:
    """How many tiles cover a map."""
    return blocks_in(height, tile[0]) * blocks_in(width, tile[1])


def kind_of_norm(norms: Sequence[Tensor], maps: int) -> int:
    """By how many constants each map has."""
    return {0: NO_NORM, 2: BY_HEAD, 4: BY_CHANNEL}[len(norms) // maps]


def groups_of_three(norms: Sequence[Tensor], count: int) -> list[Tensor | None]:
    """Gains, shifts, means and variances, three of each; what is not there is not read."""
    groups = [three(norms[first : first + count]) for first in range(0, len(norms), count)]
    return [tensor for group in groups for tensor in group] + [None] * (12 - 3 * len(groups))


def launch_forward(
    maps: Sequence[Tensor], weights: Sequence[Tensor], norms: Sequence[Tensor], out: Sequence[Tensor],
    prefix: Tensor | None, offset: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    kernel: Sequence[int], circular: bool, eps: float = 0.0, winner: Tensor | None = None, tile: Pair | None = None,
) -> None:  # fmt: skip
    """Write the outputs of maps of one layout: weighted sums, or the largest neighbours if there are no weights."""
    x, count = maps[0], len(maps)
    width = weights[0].shape[0] if weights else x.shape[3]
    kind, outputs, channels = kind_of_norm(norms, count), pooled_shape(x.shape, stride), x.shape[3]
    extent = width if kind == BY_HEAD else extent_of(channels, width)
    if tile is None:
        tile = TILE if extent <= CHANNELS else (TILE[0] // 2, TILE[1])  # more would not fit into the registers
    lead = prefix.stride() if prefix is not None else (0, 0, 0)
    _forward[(x.shape[0] * tiles_in(*outputs, tile) * blocks_in(channels, extent) * count,)](
        *three(maps), *three(weights), *three(out), *groups_of_three(norms, count),
        None if offset is None else offset.contiguous(), prefix, winner, *x.stride(), *lead, eps,
        *x.shape[1:], width, *outputs, *stride, *padding, *kernel,
        circular, offset is not None, count, kind, 0 if prefix is None else prefix.shape[1],
        len(weights) == 0, winner is not None, extent, power_of_two(extent), *tile, num_warps=WARPS,
    )  # fmt: skip


def launch_back_to_input(
    grads: Sequence[Tensor], weights: Sequence[Tensor], out: Sequence[Tensor], offset: Tensor | None,
    stride: Sequence[int], padding: Sequence[int], kernel: Sequence[int], circular: bool,
    winner: Tensor | None = None, tile: Pair | None = None,
) -> None:  # fmt: skip
    """Write the gradient of each map; of the one tensor that all maps are, if there is one output for several."""
    shape, count, tile = out[0].shape, len(grads), tile or TILE
    width = weights[0].shape[0] if weights else shape[3]
    extent = extent_of(shape[3], width)
    _back_to_input[(tiles_in(shape[1], shape[2], tile) * blocks_in(shape[3], extent) * shape[0] * len(out),)](
        *three([grad.contiguous() for grad in grads]), *three([weight.contiguous() for weight in weights]), *three(out),
        None if offset is None else offset.contiguous(), winner,
        *shape[1:], width, *pooled_shape(shape, stride), *stride, *padding, *kernel,
        circular, offset is not None, count, count // len(out), len(weights) == 0,
        extent, power_of_two(extent), *tile, num_warps=WARPS,
    )  # fmt: skip
