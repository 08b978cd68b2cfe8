# mypy: allow-untyped-defs, allow-incomplete-defs
"""What kernels that read neighbouring tokens have in common: tiles of positions and channels, own frames of images."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from ..geometry.shift import Pair
from . import INTERPRETED
from .launching import blocks_in, power_of_two

# positions and channels of one program; the interpreter takes as long for a large one as for a small one
TILE = (16, 16) if INTERPRETED else (8, 8)
CHANNELS = 256 if INTERPRETED else 64
WARPS = 4


@triton.jit
def pick(which, a, b, c, MAPS: tl.constexpr):
    """One of up to three pointers."""
    chosen = a
    if MAPS > 1:  # noqa: SIM102 -- known when compiled
        if which == 1:
            chosen = b
    if MAPS > 2:  # noqa: SIM102
        if which == 2:
            chosen = c
    return chosen


@triton.jit
def within_head(block, C: tl.constexpr, D: tl.constexpr, EXTENT: tl.constexpr):
    """Where a block of channels starts in its head; written so that a compiler sees that it reads aligned."""
    if D < C:
        block = block % (D // EXTENT)
    return block * EXTENT


@triton.jit
def origin_of(offset, image, axis: tl.constexpr, SIZE: tl.constexpr, SHIFTED: tl.constexpr):
    """Where an image's frame starts: 0 .. SIZE - 1."""
    at = 0
    if SHIFTED:
        at = (tl.load(offset + image * 2 + axis) % SIZE).to(tl.int32)
        at = tl.where(at < 0, at + SIZE, at)
    return at


@triton.jit
def tile_of(tile, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr):
    """Rows and columns of a tile of positions, and which of them exist."""
    across: tl.constexpr = (WIDTH + TW - 1) // TW
    place = tl.arange(0, TH * TW)
    row = (tile // across) * TH + place // TW
    column = (tile % across) * TW + place % TW
    return row, column, (row < HEIGHT) & (column < WIDTH)


@triton.jit
def wrapped(at, SIZE: tl.constexpr, FURTHER: tl.constexpr):
    """A row or column around the circle, from up to ``FURTHER`` before the first or behind the last of two rounds.

    By comparisons: of a remainder the compiler knows how small it is, computes with 8 or 16 bits, two at a time, and
    has been seen to lose one of the two.
    """
    for _ in tl.static_range((FURTHER + SIZE - 1) // SIZE):
        at = tl.where(at < 0, at + SIZE, at)
    for _ in tl.static_range(1 + (FURTHER + SIZE - 1) // SIZE):
        at = tl.where(at >= SIZE, at - SIZE, at)
    return at


@triton.jit
def source_of(at, origin, SIZE: tl.constexpr, K: tl.constexpr):
    """Where a row or column of the shifted frame, or of what continues it within a kernel, stands in the image."""
    return wrapped(at + origin, SIZE, K)


@triton.jit
def within_frame(at, mask, SIZE: tl.constexpr, CIRCULAR: tl.constexpr):
    """Which rows or columns are not beyond the border, if there is one."""
    if not CIRCULAR:
        mask = mask & (at >= 0) & (at < SIZE)
    return mask


@triton.jit
def reader_of(
    at, mask, ahead: tl.constexpr, SIZE: tl.constexpr, OUTPUTS: tl.constexpr, STRIDE: tl.constexpr, K: tl.constexpr,
    CIRCULAR: tl.constexpr,
):  # fmt: skip
    """Which output, if any, reads a position of the shifted frame by the tap so far ahead of it."""
    first = at - ahead
    if CIRCULAR:
        first = wrapped(first, SIZE, K)
    else:
        mask = mask & (first >= 0)
    if STRIDE > 1:
        mask = mask & (first % STRIDE == 0)
    number = first // STRIDE
    return number, mask & (number < OUTPUTS)


def three(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """As many arguments as a kernel takes; those beyond the number of maps are not read."""
    return [*tensors, *[None] * (3 - len(tensors))]


def in_one_launch(maps: Sequence[Tensor]) -> bool:
    """Whether maps lie in memory in the same way."""
    return all(x.stride() == maps[0].stride() and x.dtype == maps[0].dtype for x in maps[1:]) and len(maps) <= 3


def extent_of(channels: int, width: int, at_most: int) -> int:
    """Channels of one program: part of a head's where heads share a weight, in powers of two if there are some."""
    if width == channels and channels % 16:
        return min(at_most, power_of_two(channels))
    even = min(width & -width, at_most)
    return even if even >= 16 else width


def out_shape(x: Tensor, stride: Sequence[int]) -> Pair:
    """How many outputs there are along rows and columns."""
    return (x.shape[1] - 1) // stride[0] + 1, (x.shape[2] - 1) // stride[1] + 1


def sizes_of(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> dict[str, int]:
    """The sizes a kernel needs: of maps, of weights ``[D, 1, kh, kw]`` and of where they meet."""
    height, width = out_shape(x, stride)
    return {
        "H": x.shape[1], "W": x.shape[2], "C": x.shape[3], "OH": height, "OW": width,
        "SH": stride[0], "SW": stride[1], "PH": padding[0], "PW": padding[1],
        "KH": weight.shape[2], "KW": weight.shape[3], "D": weight.shape[0],
    }  # fmt: skip


def tiles_in(height: int, width: int, tile: Pair) -> int:
    """How many tiles cover a map."""
    return blocks_in(height, tile[0]) * blocks_in(width, tile[1])
