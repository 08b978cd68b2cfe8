"""The bias of attention by relative positions, gathered from what each query asks of every row of the tables.

Each program computes the distances between its queries and keys itself: no index ever lies in memory.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..geometry.grid import TokenGrid
from ..geometry.rel_pos import MODES, Rows
from . import INTERPRETED, operation, refuse_second_derivative
from .launching import blocks_in, launched, power_of_two

QUERIES, KEYS = (64, 64) if INTERPRETED else (16, 256)
WARPS = 4
ALIGNED = 8  # fused attention reads a bias whose rows start at multiples of this; any other it copies


@triton.jit
def _apart(query_origin, key_origin, image, axis: tl.constexpr, SIZE: tl.constexpr, MOVED: tl.constexpr):
    """How far the first query is after the first key: 0 .. SIZE - 1 pixels."""
    apart = 0
    if MOVED:
        apart = tl.load(query_origin + image * 2 + axis) - tl.load(key_origin + image * 2 + axis)
        apart = (apart % SIZE).to(tl.int32)
        apart = tl.where(apart < 0, apart + SIZE, apart)
    return apart


@triton.jit
def _row(
    apart, query, key, SIZE: tl.constexpr, QUERY: tl.constexpr, KEY: tl.constexpr, UNIT: tl.constexpr,
    MODE: tl.constexpr,
):  # fmt: skip
    """The row of the table for one row (or column) of queries and one of keys, as :mod:`.geometry.rel_pos`."""
    steps: tl.constexpr = SIZE // UNIT
    zero: tl.constexpr = (SIZE // KEY - 1) * (KEY // UNIT)
    if MODE == 2:
        behind: tl.constexpr = (SIZE - 1) // 2
        signed = (apart + behind) % SIZE - behind
        ahead = signed + query * QUERY - key * KEY + 2 * SIZE  # never negative: rounded down
        row = tl.minimum(tl.maximum(ahead // UNIT - 2 * steps + zero, 0), 2 * steps - 2)
    else:
        row = (apart + query * QUERY - key * KEY + 2 * SIZE) % SIZE // UNIT
        if MODE == 1:
            short: tl.constexpr = (steps - 1) // 2
            row = (row + short) % steps - short + zero
            row = tl.where(row < 0, row + steps, row)
    return row


@launched
@triton.jit
def _forward(
    scores, query_origin, key_origin, bias,
    H: tl.constexpr, W: tl.constexpr, QH: tl.constexpr, QW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, HEADS: tl.constexpr, RH: tl.constexpr, R: tl.constexpr, ROW: tl.constexpr,
    MOVED: tl.constexpr, MODE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    across: tl.constexpr = W // QW
    total: tl.constexpr = (H // QH) * across
    columns: tl.constexpr = W // KW
    image = tl.program_id(2) // HEADS
    head = tl.program_id(2) % HEADS
    query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    key = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    down = _apart(query_origin, key_origin, image, 0, H, MOVED)
    right = _apart(query_origin, key_origin, image, 1, W, MOVED)
    at = tl.minimum(key, (H // KH) * columns - 1)
    row = _row(down, (query // across)[:, None], (at // columns)[None, :], H, QH, KH, UH, MODE)
    column = _row(right, (query % across)[:, None], (at % columns)[None, :], W, QW, KW, UW, MODE)
    asked = scores + ((image.to(tl.int64) * total + query) * HEADS + head)[:, None] * R
    mask = (query < total)[:, None] & (key < ROW)[None, :]
    found = tl.load(asked + row, mask=mask, other=0.0).to(tl.float32)
    found += tl.load(asked + (RH + column), mask=mask, other=0.0).to(tl.float32)
    place = (tl.program_id(2).to(tl.int64) * total + query)[:, None] * ROW + key[None, :]
    tl.store(bias + place, found.to(bias.dtype.element_ty), mask=mask)


@launched
@triton.jit
def _backward(
    grad, query_origin, key_origin, out, stride_b, stride_n, stride_q, stride_k,
    H: tl.constexpr, W: tl.constexpr, QH: tl.constexpr, QW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, HEADS: tl.constexpr, RH: tl.constexpr, R: tl.constexpr,
    MOVED: tl.constexpr, MODE: tl.constexpr, QUERIES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum gradients over all keys at each distance from a query; no row is written twice."""
    across: tl.constexpr = W // QW
    total: tl.constexpr = (H // QH) * across
    columns: tl.constexpr = W // KW
    image = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    there = query < total
    column = tl.arange(0, COLUMNS)
    down = _apart(query_origin, key_origin, image, 0, H, MOVED)
    right = _apart(query_origin, key_origin, image, 1, W, MOVED)
    mask = there[:, None] & (column < columns)[None, :]
    grad += image.to(tl.int64) * stride_b + head.to(tl.int64) * stride_n
    place = query.to(tl.int64)[:, None] * stride_q + column[None, :] * stride_k
    target = out + ((image.to(tl.int64) * total + query) * HEADS + head) * R
    by_column = tl.zeros((QUERIES, COLUMNS), tl.float32)
    for line in range(H // KH):
        wanted = tl.load(grad + place + line * columns * stride_k, mask=mask, other=0.0).to(tl.float32)
        by_column += wanted
        row = _row(down, query // across, line, H, QH, KH, UH, MODE)
        tl.store(target + row, tl.sum(wanted, 1).to(out.dtype.element_ty), mask=there)
    row = _row(right, (query % across)[:, None], column[None, :], W, QW, KW, UW, MODE)
    tl.store(target[:, None] + (RH + row), by_column.to(out.dtype.element_ty), mask=mask)


def _launch_sizes(size: list[int], query: list[int], key: list[int]) -> tuple[int, ...]:
    """H, W, QH, QW, KH, KW, UH, UW."""
    return (*size, *query, *key, min(query[0], key[0]), min(query[1], key[1]))


def _bias(scores, query_origin, key_origin, size, query, key, *_) -> Tensor:
    images, queries, heads, _ = scores.shape
    return scores.new_empty((images, heads, queries, blocks_in(_keys(size, key), ALIGNED) * ALIGNED))


def _keys(size: list[int], key: list[int]) -> int:
    return (size[0] // key[0]) * (size[1] // key[1])


@operation("position_bias", _bias)
def position_bias_forward(
    scores: Tensor, query_origin: Tensor | None, key_origin: Tensor | None, size: list[int], query: list[int],
    key: list[int], rows: int, mode: int,
) -> Tensor:  # fmt: skip
    """The bias ``[B, heads, N, K]`` of ``scores [B, N, heads, rows + columns]``, with rows of an aligned length.

    Grids of strides ``query`` and ``key`` on an image of ``size`` start at their origins, or together.
    """
    bias = _bias(scores, query_origin, key_origin, size, query, key)
    (images, queries, heads, steps), length = scores.shape, bias.shape[3]
    keys = min(KEYS, power_of_two(length))
    _forward[(blocks_in(length, keys), blocks_in(queries, QUERIES), images * heads)](
        scores.contiguous(), *_origins(query_origin, key_origin, scores), bias,
        *_launch_sizes(size, query, key), heads, rows, steps, length, query_origin is not None, mode, QUERIES, keys,
        num_warps=WARPS,
    )  # fmt: skip
    return bias


def _origins(query_origin: Tensor | None, key_origin: Tensor | None, unread: Tensor) -> tuple[Tensor, Tensor]:
    if query_origin is None or key_origin is None:
        return unread, unread
    return query_origin.contiguous(), key_origin.contiguous()


@operation(
    "position_bias_backward",
    lambda grad, query_origin, key_origin, size, query, key, rows, steps, mode: grad.new_empty(
        (grad.shape[0], grad.shape[2], grad.shape[1], steps)
    ),
)
def position_bias_backward(
    grad: Tensor, query_origin: Tensor | None, key_origin: Tensor | None, size: list[int], query: list[int],
    key: list[int], rows: int, steps: int, mode: int,
) -> Tensor:  # fmt: skip
    """The gradient of what the queries asked."""
    images, heads, queries, _ = grad.shape
    out = grad.new_zeros((images, queries, heads, steps))
    _backward[(blocks_in(queries, QUERIES), images * heads)](
        grad, *_origins(query_origin, key_origin, grad), out, *grad.stride(),
        *_launch_sizes(size, query, key), heads, rows, steps, query_origin is not None, mode, QUERIES,
        power_of_two(size[1] // key[1]), num_warps=WARPS,
    )  # fmt: skip
    return out


class _PositionBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores, query_origin, key_origin, size, query, key, rows, mode) -> Tensor:
        ctx.geometry = (size, query, key, rows, scores.shape[3], mode)
        ctx.save_for_backward(query_origin, key_origin)
        bias = position_bias_forward(scores, query_origin, key_origin, size, query, key, rows, mode)
        return bias[..., : _keys(size, key)]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        refuse_second_derivative(grads)
        grad = position_bias_backward(grads[0], *ctx.saved_tensors, *ctx.geometry)
        return grad, None, None, None, None, None, None, None


def gather_bias(asked: Tensor, split: int, grid: TokenGrid, key_grid: TokenGrid, rows: Rows, together: bool) -> Tensor:
    """:func:`position_bias_forward` without the padding of its rows; with a gradient, if distances go around."""
    origin, key_origin = (None, None) if grid is key_grid else (grid.origin, key_grid.origin)
    size, query, key = list(grid.image_size), list(grid.stride), list(key_grid.stride)
    geometry = (size, query, key, split, MODES.index(rows))
    if torch.is_grad_enabled() and asked.requires_grad:
        return _PositionBias.apply(asked, origin, key_origin, *geometry)
    return position_bias_forward(asked, origin, key_origin, *geometry)[..., : _keys(size, key)]
