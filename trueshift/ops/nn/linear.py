"""Linear projection of tokens."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .autocast import network_precision


def linear(
    x: Float[Tensor, "*any C"], weight: Float[Tensor, "D C"], bias: Float[Tensor, " D"] | None
) -> Float[Tensor, "*any D"]:
    """``x @ weight.T + bias``.

    Eager on a CPU, and without gradient, the bias is added to the product. Torch writes it first, for the product to be
    added to, which reads and writes all outputs once more: up to a tenth of the time where there are few channels.
    """
    if bias is None or not x.is_cpu or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return F.linear(x, weight, bias)
    return F.linear(x, weight).add_(bias) if network_precision(x) == torch.float32 else F.linear(x, weight, bias)
