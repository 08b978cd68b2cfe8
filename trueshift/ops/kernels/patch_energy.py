# mypy: allow-untyped-defs, allow-incomplete-defs
"""Energy of the patch that starts at every token, after its norm and projection: one product of matrices, not stored.

What a merge compares are sums of these energies. Only behind an anchor, where every shift shows the same tensor: the
products are taken in the precision of the network.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import operation, tf32_allowed
from .launching import blocks_in, launched, power_of_two


@launched
@triton.jit
def _energies(
    x, weight, pull, push, sums, squares, out, positions, height, width, channels, outputs, patch, eps,
    up: tl.constexpr, left: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
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


class _Tile(NamedTuple):
    """What one program computes, as measured to be fastest."""

    patches: int
    outputs: int
    channels: int
    warps: int


def _tile(outputs: int, dtype: torch.dtype) -> _Tile:
    if dtype == torch.float32:
        exact = not tf32_allowed()
        return _Tile(64 if exact else 128, max(16, min(64 if exact else 128, power_of_two(outputs))), 32, 8)
    wide = blocks_in(outputs, 256) * 2 == blocks_in(outputs, 128)  # if it computes nothing in vain
    part = max(16, min(256 if wide else 128, power_of_two(outputs)))
    return _Tile(128, part, 64, 8 if part == 256 else 4)


def _fake(x: Tensor, weight: Tensor, pull: Tensor, push: Tensor, sums: Tensor | None, squares: Tensor | None,
          eps: float, patch: list[int], before: list[int]) -> Tensor:  # fmt: skip
    parts = blocks_in(weight.shape[0], _tile(weight.shape[0], x.dtype).outputs)
    return x.new_empty(parts, *x.shape[:3], dtype=torch.float32)


@operation("patch_energies", _fake)
def patch_energies(
    x: Tensor,
    weight: Tensor,
    pull: Tensor,
    push: Tensor,
    sums: Tensor | None,
    squares: Tensor | None,
    eps: float,
    patch: list[int],
    before: list[int],
) -> Tensor:
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
    out = _fake(x, weight, pull, push, sums, squares, eps, patch, before)
    exact = x.dtype == torch.float32 and not tf32_allowed()
    tile = _tile(outputs, x.dtype)
    depth = max(16, min(tile.channels, power_of_two(channels), channels & -channels))
    _energies[(blocks_in(positions, tile.patches), out.shape[0])](
        x, weight, pull, push, sums, squares, out, positions, height, width, channels, outputs,
        float(patch[0] * patch[1] * channels), eps, *before, *patch,
        tile.patches, tile.outputs, depth, channels % depth == 0, sums is not None,
        "ieee" if exact else "tf32", num_warps=tile.warps, num_stages=3,
    )  # fmt: skip
    return out
