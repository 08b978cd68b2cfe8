"""The two arithmetics of scores: exact (:mod:`trueshift.ops.selection.exact`), and plain float32.

The plain one is for tensors that are the same whatever the shift, as everything is after an anchor: there, any
computation that gives the same result for the same input gives the same choice.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..geometry.shift import Pair, circular_pad
from ..geometry.windows import token_norm, window_energy
from .exact import exact_conv, exact_layer_norm, exact_linear, exact_power_sum, exact_sum


def plain_sum(x: Float[Tensor, "B *rest"], dims: tuple[int, ...]) -> Float[Tensor, "B *kept"]:
    """Sum over ``dims``, accumulated in float64: what is left of rounding is that of the terms."""
    return x.sum(dims, dtype=torch.float64)


def _linear(x: Tensor, weight: Float[Tensor, "N K"]) -> Float[Tensor, "B *rest N"]:
    return F.linear(x.float(), weight.detach().float())


def _conv(x: Tensor, weight: Float[Tensor, "D Cg kh kw"], padding: Pair, groups: int = 1) -> Float[Tensor, "B H W D"]:
    """Circular, of stride 1."""
    height, width = weight.shape[2:]
    rows, columns = (padding[0], height - 1 - padding[0]), (padding[1], width - 1 - padding[1])
    padded = circular_pad(x.float(), rows, columns).permute(0, 3, 1, 2)
    return F.conv2d(padded, weight.detach().float(), groups=groups).permute(0, 2, 3, 1)


def _layer_norm(x: Float[Tensor, "B H W C"], norm: nn.LayerNorm) -> Float[Tensor, "B H W C"]:
    return F.layer_norm(x.float(), norm.normalized_shape, norm.weight.float(), norm.bias.float(), norm.eps)


def plain_norm(x: Float[Tensor, "B H W C"], p: float = 2) -> Float[Tensor, "B H W"]:
    """The p-norm of each token."""
    return torch.linalg.vector_norm(x, p, 3, dtype=torch.promote_types(x.dtype, torch.float32))


def _power_sum(x: Float[Tensor, "B H W C"], p: float) -> Float[Tensor, "B H W"]:
    """The p-norm of each token, to the power p."""
    if p == 2:
        # on a CPU in one pass, without a tensor of squares
        return plain_norm(x).square() if x.device.type == "cpu" else x.float().square().sum(3)
    return x.float().abs().pow(p).sum(3)


def plain_window_mean(x: Float[Tensor, "B H W"], window: Pair) -> Float[Tensor, "B H W"]:
    """The mean over the window that starts at each position; along an axis that one window spans, equal bit for bit.

    Otherwise rounding would choose, where the choice is meant to go to the next score.
    """
    rows, columns = window
    height, width = x.shape[1:]
    if rows == height:
        x, rows = x.mean(1, keepdim=True), 1
    if columns == width:
        x, columns = x.mean(2, keepdim=True), 1
    padded = circular_pad(x, (0, rows - 1), (0, columns - 1))
    return F.avg_pool2d(padded[:, None], (rows, columns), stride=1)[:, 0].expand(-1, height, width)


@dataclass(frozen=True)
class Arithmetic:
    """The operations a score is made of."""

    sum: Callable[[Tensor, tuple[int, ...]], Tensor]
    linear: Callable[[Tensor, Tensor], Tensor]
    conv: Callable[..., Tensor]
    layer_norm: Callable[..., Tensor]
    norm: Callable[[Tensor, float], Tensor]
    power_sum: Callable[[Tensor, float], Tensor]
    window_mean: Callable[..., Tensor]


EXACT = Arithmetic(exact_sum, exact_linear, exact_conv, exact_layer_norm, token_norm, exact_power_sum, window_energy)
PLAIN = Arithmetic(plain_sum, _linear, _conv, _layer_norm, plain_norm, _power_sum, plain_window_mean)
