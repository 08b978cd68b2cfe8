"""Kernels: the content keys of the images that need them; programs of all others end at once.

What they leave for other images means nothing. Values and multipliers are those of :mod:`.content_hash`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..selection.content_hash import all_multipliers
from . import INTERPRETED, operation
from .launching import launched, power_of_two

PRIME = tl.constexpr(2**19 - 1)
HASHES = 3
PARTS = 8  # programs per image in each pass
LINES = 256 if INTERPRETED else 32  # rows, and columns, of a tile


def origin_keys(x: Tensor, needed: Tensor) -> Tensor:
    """Keys ``[B, H, W]`` of the images where ``needed``."""
    return keys_where(x, needed, all_multipliers(x, *x.shape[1:]))


@operation("origin_keys", lambda x, *_: x.new_empty(x.shape[:3], dtype=torch.int64))
def keys_where(x: Tensor, needed: Tensor, multipliers: Tensor) -> Tensor:
    """Keys ``[B, H, W]`` of the images where ``needed``.

    Args:
        multipliers: int64; of the channels, ``[C]``, then of the hashes' salts, ``[3]``, then of the rows, ``[3, H]``,
            and of the columns, ``[3, W]``.
    """
    images, rows, columns, channels = x.shape
    residues = x.new_empty((images, HASHES, rows, columns), dtype=torch.int32)
    summed = torch.empty_like(residues)
    keys = x.new_empty(x.shape[:3], dtype=torch.int64)
    size = rows * columns
    x = x.detach()
    block = power_of_two(min(size, 4096 if INTERPRETED else 512))
    _hash[(images, PARTS)](
        x, needed, multipliers, residues, size, columns, x.stride(0), x.stride(1), x.stride(2), x.stride(3),
        channels, PARTS, block, num_warps=4,
    )  # fmt: skip
    row_salts = multipliers[channels + HASHES :]
    _down[(images, PARTS)](residues, needed, row_salts, summed, rows, columns, HASHES, PARTS, LINES, num_warps=4)
    column_salts = row_salts[HASHES * rows :]
    _across[(images, PARTS)](summed, needed, column_salts, keys, rows, columns, PARTS, LINES, num_warps=4)
    return keys


@triton.jit
def _mix(x):
    """As in the plain code: shifts keep the sign, multiplication wraps around."""
    x = (x ^ (x >> 31)) * -4658895280553007687
    x = (x ^ (x >> 27)) * -7723592293110705685
    return x ^ (x >> 33)


@triton.jit
def _modulo(x):
    """The remainder in 0 .. PRIME - 1, of negative numbers too."""
    rest = x % PRIME
    return tl.where(rest < 0, rest + PRIME, rest)


@launched
@triton.jit
def _hash(
    x, needed, multipliers, residues, size, columns, step, step_row, step_column, step_channel,
    CHANNELS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A residue of each position's values, for each which."""
    image = tl.program_id(0).to(tl.int64)
    if tl.load(needed + image) != 0:
        for start in range(tl.program_id(1) * BLOCK, size, PARTS * BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < size
            where = x + image * step + at // columns * step_row + at % columns * step_column
            word = tl.zeros([BLOCK], tl.int64)
            for channel in range(CHANNELS):
                value = tl.load(where + channel * step_channel, inside, other=0).to(tl.float32)
                word += value.to(tl.int32, bitcast=True).to(tl.int64) * tl.load(multipliers + channel)
            word = _mix(word)
            for which in tl.static_range(3):
                residue = _modulo(_mix(word ^ tl.load(multipliers + CHANNELS + which)))
                tl.store(residues + (image * 3 + which) * size + at, residue.to(tl.int32), inside)


@launched
@triton.jit
def _down(
    residues, needed, salts, summed, rows, columns, HASHES: tl.constexpr, PARTS: tl.constexpr, LINES: tl.constexpr
):
    """Each column's residues, weighed by their distance below the row from which they are seen."""
    image = tl.program_id(0).to(tl.int64)
    if tl.load(needed + image) != 0:
        across = (columns + LINES - 1) // LINES
        tiles = (rows + LINES - 1) // LINES * across
        for tile in range(tl.program_id(1), tiles * HASHES, PARTS):
            which = tile // tiles
            row = tile % tiles // across * LINES + tl.arange(0, LINES)
            column = tile % tiles % across * LINES + tl.arange(0, LINES)
            inside = (row < rows)[:, None] & (column < columns)[None, :]
            first = (image * HASHES + which) * rows * columns
            total = tl.zeros([LINES, LINES], tl.int64)
            for other in range(rows):
                factor = tl.load(salts + which * rows + (other - row + 2 * rows) % rows, row < rows, other=0)
                value = tl.load(residues + first + other * columns + column, column < columns, other=0)
                total += factor[:, None] * value.to(tl.int64)[None, :]
            total = total % PRIME
            tl.store(summed + first + row[:, None] * columns + column[None, :], total.to(tl.int32), inside)


@launched
@triton.jit
def _across(summed, needed, salts, keys, rows, columns, PARTS: tl.constexpr, LINES: tl.constexpr):
    """The same along the rows, and the three hashes put together."""
    image = tl.program_id(0).to(tl.int64)
    if tl.load(needed + image) != 0:
        across = (columns + LINES - 1) // LINES
        tiles = (rows + LINES - 1) // LINES * across
        for tile in range(tl.program_id(1), tiles, PARTS):
            row = tile // across * LINES + tl.arange(0, LINES)
            column = tile % across * LINES + tl.arange(0, LINES)
            inside = (row < rows)[:, None] & (column < columns)[None, :]
            key = tl.zeros([LINES, LINES], tl.int64)
            for which in tl.static_range(3):
                first = (image * 3 + which) * rows * columns
                total = tl.zeros([LINES, LINES], tl.int64)
                for other in range(columns):
                    factor = tl.load(
                        salts + which * columns + (other - column + 2 * columns) % columns, column < columns, other=0
                    )
                    value = tl.load(summed + first + row * columns + other, row < rows, other=0)
                    total += factor[None, :] * value.to(tl.int64)[:, None]
                key = (key << 19) | (total % PRIME)
            tl.store(keys + image * rows * columns + row[:, None] * columns + column[None, :], key, inside)
