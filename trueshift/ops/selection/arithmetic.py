"""How scores are computed: exactly, or plainly where every shift of the image shows the same tensor."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..geometry.windows import token_norm, window_energy
from .exact import exact_conv, exact_layer_norm, exact_linear, exact_power_sum, exact_sum
from .plain import plain_conv, plain_layer_norm, plain_linear, plain_norm, plain_power_sum, plain_sum, plain_window_mean


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
PLAIN = Arithmetic(
    plain_sum, plain_linear, plain_conv, plain_layer_norm, plain_norm, plain_power_sum, plain_window_mean
)
