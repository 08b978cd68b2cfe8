r"""Circular shifts of a batch, each image by its own offset. This file alone knows the sign convention.

.. math:: (S^m x)[n] = x[(n + m) \bmod N]

A positive offset moves the *frame* down and right, and so the content up and left: what was at ``offset`` is
found at 0 afterwards. A token grid whose origin is ``m`` reads :math:`S^m x` from its first pixel on.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..kernels import kernel_for, transformed, usable

Pair = tuple[int, int]

CIRCULAR = ("both", "width")  # along which axes an image goes around
IMAGE_DIMS: Pair = (2, 3)  # B C H W
TOKEN_DIMS: Pair = (1, 2)  # B H W C


def pair(value: int | Sequence[int]) -> Pair:
    """``3 -> (3, 3)``; a pair stays as it is."""
    if isinstance(value, int):
        return value, value
    if not isinstance(value, Sequence) or len(value) != 2 or any(type(part) is str for part in value):
        raise TypeError(f"{value!r}: needs a whole number, or two, for rows and columns")
    return int(value[0]), int(value[1])


def modulo(position: Int[Tensor, "B 2"], size: Pair) -> Int[Tensor, "B 2"]:
    """Rows and columns, around a circle of this many."""
    return torch.stack([position[:, axis] % size[axis] for axis in (0, 1)], 1)


def fixes_rows(circular: str) -> bool:
    """Whether rows are ordinary and only columns go around."""
    if circular not in CIRCULAR:
        raise ValueError(f"circular {circular!r}: needs one of {CIRCULAR}")
    return circular == "width"


def circular_shift(
    x: Shaped[Tensor, "B *rest"], offset: Int[Tensor, "B 2"] | Sequence[int], dims: Pair = TOKEN_DIMS
) -> Shaped[Tensor, "B *rest"]:
    r"""Move the frame of each image by its own offset: ``y[b, n] = x[b, (n + offset[b]) mod N]``.

    Shift law: ``circular_shift(circular_shift(x, a), b) == circular_shift(x, a + b)``, and a shift by 0 or by the
    size is the identity. Differentiable; the gradient is the shift back, exact in every precision.

    Args:
        x: tokens ``[B, H, W, C]``, or images ``[B, C, H, W]`` with ``dims=IMAGE_DIMS``.
        offset: rows and columns for each image, any integers; one pair of numbers serves the whole batch.
        dims: which two dimensions are rows and columns.

    >>> trueshift.circular_shift(torch.arange(4).view(1, 1, 4, 1), (0, 1)).flatten()
    tensor([1, 2, 3, 0])
    """
    if not isinstance(offset, Tensor):
        rows, columns = offset
        return torch.roll(x, (-rows, -columns), dims)
    return circular_take(x, offset, 1, dims)


def circular_take(
    x: Shaped[Tensor, "B *rest"], offset: Int[Tensor, "B 2"], stride: int | Pair, dims: Pair = TOKEN_DIMS
) -> Shaped[Tensor, "B *taken"]:
    r"""Every ``stride``-th position from ``offset`` on: ``y[b, n] = x[b, (offset[b] + stride * n) mod N]``.

    The shift and the choice of a polyphase component in one gather.

    Shift law: ``circular_take(S^t x, m) == circular_take(x, m + t)``.
    """
    stride, dims = pair(stride), (dims[0] % x.dim(), dims[1] % x.dim())
    if offset.shape != (x.shape[0], 2):
        needed = f"[{x.shape[0]}, 2], one (row, column) pair per image"
        raise ValueError(f"offset has shape {tuple(offset.shape)}: needs {needed}")
    for dim, step in zip(dims, stride, strict=True):
        if x.shape[dim] % step:
            raise ValueError(f"size {x.shape[dim]} along dimension {dim}: needs a multiple of the stride {step}")
    return (_gather if transformed() else _CircularTake.apply)(x, offset, stride, dims)


def _gather(x: Tensor, offset: Tensor, stride: Pair, dims: Pair) -> Tensor:
    """By one flat index per image and position: several times faster on a CPU than one index per dimension."""
    (rows, columns), (row_dim, column_dim) = [x.shape[dim] for dim in dims], dims
    height, width = rows // stride[0], columns // stride[1]
    row = (offset[:, :1] + torch.arange(height, device=x.device) * stride[0]) % rows
    column = (offset[:, 1:] + torch.arange(width, device=x.device) * stride[1]) % columns
    if column_dim == x.dim() - 1:  # channels first: the index serves every channel
        index = (row[:, :, None] * columns + column[:, None, :]).flatten(1)
        index = index.view(x.shape[0], *[1] * (x.dim() - 3), -1)
        index = index.expand(*x.shape[:row_dim], index.shape[-1])
        return x.flatten(row_dim).gather(-1, index).view(*x.shape[:row_dim], height, width)
    first = torch.arange(x.shape[0], device=x.device)[:, None, None] * (rows * columns)
    index = (first + row[:, :, None] * columns + column[:, None, :]).flatten()
    flat = x.reshape(-1, *x.shape[column_dim + 1 :])
    return flat.index_select(0, index).view(x.shape[0], height, width, *x.shape[column_dim + 1 :])


class Moved(torch.autograd.Function):
    """Values moved from where a tensor says, with an own gradient; further arguments are numbers.

    Not within transforms of ``torch.func``: the rules that they need are refused by torch's compiler.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep all but the values."""
        _, start, *ctx.geometry = inputs
        ctx.save_for_backward(start)


