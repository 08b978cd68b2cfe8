"""Cut tokens into blocks that begin where each image says, and put them together again: one gather each way.

Attention windows and the patches of a merge are such blocks. The roll to where they begin is part of the gather.
"""

from typing import Any

import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

from ..kernels import kernel_for, transformed, usable
from .shift import Moved, Pair


def cut_blocks(
    x: Shaped[Tensor, "B H W C"], block: Pair, start: Int[Tensor, "B 2"], column_first: bool = False
) -> Shaped[Tensor, "B rows columns L C"]:
    """The blocks from ``start`` on, around the border, each as a sequence of its tokens.

    Shift law: ``cut_blocks(S^t x, start) == cut_blocks(x, start + t)``.

    Args:
        block: height and width; the size of ``x`` is a multiple of both.
        column_first: tokens of a block column by column, otherwise row by row.
    """
    images, height, width, channels = x.shape
    if height % block[0] or width % block[1]:
        raise ValueError(f"{height} x {width} tokens: needs multiples of the block {block[0]} x {block[1]}")
    cut = _moved(x.reshape(-1, channels), start, (height, width), block, column_first, False)
    return cut.view(images, height // block[0], width // block[1], block[0] * block[1], channels)


def join_blocks(
    blocks: Shaped[Tensor, "B rows columns L C"], block: Pair, start: Int[Tensor, "B 2"]
) -> Shaped[Tensor, "B H W C"]:
    """The inverse of :func:`cut_blocks`."""
    images, rows, columns, _, channels = blocks.shape
    size = (rows * block[0], columns * block[1])
    return _moved(blocks.reshape(-1, channels), start, size, block, False, True).view(images, *size, channels)


def _moved(*arguments: Any) -> Tensor:
    """In a trace sizes are tensors, which a function with an own gradient cannot take; see also :class:`.Moved`."""
    return (move_blocks if torch.jit.is_tracing() or transformed() else _Move.apply)(*arguments)


@kernel_for(lambda x, *_: usable(x) and not torch.compiler.is_compiling())  # a compiler fuses the gather
def move_blocks(
    x: Shaped[Tensor, "N C"], start: Int[Tensor, "B 2"], size: Pair, block: Pair, column_first: bool, join: bool
) -> Shaped[Tensor, "N C"]:
    """Move the tokens of all images into blocks, or back."""
    order = _places_in_blocks if join else _places_in_image
    return x.index_select(0, order(size, block, start, column_first).flatten())


def _numbers(start: Tensor, size: Pair) -> Int64[Tensor, "B 1 1"]:
    """The number of each image's first token in the batch."""
    return torch.arange(start.shape[0], device=start.device)[:, None, None] * (size[0] * size[1])


def _places_in_image(size: Pair, block: Pair, start: Tensor, column_first: bool) -> Int64[Tensor, "B *blocks"]:
    """Where each token of each block is in its image."""
    row, column = (
        (start[:, axis, None] + torch.arange(length, device=start.device)) % length for axis, length in enumerate(size)
    )
    grid = _numbers(start, size) + row[:, :, None] * size[1] + column[:, None, :]
    split = grid.unflatten(2, (-1, block[1])).unflatten(1, (-1, block[0]))  # B rows h columns w
    return split.permute(0, 1, 3, 4, 2) if column_first else split.permute(0, 1, 3, 2, 4)


def _places_in_blocks(size: Pair, block: Pair, start: Tensor, column_first: bool) -> Int64[Tensor, "B H W"]:
    """Where each token of an image is in the blocks: the inverse."""
    row, column = (
        (torch.arange(length, device=start.device) - start[:, axis, None]) % length for axis, length in enumerate(size)
    )
    steps = (1, block[0]) if column_first else (block[1], 1)
    down = row // block[0] * (size[1] * block[0]) + row % block[0] * steps[0]
    right = column // block[1] * (block[0] * block[1]) + column % block[1] * steps[1]
    return _numbers(start, size) + down[:, :, None] + right[:, None, :]


class _Move(Moved):
    """The gradient goes the other way; no row is met twice, so it needs no summation."""

    @staticmethod
    def forward(x: Tensor, start: Tensor, size: Pair, block: Pair, column_first: bool, join: bool) -> Tensor:
        return move_blocks(x, start, size, block, column_first, join)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *geometry, join = ctx.geometry
        return _Move.apply(grads[0], *ctx.saved_tensors, *geometry, not join), None, None, None, None, None
