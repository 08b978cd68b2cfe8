# mypy: allow-untyped-defs, allow-incomplete-defs
"""Depthwise convolutions of tokens: channels last, an own shift for each image, up to three maps in one launch.

Read for every tap are tiles of neighbouring positions and channels, so that all taps but the first come from the cache.
Nothing is added atomically: each result is summed by one program in one order.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..shift import Pair
from . import INTERPRETED, operation, refuse_second_derivative
from .launching import blocks_in, launched, power_of_two

# positions and channels of one program; the interpreter takes as long for a large one as for a small one
TILE = (16, 16) if INTERPRETED else (8, 8)
CHANNELS = 256 if INTERPRETED else 64
WARPS = 4
NO_NORM, BY_CHANNEL, BY_HEAD = 0, 1, 2


@triton.jit
def _pick(which, a, b, c, MAPS: tl.constexpr):
    chosen = a
    if MAPS > 1:  # noqa: SIM102 -- known when compiled
        if which == 1:
            chosen = b
    if MAPS > 2:  # noqa: SIM102
        if which == 2:
            chosen = c
    return chosen


@triton.jit
def _within(block, C: tl.constexpr, D: tl.constexpr, EXTENT: tl.constexpr):
    """Where a block of channels starts in its head; written so that a compiler sees that it reads aligned."""
    if D < C:
        block = block % (D // EXTENT)
    return block * EXTENT


@triton.jit
def _origin(offset, image, axis: tl.constexpr, SIZE: tl.constexpr, SHIFTED: tl.constexpr):
    """Where an image's frame starts: 0 .. SIZE - 1."""
    at = 0
    if SHIFTED:
        at = (tl.load(offset + image * 2 + axis) % SIZE).to(tl.int32)
        at = tl.where(at < 0, at + SIZE, at)
    return at


