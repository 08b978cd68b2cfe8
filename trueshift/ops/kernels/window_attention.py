"""Attention within windows in one kernel: tokens are read in place, so nothing is rolled or cut.

One program serves one head, a run of windows and a part of their queries. It keeps the position bias; the weights
between tokens never leave the chip. The gradient computes them again.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..geometry.shift import Pair
from ..nn.window_attention import Project
from . import operation, refuse_second_derivative, tf32_allowed
from .launching import blocks_in, launched, power_of_two


@triton.jit
def _places(
    number, inside, start, height, width, windows, per_row, rows: tl.constexpr, columns: tl.constexpr,
    down: tl.constexpr, right: tl.constexpr, started: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """The tokens of a window: their numbers over the whole batch, and the side of the image's border they are on.

    Where windows do not divide the grid, those beyond it are on a side of their own.
    """
    image = number // windows
    window = number % windows
    row = window // per_row * rows + inside // columns
    column = window % per_row * columns + inside % columns
    first_row, first_column = down, right
    if started:
        first_row += tl.load(start + 2 * image).to(tl.int32)
        first_column += tl.load(start + 2 * image + 1).to(tl.int32)
    row += first_row
    column += first_column
    tall, wide = height, width
    if padded:
        tall, wide = windows // per_row * rows, per_row * columns
    side = (row >= tall).to(tl.int32) * 2 + (column >= wide).to(tl.int32)
    row, column = row % tall, column % wide
    if padded:
        side = tl.where((row < height) & (column < width), side, 4)
    return (image * height * width + row * width + column).to(tl.int64), side


@triton.jit
def _unit(x, sharpness):
    """Vectors of length ``sharpness`` in the directions of ``x``, and by what they were multiplied."""
    wide = x.to(tl.float32)
    factor = sharpness / tl.maximum(tl.sqrt(tl.sum(wide * wide, 1)), 1e-12)
    return (wide * factor[:, None]).to(x.dtype), factor


@launched
@triton.jit
def _forward(
    qkv, bias, sharpness, start, out, scale: tl.constexpr, height, width, windows, per_row, count, channels,
    rows: tl.constexpr, columns: tl.constexpr, down: tl.constexpr, right: tl.constexpr,
    length: tl.constexpr, dim: tl.constexpr, L: tl.constexpr, Q: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr,
    cosine: tl.constexpr, border: tl.constexpr, started: tl.constexpr, padded: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    query, key, d = tl.program_id(2) * Q + tl.arange(0, Q), tl.arange(0, L), tl.arange(0, D)
    asked, there, inner = query < length, key < length, d < dim
    position = tl.load(
        bias + (head * length + query[:, None]) * length + key[None, :], asked[:, None] & there[None, :], 0.0
    ).to(tl.float32)
    position = tl.where(there[None, :], position, float("-inf"))
    sharp = 1.0
    if cosine:
        sharp = tl.load(sharpness + head).to(tl.float32)
    column = head * dim + d
    for step in range(RUN):
        number = tl.program_id(0) * RUN + step
        exists = number < count
        number = tl.minimum(number, count - 1)
        from_token, side = _places(
            number, query, start, height, width, windows, per_row, rows, columns, down, right, started, padded
        )
        to_token, other = _places(
            number, key, start, height, width, windows, per_row, rows, columns, down, right, started, padded
        )
        known = (there & exists & (other < 4))[:, None] & inner[None, :]
        wanted = (asked & exists & (side < 4))[:, None] & inner[None, :]
        q = tl.load(qkv + from_token[:, None] * (3 * channels) + column[None, :], wanted, 0.0)
        k = tl.load(qkv + to_token[:, None] * (3 * channels) + channels + column[None, :], known, 0.0)
        v = tl.load(qkv + to_token[:, None] * (3 * channels) + 2 * channels + column[None, :], known, 0.0)
        if cosine:
            q, _ = _unit(q, sharp)
            k, _ = _unit(k, 1.0)
        score = tl.dot(q, tl.trans(k), input_precision=precision) * scale + position
        if border:
            score = tl.where(side[:, None] == other[None, :], score, score - 100.0)
        weight = tl.exp(score - tl.max(score, 1)[:, None])
        total = tl.sum(weight, 1)
        mixed = tl.dot(weight.to(v.dtype), v, input_precision=precision) / total[:, None]
        tl.store(out + from_token[:, None] * channels + column[None, :], mixed.to(out.dtype.element_ty), wanted)


@launched
@triton.jit
def _backward(
    qkv, bias, sharpness, start, grad_out, grad, grad_bias, grad_sharpness, scale: tl.constexpr, height, width, windows,
    per_row, count, channels,
    rows: tl.constexpr, columns: tl.constexpr, down: tl.constexpr, right: tl.constexpr,
    length: tl.constexpr, dim: tl.constexpr, L: tl.constexpr, D: tl.constexpr, RUN: tl.constexpr,
    cosine: tl.constexpr, border: tl.constexpr, started: tl.constexpr, padded: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    key, d = tl.arange(0, L), tl.arange(0, D)
    there, inner = key < length, d < dim
    between = there[:, None] & there[None, :]
    position = tl.load(bias + (head * length + key[:, None]) * length + key[None, :], between, 0.0).to(tl.float32)
    position = tl.where(there[None, :], position, float("-inf"))
    bias_sum = tl.zeros((L, L), tl.float32)
    sharp = 1.0
    sharp_sum = tl.zeros((L,), tl.float32)
    if cosine:
        sharp = tl.load(sharpness + head).to(tl.float32)
    column = head * dim + d
    for step in range(RUN):
        number = tl.program_id(0) * RUN + step
        exists = number < count
        number = tl.minimum(number, count - 1)
        token, side = _places(
            number, key, start, height, width, windows, per_row, rows, columns, down, right, started, padded
        )
        known = (there & exists & (side < 4))[:, None] & inner[None, :]
        at = qkv + token[:, None] * (3 * channels) + column[None, :]
        q = tl.load(at, known, 0.0)
        k = tl.load(at + channels, known, 0.0)
        v = tl.load(at + 2 * channels, known, 0.0)
        g = tl.load(grad_out + token[:, None] * channels + column[None, :], known, 0.0)
        q_factor = tl.zeros((L,), tl.float32)
        k_factor = tl.zeros((L,), tl.float32)
        if cosine:
            q, q_factor = _unit(q, sharp)
            k, k_factor = _unit(k, 1.0)
        similar = tl.dot(q, tl.trans(k), input_precision=precision) * scale
        score = similar + position
        if border:
            score = tl.where(side[:, None] == side[None, :], score, score - 100.0)
        weight = tl.exp(score - tl.max(score, 1)[:, None])
        weight = weight / tl.sum(weight, 1)[:, None]
        grad_weight = tl.dot(g, tl.trans(v), input_precision=precision)
        inner_sum = tl.sum(weight * grad_weight, 1)
        grad_score = weight * (grad_weight - inner_sum[:, None])
        grad_score = tl.where(between & exists, grad_score, 0.0)
        bias_sum += grad_score
        low = grad_score.to(q.dtype)
        grad_v = tl.dot(tl.trans(weight.to(v.dtype)), g, input_precision=precision)
        grad_q = tl.dot(low, k, input_precision=precision) * scale
        grad_k = tl.dot(tl.trans(low), q, input_precision=precision) * scale
        if cosine:
            sharp_sum += tl.sum(grad_score * similar, 1)
            # only what is orthogonal to a vector changes its direction
            wide_q, wide_k = q.to(tl.float32) / sharp, k.to(tl.float32)
            grad_q = (grad_q - wide_q * tl.sum(wide_q * grad_q, 1)[:, None]) * q_factor[:, None]
            grad_k = (grad_k - wide_k * tl.sum(wide_k * grad_k, 1)[:, None]) * k_factor[:, None]
        to = grad + token[:, None] * (3 * channels) + column[None, :]
        tl.store(to, grad_q.to(grad.dtype.element_ty), known)
        tl.store(to + channels, grad_k.to(grad.dtype.element_ty), known)
        tl.store(to + 2 * channels, grad_v.to(grad.dtype.element_ty), known)
    first = (tl.program_id(0) * tl.num_programs(1) + head) * length
    tl.store(grad_bias + (first + key[:, None]) * length + key[None, :], bias_sum, between)
    if cosine:
        tl.store(grad_sharpness + tl.program_id(0) * tl.num_programs(1) + head, tl.sum(sharp_sum, 0) / sharp)


class _Layout:
    """Numbers that both directions need."""

    def __init__(
        self, qkv: Tensor, bias: Tensor, sharpness: Tensor | None, start: Tensor | None, window: list[int],
        shift: list[int], border: bool, programs: int,
    ) -> None:  # fmt: skip
        images, height, width, triple = qkv.shape
        self.heads, self.length, channels = bias.shape[0], bias.shape[1], triple // 3
        dim, per_row = channels // self.heads, blocks_in(width, window[1])
        windows = blocks_in(height, window[0]) * per_row
        count = images * windows
        # as many windows in one program as leave enough programs to fill the device
        self.run = 1
        while self.run < 16 and count * self.heads // (2 * self.run) >= programs:
            self.run *= 2
        self.runs = blocks_in(count, self.run)
        cosine = sharpness is not None
        self.numbers = (1.0 if cosine else dim**-0.5, height, width, windows, per_row, count, channels)
        self.sizes = (self.length, dim, max(16, power_of_two(self.length)))
        self.D = max(16, power_of_two(dim))
        padded = windows * window[0] * window[1] != height * width
        masked = padded or (border and (any(shift) or start is not None))
        precision = "ieee" if qkv.dtype == torch.float32 and not tf32_allowed() else "tf32"
        self.cases = (cosine, masked, start is not None, padded, precision)


def _mixed(qkv: Tensor, *_: object) -> Tensor:
    return qkv.new_empty(*qkv.shape[:3], qkv.shape[3] // 3)


@operation("window_attention", _mixed)
def attend(
    qkv: Tensor, bias: Tensor, sharpness: Tensor | None, start: Tensor | None, window: list[int], shift: list[int],
    border: bool,
) -> Tensor:  # fmt: skip
    """Values mixed within windows; ``qkv [B, H, W, 3 C]`` are queries, keys and values side by side."""
    qkv, bias = qkv.contiguous(), bias.contiguous()
    layout = _Layout(qkv, bias, sharpness, start, window, shift, border, programs=4096)
    out = _mixed(qkv)
    part = min(layout.sizes[2], 64)
    _forward[(layout.runs, layout.heads, blocks_in(layout.length, part))](
        qkv, bias, sharpness, start, out, *layout.numbers, *window, *shift, *layout.sizes, part, layout.D, layout.run,
        *layout.cases, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def _gradients(_grad_out: Tensor, qkv: Tensor, bias: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    of_bias, of_sharpness = (bias.new_empty(shape, dtype=torch.float32) for shape in (bias.shape, bias.shape[:1]))
    return torch.empty_like(qkv, memory_format=torch.contiguous_format), of_bias, of_sharpness


@operation("window_attention_backward", _gradients)
def attend_backward(
    grad_out: Tensor, qkv: Tensor, bias: Tensor, sharpness: Tensor | None, start: Tensor | None, window: list[int],
    shift: list[int], border: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of queries, keys and values, of the bias and of the sharpness."""
    qkv, bias, grad_out = qkv.contiguous(), bias.contiguous(), grad_out.to(qkv.dtype).contiguous()
    layout = _Layout(qkv, bias, sharpness, start, window, shift, border, programs=1024)
    grad = torch.empty_like(qkv)
    # a sum for each program, added up in a fixed order: the same bits every time
    grad_bias = bias.new_empty(layout.runs, *bias.shape, dtype=torch.float32)
    grad_sharpness = None if sharpness is None else grad_bias.new_empty(layout.runs, layout.heads)
    _backward[(layout.runs, layout.heads)](
        qkv, bias, sharpness, start, grad_out, grad, grad_bias, grad_sharpness, *layout.numbers,
        *window, *shift, *layout.sizes, layout.D, layout.run,
        *layout.cases, num_warps=4, num_stages=1,
    )  # fmt: skip
    of_sharpness = grad_bias.new_empty(layout.heads) if grad_sharpness is None else grad_sharpness.sum(0)
    return grad, grad_bias.sum(0), of_sharpness


class _Attention(torch.autograd.Function):
    """Differentiable once."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor, sharpness: Any, start: Any, *layout: Any) -> Tensor:
        tensors = (qkv, bias.contiguous(), sharpness, start)
        ctx.layout = layout
        ctx.save_for_backward(*tensors)
        return attend(*tensors, *layout)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        refuse_second_derivative(grads)
        _, bias, sharpness, _ = ctx.saved_tensors
        grad, of_bias, of_sharpness = attend_backward(grads[0], *ctx.saved_tensors, *ctx.layout)
        to_sharpness = None if sharpness is None else of_sharpness.view_as(sharpness).to(sharpness.dtype)
        return grad, of_bias.to(bias.dtype), to_sharpness, None, None, None, None


def window_attention(
    x: Tensor, project: Project, bias: Tensor, sharpness: Tensor | None, start: Tensor | None, window: Pair,
    shift: Pair, border: bool, dropped: float,
) -> Tensor:  # fmt: skip
    """Queries, keys and values ``[B, H, W, 3 C]`` to mixed values ``[B, H, W, C]``, every token in its place."""
    call = _Attention.apply if torch.is_grad_enabled() else attend
    return call(project(x), bias, sharpness, start, list(window), list(shift), border)
