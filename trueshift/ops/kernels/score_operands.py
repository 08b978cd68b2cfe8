# mypy: allow-untyped-defs, allow-incomplete-defs
"""What the scores of a merge are computed from: tokens with their sums, weights with a norm's gain in them.

A dozen small steps each, in two launches; a compiler fuses them by itself.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import blocks_in, launched, power_of_two


@launched
@triton.jit
def _tokens(x, low, sums, lengths, tokens, channels, T: tl.constexpr, C: tl.constexpr):
    token, c = tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, C)
    here = (token < tokens)[:, None] & (c < channels)[None, :]
    at = token.to(tl.int64)[:, None] * channels + c[None, :]
    rounded = tl.load(x + at, here, 0.0).to(low.dtype.element_ty)
    tl.store(low + at, rounded, here)
    wide = rounded.to(tl.float32)
    tl.store(sums + token, tl.sum(wide, 1), token < tokens)
    tl.store(lengths + token, tl.sqrt(tl.sum(wide * wide, 1)), token < tokens)


def token_sums(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens ``[B, H, W, C]`` in another type, the sum of each and its length."""
    x = x.contiguous()
    low = torch.empty_like(x, dtype=dtype)
    sums, lengths = x.new_empty((2, *x.shape[:3]), dtype=torch.float32).unbind(0)
    tokens, channels = sums.numel(), x.shape[3]
    wide = power_of_two(channels)
    together = max(1, 4096 // wide)
    _tokens[(blocks_in(tokens, together),)](x, low, sums, lengths, tokens, channels, together, wide)
    return low, sums, lengths


@launched
@triton.jit
def _weights(
    weight, bias, gain, shift, matrix, pull, push, outputs, channels, taps,
    of_output, of_row, of_column, of_channel, gain_row, gain_column, gain_channel,
    COLUMNS: tl.constexpr, NORMED: tl.constexpr, BIASED: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    n, k = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
    pulled, pushed = tl.zeros((N,), tl.float32), tl.zeros((N,), tl.float32)
    if BIASED:
        pushed += tl.load(bias + n, n < outputs, 0.0).to(tl.float32)
    for tap in range(taps):
        row, column = tap // COLUMNS, tap % COLUMNS
        for begin in range(0, channels, K):
            c = begin + k
            here = (c < channels)[:, None] & (n < outputs)[None, :]
            at = n[None, :] * of_output + row * of_row + column * of_column + c[:, None] * of_channel
            value = tl.load(weight + at, here, 0.0).to(tl.float32)
            if NORMED:
                place = row * gain_row + column * gain_column + c * gain_channel
                pushed += tl.sum(value * tl.load(shift + place, c < channels, 0.0).to(tl.float32)[:, None], 0)
                value *= tl.load(gain + place, c < channels, 0.0).to(tl.float32)[:, None]
            rounded = value.to(matrix.dtype.element_ty)
            pulled += tl.sum(rounded.to(tl.float32), 0)
            tl.store(matrix + n[None, :] * (taps * channels) + (tap * channels + c)[:, None], rounded, here)
    tl.store(pull + n, pulled, n < outputs)
    tl.store(push + n, pushed, n < outputs)


def projection(
    weight: Tensor, bias: Tensor | None, gain: Tensor | None, shift: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix of a projection behind a norm, what it makes of ones, and what it adds.

    Args:
        weight: ``[outputs, rows, columns, channels]``, any view.
        gain, shift: of the norm, ``[rows, columns, channels]``, any views of the same layout.
    """
    outputs, rows, columns, channels = weight.shape
    matrix = weight.new_empty((outputs, rows * columns * channels), dtype=dtype)
    pull, push = weight.new_empty((2, outputs), dtype=torch.float32).unbind(0)
    of_gain = (0, 0, 0) if gain is None else gain.stride()
    _weights[(blocks_in(outputs, 16),)](
        weight, bias, gain, shift, matrix, pull, push, outputs, channels, rows * columns, *weight.stride(), *of_gain,
        columns, gain is not None, bias is not None, 16, 64,
    )  # fmt: skip
    return matrix, pull, push