class _CircularTake(Moved):
    """The gather with its own backward: each position is read at most once, so the gradient needs no summation."""

    @staticmethod
    def forward(x: Tensor, offset: Tensor, stride: Pair, dims: Pair) -> Tensor:
        return _gather(x, offset, stride, dims)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (offset,), (stride, dims) = ctx.saved_tensors, ctx.geometry
        return _CircularTake.apply(spread_out(grads[0], stride, dims), -offset, (1, 1), dims), None, None, None


def spread_out(x: Tensor, stride: int | Pair, dims: Pair = TOKEN_DIMS) -> Tensor:
    """Put ``x[n]`` at ``stride * n`` and zeros between: the inverse of taking every ``stride``-th position."""
    stride = pair(stride)
    if stride == (1, 1):
        return x
    shape = list(x.shape)
    where: list[slice] = [slice(None)] * x.dim()
    for dim, step in zip(dims, stride, strict=True):
        shape[dim] *= step
        where[dim] = slice(None, None, step)
    spread = x.new_zeros(shape)
    spread[tuple(where)] = x
    return spread


def circular_pad(
    x: Shaped[Tensor, "B H W *rest"], rows: Pair, columns: Pair, start: Int[Tensor, "B 2"] | None = None
) -> Shaped[Tensor, "B PH PW *rest"]:
    """Continue the image around its border, by (before, after) rows and columns; more than once around if need be.

    Shift law: a window that starts at position n of the padded image holds what it would hold on the circle.

    Args:
        start: pad ``circular_shift(x, start)`` instead, in one gather.
    """
    once = max(rows) <= x.shape[1] and max(columns) <= x.shape[2]
    if start is not None and not once:
        x, start = circular_shift(x, start), None
    if start is not None or (once and not torch.compiler.is_compiling()):
        if start is None and not any((*rows, *columns)):
            return x
        return pad_by_index(x, rows, columns, start) if transformed() else _CircularPad.apply(x, start, rows, columns)
    for dim, (before, after) in ((2, columns), (1, rows)):
        size = x.shape[dim]
        pieces = [x.narrow(dim, size - before % size, before % size), *[x] * (before // size), x]
        pieces += [*[x] * (after // size), x.narrow(dim, 0, after % size)]
        pieces = [piece for piece in pieces if piece.shape[dim]]
        x = torch.cat(pieces, dim) if len(pieces) > 1 else x
    return x


def pad_image(
    x: Float[Tensor, "B C H W"], rows: Pair, columns: Pair, mode: str, beyond: float = 0.0
) -> Float[Tensor, "B C PH PW"]:
    """Pad by (before, after) rows and columns.

    Args:
        mode: ``"circular"``: around the border; ``"zeros"``: with ``beyond``; ``"circular_width"``: columns around the
            border, rows with ``beyond``.
    """
    around = {"circular": (rows, columns), "circular_width": ((0, 0), columns)}.get(mode)
    if around is not None:
        x, columns = circular_pad(x.permute(0, 2, 3, 1), *around).permute(0, 3, 1, 2), (0, 0)
    return x if mode == "circular" else F.pad(x, (*columns, *rows), value=beyond)


def shifted_views(x: Shaped[Tensor, "B H W *rest"], window: Pair) -> list[list[Tensor]]:
    """``x`` as seen from each row and column of a window: ``views[m][n] == circular_shift(x, (m, n))``.

    By slices: compiled for a CPU, the gradient of ``Tensor.unfold`` writes beside its memory (torch 2.13).
    """
    (height, width), (rows, columns) = x.shape[1:3], window
    padded = circular_pad(x, (0, rows - 1), (0, columns - 1))
    return [[padded[:, m : m + height, n : n + width] for n in range(columns)] for m in range(rows)]


class _CircularPad(Moved):
    """Padding in one copy; autograd would make several, and of each border a tensor as large as the image."""

    @staticmethod
    def forward(x: Tensor, start: Tensor | None, rows: Pair, columns: Pair) -> Tensor:
        wide = x.is_cuda and x.shape[3:].numel() * x.element_size() >= 64
        return _pad_by_parts(x, rows, columns) if start is None and not wide else pad_by_index(x, rows, columns, start)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (start,) = ctx.saved_tensors
        folded = _CircularFold.apply(grads[0], None, *ctx.geometry)
        return folded if start is None else circular_shift(folded, -start), None, None, None


def _pad_by_parts(x: Tensor, rows: Pair, columns: Pair) -> Tensor:
    """The image and its borders, each copied to its place."""
    (top, bottom), (left, right) = rows, columns
    height, width = x.shape[1:3]
    padded = x.new_empty(x.shape[0], top + height + bottom, left + width + right, *x.shape[3:])
    middle = padded[:, top : top + height]
    middle[:, :, left : left + width] = x
    middle[:, :, :left] = x[:, :, width - left :]
    middle[:, :, left + width :] = x[:, :, :right]
    padded[:, :top] = middle[:, height - top :]
    padded[:, top + height :] = middle[:, :bottom]
    return padded


def _from_anywhere(x: Tensor, rows: Pair, columns: Pair, start: Tensor | None) -> bool:
    """A compiler fuses the steps itself."""
    return start is not None and usable(x) and x.dim() == 4 and not torch.compiler.is_compiling()


@kernel_for(_from_anywhere)
def pad_by_index(x: Tensor, rows: Pair, columns: Pair, start: Tensor | None) -> Tensor:
    """All positions by their number, with all channels of each: on a GPU as fast as its memory, if there are many."""
    images, height, width = x.shape[:3]
    row = torch.arange(-rows[0], height + rows[1], device=x.device)[None]
    column = torch.arange(-columns[0], width + columns[1], device=x.device)[None]
    if start is not None:
        row, column = row + start[:, :1], column + start[:, 1:]
    first = torch.arange(images, device=x.device)[:, None, None] * (height * width)
    index = first + (row % height)[:, :, None] * width + (column % width)[:, None, :]
    return x.reshape(-1, *x.shape[3:]).index_select(0, index.flatten()).view(*index.shape, *x.shape[3:])


class _CircularFold(Moved):
    """The transpose of padding: what is in the border is added to where it came from."""

    @staticmethod
    def forward(padded: Tensor, start: None, rows: Pair, columns: Pair) -> Tensor:
        (top, bottom), (left, right) = rows, columns
        height, width = padded.shape[1] - top - bottom, padded.shape[2] - left - right
        wide = padded[:, top : top + height].clone(memory_format=torch.contiguous_format)
        wide[:, height - top :] += padded[:, :top]
        wide[:, :bottom] += padded[:, top + height :]
        folded = wide[:, :, left : left + width]
        folded[:, :, width - left :] += wide[:, :, :left]
        folded[:, :, :right] += wide[:, :, left + width :]
        return folded

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _CircularPad.apply(grads[0], None, *ctx.geometry), None, None, None
