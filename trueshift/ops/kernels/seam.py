"""Kernels: how much each row and column looks like the first of a photograph, and which token is nearest."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..selection.choose import Keys
from ..selection.quantised_image import Pixels
from . import operation
from .launching import blocks_in, launched, power_of_two

BLOCK = 64


def seam_scores(x: Tensor, pixels: Pixels | None = None) -> tuple[Tensor, ...]:
    """Of rows and columns, from differences that were added up with the image's integers."""
    planes = (pixels or Pixels(x)).planes()
    return tuple(contrasts(planes.rows, planes.columns))


def start_on_seam(rows: Tensor, columns: Tensor, offset: Tensor, stride: Sequence[int], keys: Keys) -> Tensor:
    """The token nearest the seam; keys are made only of images whose seams tie."""
    token, tied = seam_start(rows, columns, offset, list(stride))
    return settle_seam(token, tied, rows, columns, keys(tied), offset, list(stride))


def _scores(*both: Tensor) -> list[Tensor]:
    return [parts.new_empty((parts.shape[0], parts.shape[2]), dtype=torch.float64) for parts in both]


@operation("contrasts", _scores)
def contrasts(row_parts: Tensor, column_parts: Tensor) -> list[Tensor]:
    """Seam scores of rows and columns, from the parts ``[B, parts, N]`` of the sums of differences."""
    rows, columns = _scores(row_parts, column_parts)
    height, width = rows.shape[1], columns.shape[1]
    row_blocks = blocks_in(height, BLOCK)
    _contrast[(len(rows), row_blocks + blocks_in(width, BLOCK))](
        row_parts, column_parts, rows, columns, height, width, row_parts.shape[1], column_parts.shape[1], row_blocks,
        32, BLOCK, num_warps=4,
    )  # fmt: skip
    return [rows, columns]


