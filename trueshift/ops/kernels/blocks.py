"""Cut tokens into blocks and join them again in one launch, places computed on the way."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import operation
from .launching import blocks_in, launched, power_of_two


@launched
@triton.jit
def _move(
    x, start, out, rows, channels, height, width,
    DOWN: tl.constexpr, RIGHT: tl.constexpr, COLUMN_FIRST: tl.constexpr, JOIN: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Rows are numbered in the order of blocks; ``JOIN`` puts them back to their places in the image."""
    row, c = tl.program_id(0) * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
    exists = row < rows
    image = row // (height * width)
    place = row % (height * width)
    block, inside = place // (DOWN * RIGHT), place % (DOWN * RIGHT)
    per_row = width // RIGHT
    down = inside % DOWN if COLUMN_FIRST else inside // RIGHT
    right = inside // DOWN if COLUMN_FIRST else inside % RIGHT
    y = block // per_row * DOWN + down + tl.load(start + 2 * image, exists, 0).to(tl.int32)
    z = block % per_row * RIGHT + right + tl.load(start + 2 * image + 1, exists, 0).to(tl.int32)
    token = (image * height * width + y % height * width + z % width).to(tl.int64)
    source, target = (row.to(tl.int64), token) if JOIN else (token, row.to(tl.int64))
    here = exists[:, None] & (c < channels)[None, :]
    value = tl.load(x + source[:, None] * channels + c[None, :], here)
    tl.store(out + target[:, None] * channels + c[None, :], value, here)


@operation("move_blocks", lambda x, start, size, block, column_first, join: torch.empty_like(x))
def move_blocks(x: Tensor, start: Tensor, size: list[int], block: list[int], column_first: bool, join: bool) -> Tensor:
    """Move rows ``[N, C]`` of all images into blocks that begin at ``start``, or back."""
    x, out = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    rows, channels = x.shape
    wide = min(power_of_two(channels), 512)
    together = max(1, 4096 // wide)
    _move[(blocks_in(rows, together), blocks_in(channels, wide))](
        x, start.contiguous(), out, rows, channels, *size, *block, column_first, join, together, wide, num_warps=4
    )
    return out
