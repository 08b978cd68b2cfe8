"""Shift images, each by its own offset, and continue them around their border, in one launch."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from .launching import blocks_in, launched, power_of_two


@triton.jit
def _around(at, size):
    at = at % size
    return tl.where(at < 0, at + size, at)


@launched
@triton.jit
def _pad(
    x, start, out, positions, padded_height, padded_width, height, width, channels, top, left,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    position, c = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
    exists = position < positions
    image = position // (padded_height * padded_width)
    place = position % (padded_height * padded_width)
    row = place // padded_width - top + tl.load(start + 2 * image, exists, 0).to(tl.int32)
    column = place % padded_width - left + tl.load(start + 2 * image + 1, exists, 0).to(tl.int32)
    token = (image * height + _around(row, height)) * width + _around(column, width)
    here = exists[:, None] & (c < channels)[None, :]
    value = tl.load(x + token.to(tl.int64)[:, None] * channels + c[None, :], here)
    tl.store(out + position.to(tl.int64)[:, None] * channels + c[None, :], value, here)


def pad_by_index(x: Tensor, rows: Sequence[int], columns: Sequence[int], start: Tensor) -> Tensor:
    """``x [B, H, W, C]`` from ``start`` on, with extra rows and columns before and after."""
    images, height, width, channels = x.shape
    out = x.new_empty((images, height + sum(rows), width + sum(columns), channels))
    positions = images * out.shape[1] * out.shape[2]
    wide = min(power_of_two(channels), 512)
    together = max(1, 4096 // wide)
    _pad[(blocks_in(positions, together), blocks_in(channels, wide))](
        x.contiguous(), start.contiguous(), out, positions, out.shape[1], out.shape[2], height, width, channels,
        rows[0], columns[0], together, wide, num_warps=4,
    )  # fmt: skip
    return out
