# mypy: allow-untyped-defs, allow-incomplete-defs
"""Gradients of depthwise convolutions of tokens.

Nothing is added atomically: each result is summed by one program in one order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import operation
from .launching import blocks_in, launched, power_of_two
from .neighbours import (
    CHANNELS,
    TILE,
    WARPS,
    extent_of,
    in_one_launch,
    origin_of,
    pick,
    reader_of,
    sizes_of,
    source_of,
    three,
    tile_of,
    tiles_in,
    within_frame,
    within_head,
    wrapped,
)


@launched
@triton.jit
def _back_to_input(
    g0, g1, g2, w0, w1, w2, d0, d1, d2, offset,
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
    channel, of_head = block * EXTENT + lane, within_head(block, C, D, EXTENT) + lane
    tile = (program // (apart * blocks)) % tiles
    image = program // (apart * blocks * tiles)
    held = (lane < EXTENT) & (channel < C)
    row, column, inside = tile_of(tile, H, W, TH, TW)
    row_origin, column_origin = origin_of(offset, image, 0, H, SHIFTED), origin_of(offset, image, 1, W, SHIFTED)
    # in the shifted frame
    framed_row, framed_column = wrapped(row - row_origin, H, H), wrapped(column - column_origin, W, W)
    total = tl.zeros((TH * TW, BLOCK), tl.float32)
    for number in tl.static_range(TOGETHER):
        which = number if TOGETHER > 1 else program % apart
        grad, weight = pick(which, g0, g1, g2, MAPS), pick(which, w0, w1, w2, MAPS)
        grad += image.to(tl.int64) * (OH * OW * C)
        for i in tl.static_range(KH):
            at_row, read_row = reader_of(framed_row, inside, i - PH, H, OH, SH, KH, CIRCULAR)
            for j in tl.static_range(KW):
                at_column, read = reader_of(framed_column, read_row, j - PW, W, OW, SW, KW, CIRCULAR)
                place = (at_row * OW + at_column) * C
                tap = tl.load(weight + of_head * (KH * KW) + (i * KW + j), mask=held, other=0.0).to(tl.float32)
                value = tl.load(grad + place[:, None] + channel[None, :], mask=read[:, None] & held[None, :], other=0.0)
                total += value.to(tl.float32) * tap[None, :]
    target = d0 if TOGETHER > 1 else pick(program % apart, d0, d1, d2, MAPS)
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
    x, grad = pick(which, x0, x1, x2, MAPS), pick(which, g0, g1, g2, MAPS)
    held = (lane < EXTENT) & (channel < C)
    number = tl.arange(0, TAPS)
    row_origin, column_origin = origin_of(offset, image, 0, H, SHIFTED), origin_of(offset, image, 1, W, SHIFTED)
    total = tl.zeros((TAPS, BLOCK), tl.float32)
    x += image.to(tl.int64) * stride_b
    for step in range(each):
        row, column, inside = tile_of(split * each + step, OH, OW, TH, TW)
        place = image.to(tl.int64) * (OH * OW * C) + (row * OW + column) * C
        wanted = tl.load(grad + place[:, None] + channel[None, :], mask=inside[:, None] & held[None, :], other=0.0)
        wanted = wanted.to(tl.float32)
        for i in tl.static_range(KH):
            at_row = row * SH + (i - PH)
            line = source_of(at_row, row_origin, H, KH) * stride_h
            exists = within_frame(at_row, inside, H, CIRCULAR)
            for j in tl.static_range(KW):
                at_column = column * SW + (j - PW)
                place = line + source_of(at_column, column_origin, W, KW) * stride_w
                mask = within_frame(at_column, exists, W, CIRCULAR)[:, None] & held[None, :]
                value = tl.load(x + place[:, None] + (channel * stride_c)[None, :], mask=mask, other=0.0)
                summed = tl.sum(value.to(tl.float32) * wanted, 0)
                total += tl.where((number == i * KW + j)[:, None], summed[None, :], 0.0)
    place = ((which * parts + part).to(tl.int64) * (KH * KW) + number) * C
    tl.store(partial + place[:, None] + channel[None, :], total, mask=(number < KH * KW)[:, None] & held[None, :])


def _fake_backward(
    grads: list[Tensor],
    maps: list[Tensor],
    weights: list[Tensor],
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
    weights: list[Tensor],
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
    together: bool,
) -> list[Tensor]:
    """The gradient of each map; with ``together``, of the one tensor that all maps are."""
    out = _fake_backward(grads, maps, weights, offset, stride, padding, circular, together)
    x, sizes, count = maps[0], sizes_of(maps[0], weights[0], stride, padding), len(maps)
    extent = extent_of(x.shape[3], weights[0].shape[0], CHANNELS)
    programs = tiles_in(x.shape[1], x.shape[2], TILE) * blocks_in(x.shape[3], extent) * x.shape[0]
    _back_to_input[(programs * (1 if together else count),)](
        *three([grad.contiguous() for grad in grads]),
        *three([weight.contiguous() for weight in weights]),
        *three(out),
        None if offset is None else offset.contiguous(),
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


def _fake_weights(
    grads: list[Tensor],
    maps: list[Tensor],
    weights: list[Tensor],
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
) -> list[Tensor]:
    return [weight.new_empty(weight.shape) for weight in weights]


@operation("depthwise_back_to_weights", _fake_weights)
def depthwise_back_to_weights(
    grads: list[Tensor],
    maps: list[Tensor],
    weights: list[Tensor],
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
) -> list[Tensor]:
    """The gradient of each weight."""
    if not in_one_launch(maps):
        maps = [x.contiguous().to(maps[0].dtype) for x in maps]
    x, count, (width, _, rows, columns) = maps[0], len(weights), weights[0].shape
    sizes = sizes_of(x, weights[0], stride, padding)
    channels, images = x.shape[3], x.shape[0]
    extent = extent_of(channels, width, CHANNELS)
    blocks, tiles = blocks_in(channels, extent), tiles_in(sizes["OH"], sizes["OW"], TILE)
    splits = max(1, min(tiles, 2048 // (images * blocks * count)))
    parts = images * splits
    partial = x.new_empty((count, parts, rows * columns, channels), dtype=torch.float32)
    _back_to_weight[(parts * blocks * count,)](
        *three(maps),
        *three([grad.contiguous() for grad in grads]),
        partial,
        None if offset is None else offset.contiguous(),
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
    summed = partial.view(count, parts, rows, columns, channels // width, width).sum((1, 4))
    return [
        grad.permute(2, 0, 1)[:, None].to(weight.dtype).contiguous()
        for grad, weight in zip(summed, weights, strict=True)
    ]
