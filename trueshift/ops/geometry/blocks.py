"""Cut tokens into blocks that begin where each image says, and put them together again: one gather each way.

Attention windows and the patches of a merge are such blocks. The roll to where they begin is part of the gather.
"""

from typing import Any

import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

from .. import kernels
from .shift import Pair


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
    rows, columns = _count((height, width), block)
    flat = x.reshape(-1, channels)
    if _by_kernel(x):
        cut = _Move.apply(flat, start, (height, width), block, column_first, False)
    else:
        there, back = _cut(images, (height, width), block, start, column_first)
        cut = _Rearrange.apply(flat, there.flatten(), back.flatten())
    return cut.view(images, rows, columns, block[0] * block[1], channels)


def join_blocks(
    blocks: Shaped[Tensor, "B rows columns L C"], block: Pair, start: Int[Tensor, "B 2"]
) -> Shaped[Tensor, "B H W C"]:
    """The inverse of :func:`cut_blocks`."""
    images, rows, columns, _, channels = blocks.shape
    size = (rows * block[0], columns * block[1])
    flat = blocks.reshape(-1, channels)
    if _by_kernel(blocks):
        return _Move.apply(flat, start, size, block, False, True).view(images, *size, channels)
    there, back = _cut(images, size, block, start, False)
    return _Rearrange.apply(flat, back.flatten(), there.flatten()).view(images, *size, channels)


def _by_kernel(x: Tensor) -> bool:
    """A compiler makes the gather part of what follows it."""
    return kernels.usable(x) and not torch.compiler.is_compiling()


def _count(size: Pair, block: Pair) -> Pair:
    for length, extent in zip(size, block, strict=True):
        if length % extent:
            raise ValueError(f"{size[0]} x {size[1]} tokens: needs multiples of the block {block[0]} x {block[1]}")
    return size[0] // block[0], size[1] // block[1]


def _cut(
    images: int, size: Pair, block: Pair, start: Tensor, column_first: bool
) -> tuple[Int64[Tensor, "B blocks L"], Int64[Tensor, "B H W"]]:
    """Where each token of each block comes from, and where each token goes, both numbered over the whole batch."""
    (height, width), device = size, start.device
    row = (start[:, :1] + torch.arange(height, device=device)) % height
    column = (start[:, 1:] + torch.arange(width, device=device)) % width
    first = torch.arange(images, device=device)[:, None, None] * (height * width)
    grid = first + row[:, :, None] * width + column[:, None, :]
    split = grid.unflatten(2, (-1, block[1])).unflatten(1, (-1, block[0]))  # B rows h columns w
    there = split.permute(0, 1, 3, 4, 2) if column_first else split.permute(0, 1, 3, 2, 4)
    row = (torch.arange(height, device=device) - start[:, :1]) % height
    column = (torch.arange(width, device=device) - start[:, 1:]) % width
    steps = (1, block[0]) if column_first else (block[1], 1)
    down = row // block[0] * (width * block[0]) + row % block[0] * steps[0]
    right = column // block[1] * (block[0] * block[1]) + column % block[1] * steps[1]
    return there.flatten(1, 2).flatten(2), first + down[:, :, None] + right[:, None, :]


class _Move(torch.autograd.Function):
    """By a kernel; the gradient goes the other way."""

    @staticmethod
    def forward(x: Tensor, start: Tensor, size: Pair, block: Pair, column_first: bool, join: bool) -> Tensor:
        from ..kernels.blocks import move_blocks

        return move_blocks(x, start, list(size), list(block), column_first, join)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, start, *ctx.geometry, ctx.join = inputs
        ctx.save_for_backward(start)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (start,) = ctx.saved_tensors
        return _Move.apply(grads[0], start, *ctx.geometry, not ctx.join), None, None, None, None, None


class _Rearrange(torch.autograd.Function):
    """Rows in another order; the gradient is the other order's inverse, and needs no summation."""

    @staticmethod
    def forward(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        return x.index_select(0, there)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        there, back = ctx.saved_tensors
        return _Rearrange.apply(grads[0], back, there), None, None
