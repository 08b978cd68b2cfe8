"""Energy of the patch that starts at every token, after its norm and projection: one product of matrices, not stored.

What a merge compares are sums of these energies. Only after an anchor, where every shift shows the same tensor: the
products are taken in the precision of the network.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ..geometry.shift import Pair
from ..selection.projection_energy import like_patch
from . import operation, tf32_allowed
from .launching import blocks_in, launched, power_of_two


@torch.no_grad()
def projected_energy(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: nn.LayerNorm | None, before: Pair, dtype: torch.dtype
) -> Tensor:
    """Operands, then the product; a compiler fuses the dozen small steps to the operands by itself."""
    gain = shift = sums = lengths = None
    if norm is not None:
        gain, shift = (like_patch(parameter, weight) for parameter in (norm.weight, norm.bias))
    if torch.compiler.is_compiling():
        low, sums, lengths, matrix, pull, push = _in_steps(x, weight, bias, gain, shift, dtype)
    else:
        low, sums, lengths = (x.to(dtype), None, None) if norm is None else token_sums(x, dtype)
        matrix, pull, push = projection(weight, bias, gain, shift, dtype)
    patch = [weight.shape[1], weight.shape[2]]
    return patch_energies(low, matrix, pull, push, sums, lengths, norm.eps if norm else 0.0, patch, list(before))


def _in_steps(x, weight, bias, gain, shift, dtype):
    """Tokens, their sums and lengths if there is a norm; the projection, what it makes of ones and what it adds."""
    low, sums, lengths = x.to(dtype), None, None
    push = weight.new_zeros(weight.shape[0]) if bias is None else bias
    if gain is not None and shift is not None:
        push = push + (weight * shift).sum((1, 2, 3))
        weight = weight * gain
        sums = low.sum(3, dtype=torch.float32)
        lengths = torch.linalg.vector_norm(low, dim=3, dtype=torch.float32)
    matrix = weight.flatten(1).to(dtype).contiguous()
    # of the rounded weights, so that a mean is taken away exactly
    return low, sums, lengths, matrix, matrix.sum(1, dtype=torch.float32), push


@launched
@triton.jit
def _energies(
    x, weight, pull, push, sums, squares, out, positions, height, width, channels, outputs, patch: tl.constexpr,
    eps: tl.constexpr, up: tl.constexpr, left: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, whole: tl.constexpr, normed: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """``|E x + b|^2`` of a run of patches, over a part of the outputs.

    A norm before the projection is linear but for its mean and deviation: ``E ((x - m) / d) = (E x - m E 1) / d``.
    """
    at = tl.program_id(0) * M + tl.arange(0, M)
    exists = at < positions
    place = at % (height * width)
    first = at - place  # of the image
    row, column = place // width + (height - up), place % width + (width - left)
    n, k = tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, K)
    of_output = weight + n[:, None] * (rows * columns * channels)
    product = tl.zeros((M, N), tl.float32)
    blocks = (channels + K - 1) // K
    for step in range(rows * columns * blocks):  # one loop, so that loads run ahead from one tap to the next
        tap = step // blocks
        channel = (step - tap * blocks) * K + k
        token = first + (row + tap // columns) % height * width + (column + tap % columns) % width
        from_tokens = x + token.to(tl.int64)[:, None] * channels + channel[None, :]
        from_weight = of_output + (tap * channels + channel)[None, :]
        if whole:
            a = tl.load(from_tokens, exists[:, None], 0.0)
            b = tl.load(from_weight, (n < outputs)[:, None], 0.0)
        else:
            a = tl.load(from_tokens, exists[:, None] & (channel < channels)[None, :], 0.0)
            b = tl.load(from_weight, (n < outputs)[:, None] & (channel < channels)[None, :], 0.0)
        # weights of an output lie side by side: the matrix units take TF32 in no other order
        product = tl.dot(a, tl.trans(b), product, input_precision=precision)
    shift = tl.load(push + n, n < outputs, 0.0).to(tl.float32)
    if normed:
        total = tl.zeros((M,), tl.float32)
        square = tl.zeros((M,), tl.float32)
        for tap in range(rows * columns):
            token = first + (row + tap // columns) % height * width + (column + tap % columns) % width
            total += tl.load(sums + token, exists, 0.0)
            length = tl.load(squares + token, exists, 0.0)
            square += length * length
        mean = total / patch
        deviation = tl.sqrt(tl.maximum(square / patch - mean * mean, 0.0) + eps)
        of_mean = tl.load(pull + n, n < outputs, 0.0).to(tl.float32)
        product = (product - mean[:, None] * of_mean[None, :]) / deviation[:, None]
    feature = tl.where((n < outputs)[None, :], product + shift[None, :], 0.0)
    tl.store(out + tl.program_id(1) * positions + at, tl.sum(feature * feature, 1), exists)


def _tile(outputs: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Patches, outputs, channels and warps of one program, as measured to be fastest."""
    if dtype == torch.float32:
        most = 128 if tf32_allowed() else 64
        return most, max(16, min(most, power_of_two(outputs))), 32, 8
    wide = blocks_in(outputs, 256) * 2 == blocks_in(outputs, 128)  # if it computes nothing in vain
    part = max(16, min(256 if wide else 128, power_of_two(outputs)))
    return 128, part, 64, 8 if part == 256 else 4


def _parts(x, weight, *_) -> Tensor:
    parts = blocks_in(weight.shape[0], _tile(weight.shape[0], x.dtype)[1])
    return x.new_empty(parts, *x.shape[:3], dtype=torch.float32)


@operation("patch_energies", _parts)
def patch_energies(
    x: Tensor, weight: Tensor, pull: Tensor, push: Tensor, sums: Tensor | None, squares: Tensor | None,
    eps: float, patch: list[int], before: list[int],
) -> Tensor:  # fmt: skip
    """The energy at every token, in parts to be added up: ``[parts, B, H, W]``.

    Args:
        x: tokens ``[B, H, W, C]``.
        weight: of the projection, ``[outputs, rows * columns * C]``, in the type of ``x``.
        pull: the projection of a patch of ones, for the mean that a norm takes away.
        push: the bias.
        sums, squares: sum and length of each token, if a norm comes before the projection.
        patch: rows and columns.
        before: how far a patch reaches before its start.
    """
    x, weight = x.contiguous(), weight.contiguous()
    images, height, width, channels = x.shape
    outputs, positions = weight.shape[0], images * height * width
    out = _parts(x, weight)
    patches, part, depth, warps = _tile(outputs, x.dtype)
    depth = max(16, min(depth, power_of_two(channels), channels & -channels))
    exact = x.dtype == torch.float32 and not tf32_allowed()
    _energies[(blocks_in(positions, patches), out.shape[0])](
        x, weight, pull, push, sums, squares, out, positions, height, width, channels, outputs,
        float(patch[0] * patch[1] * channels), eps, *before, *patch,
        patches, part, depth, channels % depth == 0, sums is not None,
        "ieee" if exact else "tf32", num_warps=warps, num_stages=3,
    )  # fmt: skip
    return out


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
    """The matrix of a projection after a norm, what it makes of ones, and what it adds.

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
