# mypy: allow-untyped-defs, allow-incomplete-defs
"""Energy of the patch that starts at every token, after its norm and projection: one product of matrices, not stored.

What a merge compares are sums of these energies. Only behind an anchor, where every shift shows the same tensor: the
products are taken in the precision of the network.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import operation
from .launching import blocks_in, launched, power_of_two


@launched
@triton.jit
def _energies(
    x, weight, pull, push, sums, squares, out, positions, height, width, channels, outputs, patch, eps,
    up: tl.constexpr, left: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, normed: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """``|E x + b|^2`` of a run of patches, over a part of the outputs.

    A norm before the projection is linear but for its mean and deviation: ``E ((x - m) / d) = (E x - m E 1) / d``.
    """
    at = tl.program_id(0) * M + tl.arange(0, M)
    exists = at < positions
    place = at % (height * width)
    first = at - place  # of the image
    row, column = place // width, place % width
    n, k = tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, K)
    product = tl.zeros((M, N), tl.float32)
    total = tl.zeros((M,), tl.float32)
    square = tl.zeros((M,), tl.float32)
    for tap in range(rows * columns):
        y, z = row + tap // columns - up + height, column + tap % columns - left + width
        token = (first + y % height * width + z % width).to(tl.int64)
        if normed:
            total += tl.load(sums + token, exists, 0.0)
            length = tl.load(squares + token, exists, 0.0)
            square += length * length
        for begin in range(0, channels, K):
            channel = begin + k
            a = tl.load(x + token[:, None] * channels + channel[None, :],
                        exists[:, None] & (channel < channels)[None, :], 0.0)  # fmt: skip
            b = tl.load(weight + (tap * channels + channel)[:, None] * outputs + n[None, :],
                        (channel < channels)[:, None] & (n < outputs)[None, :], 0.0)  # fmt: skip
            product = tl.dot(a, b, product, input_precision=precision)
    shift = tl.load(push + n, n < outputs, 0.0).to(tl.float32)
    if normed:
        mean = total / patch
        deviation = tl.sqrt(tl.maximum(square / patch - mean * mean, 0.0) + eps)
        of_mean = tl.load(pull + n, n < outputs, 0.0).to(tl.float32)
        product = (product - mean[:, None] * of_mean[None, :]) / deviation[:, None]
    feature = tl.where((n < outputs)[None, :], product + shift[None, :], 0.0)
    tl.store(out + tl.program_id(1) * positions + at, tl.sum(feature * feature, 1), exists)


def _part(outputs: int, dtype: torch.dtype) -> int:
    """How many outputs one program computes."""
    most = 64 if dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32 else 128
    return max(16, min(most, power_of_two(outputs)))


def _fake(x: Tensor, weight: Tensor, pull: Tensor, push: Tensor, sums: Tensor | None, squares: Tensor | None,
          eps: float, patch: list[int], before: list[int]) -> Tensor:  # fmt: skip
    parts = -(-weight.shape[1] // _part(weight.shape[1], x.dtype))
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
        weight: of the projection, ``[rows * columns * C, outputs]``, in the type of ``x``.
        pull: the projection of a patch of ones, for the mean that a norm takes away.
        push: the bias.
        sums, squares: sum and length of each token, if a norm comes before the projection.
        patch: rows and columns.
        before: how far a patch reaches before its start.
    """
    x, weight = x.contiguous(), weight.contiguous()
    images, height, width, channels = x.shape
    outputs, positions = weight.shape[1], images * height * width
    out = _fake(x, weight, pull, push, sums, squares, eps, patch, before)
    exact = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    rows, part = 64 if exact else 128, _part(outputs, x.dtype)
    _energies[(blocks_in(positions, rows), out.shape[0])](
        x, weight, pull, push, sums, squares, out, positions, height, width, channels, outputs,
        float(patch[0] * patch[1] * channels), eps, *before, *patch,
        rows, part, max(16, min(32, power_of_two(channels))), sums is not None,
        "ieee" if exact else "tf32", num_warps=8 if x.dtype == torch.float32 else 4, num_stages=3,
    )  # fmt: skip
    return out
