"""The largest of neighbouring tokens at a stride, with an own shift for each image."""

from typing import Any

import torch
from torch import Tensor

from ..geometry.shift import Pair
from ..nn.depthwise import pooled_shape
from . import INTERPRETED, operation, refuse_second_derivative
from .neighbours import launch_back_to_input, launch_forward

TILE = (16, 16) if INTERPRETED else (4, 8)


def _pooled(x: Tensor, stride: list[int], remembered: bool) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0], *pooled_shape(x.shape, stride), x.shape[3])
    return x.new_empty(shape), x.new_empty(shape if remembered else (0,), dtype=torch.uint8)


@operation("max_pool", lambda x, offset, kernel, stride, before, circular, remembered: _pooled(x, stride, remembered))
def max_pool_forward(
    x: Tensor, offset: Tensor, kernel: list[int], stride: list[int], before: list[int], circular: bool, remembered: bool
) -> tuple[Tensor, Tensor]:
    """The largest values and, if they are to be remembered, which of the neighbours had them."""
    y, winner = _pooled(x, stride, remembered)
    which = winner if remembered else None
    launch_forward([x], [], [], [y], None, offset, stride, before, kernel, circular, winner=which, tile=TILE)
    return y, winner


@operation("max_pool_backward", lambda grad, winner, offset, shape, *_: grad.new_empty(shape))
def max_pool_backward(
    grad: Tensor, winner: Tensor, offset: Tensor, shape: list[int], kernel: list[int], stride: list[int],
    before: list[int], circular: bool,
) -> Tensor:  # fmt: skip
    """To each input the gradients of those outputs that it won."""
    out = grad.new_empty(shape)
    launch_back_to_input([grad], [], [out], offset, stride, before, kernel, circular, winner, TILE)
    return out


class _MaxPool(torch.autograd.Function):
    """The pooling, differentiable once."""

    @staticmethod
    def forward(ctx: Any, x, offset, kernel, stride, before, circular) -> tuple[Tensor, Tensor]:
        largest, winner = max_pool_forward(x, offset, kernel, stride, before, circular, True)
        ctx.geometry, ctx.shape = (kernel, stride, before, circular), x.shape
        ctx.mark_non_differentiable(winner)
        ctx.save_for_backward(winner, offset)
        return largest, winner

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        refuse_second_derivative(grads)
        winner, offset = ctx.saved_tensors
        grad = max_pool_backward(grads[0], winner, offset, list(ctx.shape), *ctx.geometry)
        return grad, None, None, None, None, None


def max_pool(x: Tensor, kernel: Pair, stride: Pair, before: Pair, offset: Tensor, mode: str = "circular") -> Tensor:
    """The largest values, with a gradient where one is needed."""
    geometry = (list(kernel), list(stride), list(before), mode == "circular")
    if torch.is_grad_enabled() and x.requires_grad:
        return _MaxPool.apply(x, offset, *geometry)[0]
    return max_pool_forward(x, offset, *geometry, False)[0]