@triton.jit
def _tile(tile, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr):
    """Rows and columns of a tile of positions, and which of them exist."""
    across: tl.constexpr = (WIDTH + TW - 1) // TW
    place = tl.arange(0, TH * TW)
    row = (tile // across) * TH + place // TW
    column = (tile % across) * TW + place % TW
    return row, column, (row < HEIGHT) & (column < WIDTH)


@triton.jit
def _source(at, origin, SIZE: tl.constexpr, BEFORE: tl.constexpr):
    """Where a row or column of the shifted frame, or of what continues it, stands in the image."""
    return (at + origin + BEFORE * SIZE) % SIZE


@triton.jit
def _within_frame(at, mask, SIZE: tl.constexpr, CIRCULAR: tl.constexpr):
    if not CIRCULAR:
        mask = mask & (at >= 0) & (at < SIZE)
    return mask


@launched
@triton.jit
def _forward(
    x0, x1, x2, taps, y0, y1, y2, g0, g1, g2, b0, b1, b2, m0, m1, m2, v0, v1, v2, offset, prefix,
    stride_b, stride_h, stride_w, stride_c, prefix_b, prefix_n, prefix_c, eps,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    CIRCULAR: tl.constexpr, SHIFTED: tl.constexpr, MAPS: tl.constexpr, NORM: tl.constexpr, LEAD: tl.constexpr,
    EXTENT: tl.constexpr, BLOCK: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (C + EXTENT - 1) // EXTENT
    tiles: tl.constexpr = ((OH + TH - 1) // TH) * ((OW + TW - 1) // TW)
    program = tl.program_id(0)
    which = program % MAPS
    block = (program // MAPS) % blocks
    tile = (program // (MAPS * blocks)) % tiles
    image = program // (MAPS * blocks * tiles)
    x, y = _pick(which, x0, x1, x2, MAPS), _pick(which, y0, y1, y2, MAPS)

    lane = tl.arange(0, BLOCK)
    channel, within = block * EXTENT + lane, _within(block, C, D, EXTENT) + lane
    held = (lane < EXTENT) & (channel < C)
    row, column, inside = _tile(tile, OH, OW, TH, TW)
    row_origin, column_origin = _origin(offset, image, 0, H, SHIFTED), _origin(offset, image, 1, W, SHIFTED)
    total = tl.zeros((TH * TW, BLOCK), tl.float32)
    x += image.to(tl.int64) * stride_b
    for i in tl.static_range(KH):
        at_row = row * SH + (i - PH)
        line = _source(at_row, row_origin, H, PH) * stride_h
        exists = _within_frame(at_row, inside, H, CIRCULAR)
        for j in tl.static_range(KW):
            at_column = column * SW + (j - PW)
            place = line + _source(at_column, column_origin, W, PW) * stride_w
            mask = _within_frame(at_column, exists, W, CIRCULAR)[:, None] & held[None, :]
            value = tl.load(x + place[:, None] + (channel * stride_c)[None, :], mask=mask, other=0.0)
            tap = tl.load(taps + ((which * KH + i) * KW + j) * D + within, mask=held, other=0.0)
            total += value.to(tl.float32) * tap[None, :]

    if NORM == 1:  # of batches: in evaluation an affine map of each channel
        gain, shift = _pick(which, g0, g1, g2, MAPS), _pick(which, b0, b1, b2, MAPS)
        mean, variance = _pick(which, m0, m1, m2, MAPS), _pick(which, v0, v1, v2, MAPS)
        factor = tl.load(gain + channel, mask=held, other=0.0).to(tl.float32)
        factor *= tl.rsqrt(tl.load(variance + channel, mask=held, other=1.0).to(tl.float32) + eps)
        middle = tl.load(mean + channel, mask=held, other=0.0).to(tl.float32)
        start = tl.load(shift + channel, mask=held, other=0.0).to(tl.float32)
        total = (total - middle[None, :]) * factor[None, :] + start[None, :]
    if NORM == 2:  # of layers: over the channels of a head, all of which are here
        gain, shift = _pick(which, g0, g1, g2, MAPS), _pick(which, b0, b1, b2, MAPS)
        centred = tl.where(held[None, :], total - (tl.sum(total, 1) / D)[:, None], 0.0)
        spread = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)
        factor = tl.load(gain + lane, mask=held, other=0.0).to(tl.float32)
        start = tl.load(shift + lane, mask=held, other=0.0).to(tl.float32)
        total = centred * spread[:, None] * factor[None, :] + start[None, :]

    first = image.to(tl.int64) * ((LEAD + OH * OW) * C)
    place = first + (LEAD + row * OW + column) * C
    tl.store(y + place[:, None] + channel[None, :], total.to(y.dtype.element_ty), mask=inside[:, None] & held[None, :])
    if LEAD:  # noqa: SIM102
        if tile == 0:
            for number in tl.static_range(LEAD):
                source = prefix + image.to(tl.int64) * prefix_b + number * prefix_n + channel * prefix_c
                token = tl.load(source, mask=held, other=0.0)
                tl.store(y + first + number * C + channel, token.to(y.dtype.element_ty), mask=held)


@triton.jit
def _reader(
    at, mask, ahead: tl.constexpr, SIZE: tl.constexpr, OUTPUTS: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr,
    CIRCULAR: tl.constexpr,
):  # fmt: skip
    """Which output, if any, reads a position of the shifted frame by the tap so far ahead of it."""
    first = at - ahead
    if CIRCULAR:
        first = (first + K * SIZE) % SIZE
    else:
        mask = mask & (first >= 0)
    if STRIDE > 1:
        mask = mask & (first % STRIDE == 0)
    number = first // STRIDE
    return number, mask & (number < OUTPUTS)


@launched
@triton.jit
def _back_to_input(
    g0, g1, g2, taps, d0, d1, d2, offset,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    CIRCULAR: tl.constexpr, SHIFTED: tl.constexpr, MAPS: tl.constexpr, TOGETHER: tl.constexpr,
    EXTENT: tl.constexpr, BLOCK: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """What each position of the input gave, from all outputs that read it."""
    blocks: tl.constexpr = (C + EXTENT - 1) // EXTENT
    tiles: tl.constexpr = ((H + TH - 1) // TH) * ((W + TW - 1) // TW)
    apart: tl.constexpr = MAPS // TOGETHER
    program = tl.program_id(0)
    block, lane = (program // apart) % blocks, tl.arange(0, BLOCK)
    channel, within = block * EXTENT + lane, _within(block, C, D, EXTENT) + lane
    tile = (program // (apart * blocks)) % tiles
    image = program // (apart * blocks * tiles)
    held = (lane < EXTENT) & (channel < C)
    row, column, inside = _tile(tile, H, W, TH, TW)
    row_origin, column_origin = _origin(offset, image, 0, H, SHIFTED), _origin(offset, image, 1, W, SHIFTED)
    # in the shifted frame
    framed_row, framed_column = (row - row_origin + H) % H, (column - column_origin + W) % W
    total = tl.zeros((TH * TW, BLOCK), tl.float32)
    for number in tl.static_range(TOGETHER):
        which = number if TOGETHER > 1 else program % apart
        grad = _pick(which, g0, g1, g2, MAPS)
        grad += image.to(tl.int64) * (OH * OW * C)
        for i in tl.static_range(KH):
            at_row, read_row = _reader(framed_row, inside, i - PH, H, OH, SH, KH, CIRCULAR)
            for j in tl.static_range(KW):
                at_column, read = _reader(framed_column, read_row, j - PW, W, OW, SW, KW, CIRCULAR)
                place = (at_row * OW + at_column) * C
                tap = tl.load(taps + ((which * KH + i) * KW + j) * D + within, mask=held, other=0.0)
                value = tl.load(grad + place[:, None] + channel[None, :], mask=read[:, None] & held[None, :], other=0.0)
                total += value.to(tl.float32) * tap[None, :]
    target = d0 if TOGETHER > 1 else _pick(program % apart, d0, d1, d2, MAPS)
    place = image.to(tl.int64) * (H * W * C) + (row * W + column) * C
    tl.store(
        target + place[:, None] + channel[None, :],
        total.to(target.dtype.element_ty),
        mask=inside[:, None] & held[None, :],
    )


@launched
@triton.jit
def _back_to_weight(
    x0, x1, x2, g0, g1, g2, partial, offset, stride_b, stride_h, stride_w, stride_c, parts,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    CIRCULAR: tl.constexpr, SHIFTED: tl.constexpr, MAPS: tl.constexpr, SPLITS: tl.constexpr, TAPS: tl.constexpr,
    EXTENT: tl.constexpr, BLOCK: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """Products of outputs' gradients and inputs, summed over part of the positions of one image."""
    blocks: tl.constexpr = (C + EXTENT - 1) // EXTENT
    tiles: tl.constexpr = ((OH + TH - 1) // TH) * ((OW + TW - 1) // TW)
    each: tl.constexpr = (tiles + SPLITS - 1) // SPLITS
    program = tl.program_id(0)
    which = program % MAPS
    lane = tl.arange(0, BLOCK)
    channel = ((program // MAPS) % blocks) * EXTENT + lane
    part = program // (MAPS * blocks)
    image, split = part // SPLITS, part % SPLITS
    x, grad = _pick(which, x0, x1, x2, MAPS), _pick(which, g0, g1, g2, MAPS)
    held = (lane < EXTENT) & (channel < C)
    number = tl.arange(0, TAPS)
    row_origin, column_origin = _origin(offset, image, 0, H, SHIFTED), _origin(offset, image, 1, W, SHIFTED)
    total = tl.zeros((TAPS, BLOCK), tl.float32)
    x += image.to(tl.int64) * stride_b
    for step in range(each):
        row, column, inside = _tile(split * each + step, OH, OW, TH, TW)
        place = image.to(tl.int64) * (OH * OW * C) + (row * OW + column) * C
        wanted = tl.load(grad + place[:, None] + channel[None, :], mask=inside[:, None] & held[None, :], other=0.0)
        wanted = wanted.to(tl.float32)
        for i in tl.static_range(KH):
            at_row = row * SH + (i - PH)
            line = _source(at_row, row_origin, H, PH) * stride_h
            exists = _within_frame(at_row, inside, H, CIRCULAR)
            for j in tl.static_range(KW):
                at_column = column * SW + (j - PW)
                place = line + _source(at_column, column_origin, W, PW) * stride_w
                mask = _within_frame(at_column, exists, W, CIRCULAR)[:, None] & held[None, :]
                value = tl.load(x + place[:, None] + (channel * stride_c)[None, :], mask=mask, other=0.0)
                summed = tl.sum(value.to(tl.float32) * wanted, 0)
                total += tl.where((number == i * KW + j)[:, None], summed[None, :], 0.0)
    place = ((which * parts + part).to(tl.int64) * (KH * KW) + number) * C
    tl.store(partial + place[:, None] + channel[None, :], total, mask=(number < KH * KW)[:, None] & held[None, :])


@launched
@triton.jit
def _energy(
    x0, x1, x2, taps, energy, stride_b, stride_h, stride_w, stride_c,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    MAPS: tl.constexpr, SHARED: tl.constexpr,
    EXTENT: tl.constexpr, BLOCK: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    tiles: tl.constexpr = ((H + TH - 1) // TH) * ((W + TW - 1) // TW)
    program, block = tl.program_id(0), tl.program_id(1)
    image, tile = program // tiles, program % tiles
    row, column, inside = _tile(tile, H, W, TH, TW)
    lane = tl.arange(0, BLOCK)
    x0 += image.to(tl.int64) * stride_b
    x1 += image.to(tl.int64) * stride_b
    x2 += image.to(tl.int64) * stride_b
    channel, within = block * EXTENT + lane, _within(block, C, D, EXTENT) + lane
    held = (lane < EXTENT) & (channel < C)
    first = tl.zeros((TH * TW, BLOCK), tl.float32)
    second = tl.zeros((TH * TW, BLOCK), tl.float32)
    third = tl.zeros((TH * TW, BLOCK), tl.float32)
    mask = inside[:, None] & held[None, :]
    for i in tl.static_range(KH):
        line = _source(row + (i - PH), 0, H, PH) * stride_h
        for j in tl.static_range(KW):
            at = taps + (i * KW + j) * D + within
            place = line + _source(column + (j - PW), 0, W, PW) * stride_w
            place = place[:, None] + (channel * stride_c)[None, :]
            value = tl.load(x0 + place, mask=mask, other=0.0).to(tl.float32)
            first += value * tl.load(at, mask=held, other=0.0)[None, :]
            if MAPS > 1:
                if not SHARED:
                    value = tl.load(x1 + place, mask=mask, other=0.0).to(tl.float32)
                second += value * tl.load(at + KH * KW * D, mask=held, other=0.0)[None, :]
            if MAPS > 2:
                if not SHARED:
                    value = tl.load(x2 + place, mask=mask, other=0.0).to(tl.float32)
                third += value * tl.load(at + 2 * KH * KW * D, mask=held, other=0.0)[None, :]
    found = tl.sum(first * first + second * second + third * third, 1)
    part = (block * tl.num_programs(0) // tiles + image).to(tl.int64) * (H * W)
    tl.store(energy + part + row * W + column, found, mask=inside)


def _three(tensors: Sequence[Tensor]) -> list[Tensor]:
    """As many arguments as a kernel takes; those beyond the number of maps are not read."""
    return [*tensors, *[tensors[0]] * (3 - len(tensors))]


def _in_one_launch(maps: Sequence[Tensor]) -> bool:
    return all(x.stride() == maps[0].stride() and x.dtype == maps[0].dtype for x in maps[1:]) and len(maps) <= 3


def _same(maps: Sequence[Tensor]) -> bool:
    """All maps are one tensor."""
    return all(x is maps[0] for x in maps[1:])


def _extent(channels: int, width: int) -> int:
    """Channels of one program: part of a head's where heads share a weight, in powers of two if there are some."""
    if width == channels:
        return min(CHANNELS, power_of_two(channels))
    even = min(width & -width, CHANNELS)
    return even if even >= 16 else width


def out_shape(x: Tensor, stride: Sequence[int]) -> Pair:
    """How many outputs there are along rows and columns."""
    return (x.shape[1] - 1) // stride[0] + 1, (x.shape[2] - 1) // stride[1] + 1


def _sizes(x: Tensor, taps: Tensor, stride: Sequence[int], padding: Sequence[int]) -> dict[str, int]:
    height, width = out_shape(x, stride)
    return {
        "H": x.shape[1], "W": x.shape[2], "C": x.shape[3], "OH": height, "OW": width,
        "SH": stride[0], "SW": stride[1], "PH": padding[0], "PW": padding[1],
        "KH": taps.shape[1], "KW": taps.shape[2], "D": taps.shape[3],
    }  # fmt: skip


def _tiles(height: int, width: int, tile: Pair) -> int:
    return blocks_in(height, tile[0]) * blocks_in(width, tile[1])


def _fake_forward(
    maps: list[Tensor],
    taps: Tensor,
    norms: list[Tensor],
    prefix: Tensor | None,
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
    eps: float,
    dtype: torch.dtype,
) -> list[Tensor]:
    height, width = out_shape(maps[0], stride)
    images, channels, lead = maps[0].shape[0], maps[0].shape[3], 0 if prefix is None else prefix.shape[1]
    return [x.new_empty((images, lead + height * width, channels), dtype=dtype) for x in maps]


@operation("depthwise", _fake_forward)
def depthwise_forward(
    maps: list[Tensor],
    taps: Tensor,
    norms: list[Tensor],
    prefix: Tensor | None,
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
    eps: float,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Sequences of the outputs of all maps, behind those of ``prefix`` if there is one.

    Args:
        taps: float32 weights of each map, ``[maps, kh, kw, D]``: channels last, to be read together.
        norms: none; or gains, shifts, means and variances of each map's channels; or gains and shifts of each map's
            heads. The gains of all maps come first, then all shifts.
    """
    out = _fake_forward(maps, taps, norms, prefix, offset, stride, padding, circular, eps, dtype)
    count = len(maps)
    if not _in_one_launch(maps):
        for number in range(count):
            own = norms[number::count]
            one = [maps[number]], taps[number : number + 1], own, [out[number]]
            _launch_forward(*one, prefix, offset, stride, padding, circular, eps)
    else:
        _launch_forward(maps, taps, norms, out, prefix, offset, stride, padding, circular, eps)
    return out


def _launch_forward(
    maps: Sequence[Tensor],
    taps: Tensor,
    norms: Sequence[Tensor],
    out: Sequence[Tensor],
    prefix: Tensor | None,
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
    eps: float,
) -> None:
    x, count = maps[0], len(maps)
    kind = {0: NO_NORM, 2: BY_HEAD, 4: BY_CHANNEL}[len(norms) // count]
    sizes = _sizes(x, taps, stride, padding)
    extent = taps.shape[3] if kind == BY_HEAD else _extent(x.shape[3], taps.shape[3])
    of_norms = [_three(norms[first : first + count]) for first in range(0, len(norms), count)]
    of_norms += [_three([taps])] * (4 - len(of_norms))
    lead = prefix.stride() if prefix is not None else (0, 0, 0)
    programs = x.shape[0] * _tiles(sizes["OH"], sizes["OW"], TILE) * blocks_in(x.shape[3], extent) * count
    _forward[(programs,)](
        *_three(maps),
        taps,
        *_three(out),
        *[tensor for group in of_norms for tensor in group],
        x if offset is None else offset.contiguous(),
        x if prefix is None else prefix,
        *x.stride(),
        *lead,
        eps,
        **sizes,
        CIRCULAR=circular,
        SHIFTED=offset is not None,
        MAPS=count,
        NORM=kind,
        LEAD=0 if prefix is None else prefix.shape[1],
        EXTENT=extent,
        BLOCK=power_of_two(extent),
        TH=TILE[0],
        TW=TILE[1],
        num_warps=WARPS,
    )


def _fake_backward(
    grads: list[Tensor],
    maps: list[Tensor],
    taps: Tensor,
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
    together: bool,
) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in (maps[:1] if together else maps)]


@operation("depthwise_back_to_input", _fake_backward)
def depthwise_back_to_input(
    grads: list[Tensor],
    maps: list[Tensor],
    taps: Tensor,
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
    together: bool,
) -> list[Tensor]:
    """The gradient of each map; with ``together``, of the one tensor that all maps are."""
    out = _fake_backward(grads, maps, taps, offset, stride, padding, circular, together)
    x, sizes, count = maps[0], _sizes(maps[0], taps, stride, padding), len(maps)
    extent = _extent(x.shape[3], taps.shape[3])
    programs = _tiles(x.shape[1], x.shape[2], TILE) * blocks_in(x.shape[3], extent) * x.shape[0]
    _back_to_input[(programs * (1 if together else count),)](
        *_three([grad.contiguous() for grad in grads]),
        taps,
        *_three(out),
        x if offset is None else offset.contiguous(),
        **sizes,
        CIRCULAR=circular,
        SHIFTED=offset is not None,
        MAPS=count,
        TOGETHER=count if together else 1,
        EXTENT=extent,
        BLOCK=power_of_two(extent),
        TH=TILE[0],
        TW=TILE[1],
        num_warps=WARPS,
    )
    return out


def _fake_taps(
    grads: list[Tensor],
    maps: list[Tensor],
    taps: Tensor,
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
) -> Tensor:
    return taps.new_empty(taps.shape)


@operation("depthwise_back_to_weight", _fake_taps)
def depthwise_back_to_weight(
    grads: list[Tensor],
    maps: list[Tensor],
    taps: Tensor,
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
) -> Tensor:
    """The gradient of all taps."""
    if not _in_one_launch(maps):
        maps = [x.contiguous().to(maps[0].dtype) for x in maps]
    x, (count, rows, columns, width) = maps[0], taps.shape
    sizes = _sizes(x, taps, stride, padding)
    channels, images = x.shape[3], x.shape[0]
    extent = _extent(channels, width)
    blocks, tiles = blocks_in(channels, extent), _tiles(sizes["OH"], sizes["OW"], TILE)
    splits = max(1, min(tiles, 2048 // (images * blocks * count)))
    parts = images * splits
    partial = x.new_empty((count, parts, rows * columns, channels), dtype=torch.float32)
    _back_to_weight[(parts * blocks * count,)](
        *_three(maps),
        *_three([grad.contiguous() for grad in grads]),
        partial,
        x if offset is None else offset.contiguous(),
        *x.stride(),
        parts,
        **sizes,
        CIRCULAR=circular,
        SHIFTED=offset is not None,
        MAPS=count,
        SPLITS=splits,
        TAPS=power_of_two(rows * columns),
        EXTENT=extent,
        BLOCK=power_of_two(extent),
        TH=TILE[0],
        TW=TILE[1],
        num_warps=WARPS,
    )
    return partial.view(count, parts, rows, columns, channels // width, width).sum((1, 4))


def _fake_energy(maps: list[Tensor], taps: Tensor, padding: list[int]) -> Tensor:
    channels = maps[0].shape[3]
    parts = -(-channels // _extent(channels, taps.shape[3]))
    return maps[0].new_empty((parts, *maps[0].shape[:3]), dtype=torch.float32)


@operation("depthwise_energy", _fake_energy)
def depthwise_energy(maps: list[Tensor], taps: Tensor, padding: list[int]) -> Tensor:
    """Squares of the outputs of all maps at every position, summed over maps and over each part of the channels."""
    if not _in_one_launch(maps):
        maps = [x.contiguous().to(maps[0].dtype) for x in maps]
    x = maps[0]
    energy = _fake_energy(maps, taps, padding)
    extent = _extent(x.shape[3], taps.shape[3])
    sizes = {key: value for key, value in _sizes(x, taps, (1, 1), padding).items() if key[0] not in "SO"}
    _energy[(x.shape[0] * _tiles(x.shape[1], x.shape[2], TILE), energy.shape[0])](
        *_three(maps),
        taps,
        energy,
        *x.stride(),
        **sizes,
        MAPS=len(maps),
        SHARED=_same(maps),
        EXTENT=extent,
        BLOCK=power_of_two(extent),
        TH=TILE[0],
        TW=TILE[1],
        num_warps=WARPS,
    )
    return energy


class _Depthwise(torch.autograd.Function):
    """The convolutions of several maps, differentiable once.

    Sequences and not maps come out: what follows is a projection, and a class token may be in front.
    """

    @staticmethod
    def forward(
        taps: Tensor,
        offset: Tensor | None,
        stride: Pair,
        padding: Pair,
        circular: bool,
        dtype: torch.dtype,
        *own: Tensor,
    ) -> tuple[Tensor, ...]:
        maps = _for_each(own, taps)
        step, reach = list(stride), list(padding)
        return tuple(depthwise_forward(maps, taps, [], None, offset, step, reach, circular, 0.0, dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        taps, offset, ctx.stride, ctx.padding, ctx.circular, _, *own = inputs
        ctx.save_for_backward(taps, offset, *own)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        refuse_second_derivative(grads)
        taps, offset, *own = ctx.saved_tensors
        common = (list(grads), _for_each(own, taps), taps, offset, list(ctx.stride), list(ctx.padding), ctx.circular)
        to_taps: Tensor | None = None
        to_maps: Sequence[Tensor | None] = [None] * len(own)
        if ctx.needs_input_grad[0]:
            to_taps = depthwise_back_to_weight(*common)
        if any(ctx.needs_input_grad[6:]):
            to_maps = depthwise_back_to_input(*common, len(own) < len(taps))
        return to_taps, None, None, None, None, None, *to_maps


def differentiable_depthwise(
    maps: Sequence[Tensor],
    taps: Tensor,
    offset: Tensor | None,
    stride: Pair,
    padding: Pair,
    circular: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """:func:`depthwise_forward` with a gradient; the gradient of one single map comes in one piece."""
    return _Depthwise.apply(taps, offset, stride, padding, circular, dtype, *maps)


def _for_each(own: Sequence[Tensor], taps: Tensor) -> list[Tensor]:
    """One map for each weight; one single map is that of all."""
    return list(own) if len(own) == taps.shape[0] else [own[0]] * taps.shape[0]