@launched
@triton.jit
def _contrast(
    row_parts, column_parts, rows, columns, height, width, row_count, column_count, row_blocks,
    TOGETHER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Twice a line's difference from the one before, less those of its neighbours."""
    image, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if block < row_blocks:
        _contrast_of(row_parts, rows, image, block, height, row_count, TOGETHER, BLOCK)
    else:
        _contrast_of(column_parts, columns, image, block - row_blocks, width, column_count, TOGETHER, BLOCK)


@triton.jit
def _contrast_of(parts, scores, image, block, size, count, TOGETHER: tl.constexpr, BLOCK: tl.constexpr):
    line = block * BLOCK + tl.arange(0, BLOCK)
    inside = line < size
    before, after = (line + size - 1) % size, (line + 1) % size
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(0, count, TOGETHER):
        part = start + tl.arange(0, TOGETHER)[:, None]
        there = (part < count) & inside[None, :]
        first = parts + (image * count + part) * size
        here = tl.load(first + line[None, :], there, other=0).to(tl.int64)
        beside = tl.load(first + before[None, :], there, other=0).to(tl.int64)
        beside += tl.load(first + after[None, :], there, other=0).to(tl.int64)
        total += tl.sum(2 * here - beside, 0)
    tl.store(scores + image * size + line, total.to(tl.float64), inside)


def _started(rows, columns, offset, stride) -> list[Tensor]:
    return [torch.empty_like(offset), torch.empty_like(offset[:, 0], dtype=torch.bool)]


@operation("seam_start", _started)
def seam_start(rows: Tensor, columns: Tensor, offset: Tensor, stride: list[int]) -> list[Tensor]:
    """The first of the tokens nearest the seam, ``[B, 2]``, and whether there are several, from the lines' scores."""
    token, tied = _started(rows, columns, offset, stride)
    height, width = rows.shape[1], columns.shape[1]
    _start[(len(rows),)](
        rows, columns, offset, token, tied, height, width, offset.stride(0), offset.stride(1), *stride,
        power_of_two(height // stride[0]), power_of_two(width // stride[1]), num_warps=4,
    )  # fmt: skip
    return [token, tied]


@triton.jit
def _near(scores, start, size, STRIDE: tl.constexpr, TOKENS: tl.constexpr):
    """For each token, the largest score of its first line and those before; minus infinity after the last."""
    token = tl.arange(0, TOKENS)
    inside = token < size // STRIDE
    best = tl.full([TOKENS], float("-inf"), tl.float64)
    for before in tl.static_range(STRIDE):
        line = (start + token * STRIDE - before + size) % size
        best = tl.maximum(best, tl.load(scores + line, inside, other=float("-inf")))
    return best


@launched
@triton.jit
def _start(
    rows, columns, offset, token, tied, height, width, step, step_axis,
    SH: tl.constexpr, SW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The scores of rows and columns are added, so each axis has its own best."""
    image = tl.program_id(0).to(tl.int64)
    row = _near(rows + image * height, tl.load(offset + image * step) % height, height, SH, ROWS)
    column = _near(columns + image * width, tl.load(offset + image * step + step_axis) % width, width, SW, COLUMNS)
    leading_rows = row == tl.max(row, 0)
    leading_columns = column == tl.max(column, 0)
    first_row = tl.min(tl.where(leading_rows, tl.arange(0, ROWS), ROWS), 0)
    first_column = tl.min(tl.where(leading_columns, tl.arange(0, COLUMNS), COLUMNS), 0)
    count = tl.sum(leading_rows.to(tl.int32), 0) * tl.sum(leading_columns.to(tl.int32), 0)
    tl.store(token + image * 2, tl.minimum(first_row, height // SH - 1).to(tl.int64))
    tl.store(token + image * 2 + 1, tl.minimum(first_column, width // SW - 1).to(tl.int64))
    tl.store(tied + image, count > 1)


@operation("settle_seam", lambda token, tied, rows, columns, keys, offset, stride: torch.empty_like(offset))
def settle_seam(
    token: Tensor, tied: Tensor, rows: Tensor, columns: Tensor, keys: Tensor, offset: Tensor, stride: list[int]
) -> Tensor:
    """Where the chosen token starts, ``[B, 2]``: of images whose seams tie, the leading token of the largest key."""
    start = torch.empty_like(offset)
    height, width = rows.shape[1], columns.shape[1]
    _settle[(len(rows),)](
        token, tied, rows, columns, keys, offset, start, height, width, offset.stride(0), offset.stride(1), *stride,
        power_of_two(height // stride[0]), power_of_two(width // stride[1]), num_warps=4,
    )  # fmt: skip
    return start


@launched
@triton.jit
def _settle(
    token, tied, rows, columns, keys, offset, start, height, width, step, step_axis,
    SH: tl.constexpr, SW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    first_row, first_column = tl.load(offset + image * step), tl.load(offset + image * step + step_axis)
    best_row, best_column = tl.load(token + image * 2), tl.load(token + image * 2 + 1)
    if tl.load(tied + image):
        row = _near(rows + image * height, first_row % height, height, SH, ROWS)
        column = _near(columns + image * width, first_column % width, width, SW, COLUMNS)
        leading_rows = (row == tl.max(row, 0)).to(tl.int32)
        leading = column == tl.max(column, 0)
        along = tl.arange(0, COLUMNS)
        key_column = (first_column % width + along * SW) % width
        largest = tl.full([], -1, tl.int64)
        for at in range(height // SH):
            if tl.sum(tl.where(tl.arange(0, ROWS) == at, leading_rows, 0), 0) > 0:
                key_row = (first_row % height + at * SH) % height
                found = tl.load(keys + (image * height + key_row) * width + key_column, leading, other=-1)
                top = tl.max(found, 0)
                if top > largest:
                    largest = top
                    best_row = at + best_row * 0
                    best_column = tl.min(tl.where(found == top, along, COLUMNS), 0).to(tl.int64)
    tl.store(start + image * 2, first_row + SH * best_row)
    tl.store(start + image * 2 + 1, first_column + SW * best_column)
