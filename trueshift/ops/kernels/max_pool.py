# mypy: allow-untyped-defs, allow-incomplete-defs
"""The largest of neighbouring tokens at a stride, with an own shift for each image."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..geometry.shift import Pair
from . import INTERPRETED, operation, refuse_second_derivative
from .launching import blocks_in, launched
from .neighbours import (
    CHANNELS,
    extent_of,
    origin_of,
    out_shape,
    reader_of,
    source_of,
    tile_of,
    tiles_in,
    within_frame,
    wrapped,
)

TILE = (16, 16) if INTERPRETED else (4, 8)
WARPS = 4


@launched
@triton.jit
def _forward(
    x, y, winner, offset, stride_b, stride_h, stride_w, stride_c,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    CIRCULAR: tl.constexpr, REMEMBERED: tl.constexpr, BLOCK: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (C + BLOCK - 1) // BLOCK
    tiles: tl.constexpr = ((OH + TH - 1) // TH) * ((OW + TW - 1) // TW)
    program = tl.program_id(0)
    channel = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    image = program // (blocks * tiles)
    row, column, inside = tile_of((program // blocks) % tiles, OH, OW, TH, TW)
    row_origin, column_origin = origin_of(offset, image, 0, H, True), origin_of(offset, image, 1, W, True)
    held = channel < C
    best = tl.full((TH * TW, BLOCK), float("-inf"), tl.float32)
    number = tl.zeros((TH * TW, BLOCK), tl.int32)
    x += image.to(tl.int64) * stride_b
    for i in tl.static_range(KH):
        at_row = row * SH + (i - PH)
        line = source_of(at_row, row_origin, H, KH) * stride_h
        exists = within_frame(at_row, inside, H, CIRCULAR)
        for j in tl.static_range(KW):
            at_column = column * SW + (j - PW)
            place = line + source_of(at_column, column_origin, W, KW) * stride_w
            mask = within_frame(at_column, exists, W, CIRCULAR)[:, None] & held[None, :]
            value = tl.load(x + place[:, None] + (channel * stride_c)[None, :], mask=mask, other=float("-inf"))
            value = value.to(tl.float32)
            larger = (value > best) | (value != value)  # what is not a number wins, as in torch
            best = tl.where(larger, value, best)
            number = tl.where(larger, i * KW + j, number)
    place = (image.to(tl.int64) * (OH * OW) + row * OW + column) * C
    mask = inside[:, None] & held[None, :]
    tl.store(y + place[:, None] + channel[None, :], best.to(y.dtype.element_ty), mask=mask)
    if REMEMBERED:
        tl.store(winner + place[:, None] + channel[None, :], number.to(tl.uint8), mask=mask)


@launched
@triton.jit
def _backward(
    grad, winner, out, offset,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    CIRCULAR: tl.constexpr, BLOCK: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (C + BLOCK - 1) // BLOCK
    tiles: tl.constexpr = ((H + TH - 1) // TH) * ((W + TW - 1) // TW)
    program = tl.program_id(0)
    channel = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    image = program // (blocks * tiles)
    row, column, inside = tile_of((program // blocks) % tiles, H, W, TH, TW)
    row_origin, column_origin = origin_of(offset, image, 0, H, True), origin_of(offset, image, 1, W, True)
    framed_row, framed_column = wrapped(row - row_origin, H, H), wrapped(column - column_origin, W, W)
    held = channel < C
    total = tl.zeros((TH * TW, BLOCK), tl.float32)
    winner += image.to(tl.int64) * (OH * OW * C)
    grad += image.to(tl.int64) * (OH * OW * C)
    for i in tl.static_range(KH):
        at_row, read_row = reader_of(framed_row, inside, i - PH, H, OH, SH, KH, CIRCULAR)
        for j in tl.static_range(KW):
            at_column, reads = reader_of(framed_column, read_row, j - PW, W, OW, SW, KW, CIRCULAR)
            place = (at_row * OW + at_column) * C
            at, mask = place[:, None] + channel[None, :], reads[:, None] & held[None, :]
            chosen = tl.load(winner + at, mask=mask, other=255).to(tl.int32) == i * KW + j
            total += tl.where(chosen, tl.load(grad + at, mask=mask, other=0.0).to(tl.float32), 0.0)
    place = (image.to(tl.int64) * (H * W) + row * W + column) * C
    tl.store(
        out + place[:, None] + channel[None, :], total.to(out.dtype.element_ty), mask=inside[:, None] & held[None, :]
    )


def _sizes(shape: Sequence[int], kernel: Sequence[int], stride: Sequence[int], before: Sequence[int]) -> dict[str, int]:
    channels = shape[3]
    return {
        "H": shape[1], "W": shape[2], "C": channels,
        "OH": (shape[1] - 1) // stride[0] + 1, "OW": (shape[2] - 1) // stride[1] + 1,
        "SH": stride[0], "SW": stride[1], "PH": before[0], "PW": before[1], "KH": kernel[0], "KW": kernel[1],
        "BLOCK": extent_of(channels, channels, CHANNELS), "TH": TILE[0], "TW": TILE[1],
    }  # fmt: skip


def _fake_forward(
    x: Tensor, offset: Tensor, kernel: list[int], stride: list[int], before: list[int], circular: bool, remembered: bool
) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0], *out_shape(x, stride), x.shape[3])
    return x.new_empty(shape), x.new_empty(shape if remembered else (0,), dtype=torch.uint8)


@operation("max_pool", _fake_forward)
def max_pool_forward(
    x: Tensor, offset: Tensor, kernel: list[int], stride: list[int], before: list[int], circular: bool, remembered: bool
) -> tuple[Tensor, Tensor]:
    """The largest values and, if they are to be remembered, which of the neighbours had them."""
    y, winner = _fake_forward(x, offset, kernel, stride, before, circular, remembered)
    sizes = _sizes(x.shape, kernel, stride, before)
    programs = x.shape[0] * tiles_in(sizes["OH"], sizes["OW"], TILE) * blocks_in(x.shape[3], sizes["BLOCK"])
    _forward[(programs,)](
        x, y, winner, offset.contiguous(), *x.stride(), **sizes,
        CIRCULAR=circular, REMEMBERED=remembered, num_warps=WARPS,
    )  # fmt: skip
    return y, winner


def _fake_backward(
    grad: Tensor, winner: Tensor, offset: Tensor, shape: list[int], kernel: list[int], stride: list[int],
    before: list[int], circular: bool,
) -> Tensor:  # fmt: skip
    return grad.new_empty(shape)


@operation("max_pool_backward", _fake_backward)
def max_pool_backward(
    grad: Tensor, winner: Tensor, offset: Tensor, shape: list[int], kernel: list[int], stride: list[int],
    before: list[int], circular: bool,
) -> Tensor:  # fmt: skip
    """To each input the gradients of those outputs that it won."""
    out = _fake_backward(grad, winner, offset, shape, kernel, stride, before, circular)
    sizes = _sizes(shape, kernel, stride, before)
    programs = shape[0] * tiles_in(shape[1], shape[2], TILE) * blocks_in(shape[3], sizes["BLOCK"])
    _backward[(programs,)](
        grad.contiguous(), winner, out, offset.contiguous(), **sizes, CIRCULAR=circular, num_warps=WARPS
    )
    return out


class _MaxPool(torch.autograd.Function):
    """The pooling, differentiable once."""

    @staticmethod
    def forward(
        x: Tensor, offset: Tensor, kernel: Pair, stride: Pair, before: Pair, circular: bool
    ) -> tuple[Tensor, Tensor]:
        return max_pool_forward(x, offset, list(kernel), list(stride), list(before), circular, True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, offset, ctx.kernel, ctx.stride, ctx.before, ctx.circular = inputs
        ctx.shape = x.shape
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], offset)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        refuse_second_derivative(grads)
        winner, offset = ctx.saved_tensors
        geometry = list(ctx.shape), list(ctx.kernel), list(ctx.stride), list(ctx.before), ctx.circular
        return max_pool_backward(grads[0], winner, offset, *geometry), None, None, None, None, None


def max_pool(x: Tensor, kernel: Pair, stride: Pair, before: Pair, offset: Tensor, mode: str = "circular") -> Tensor:
    """The largest values, with a gradient where one is asked for."""
    circular = mode == "circular"
    if torch.is_grad_enabled() and x.requires_grad:
        return _MaxPool.apply(x, offset, kernel, stride, before, circular)[0]
    return max_pool_forward(x, offset, list(kernel), list(stride), list(before), circular, False)[0]
