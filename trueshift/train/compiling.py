"""Whether a compiled network learns what the network itself would."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite

import torch
from torch import Tensor, nn

FACTOR = 3.0  # random depth and rounding change the size of a gradient by less


@contextmanager
def constants_moved(network: nn.Module) -> Iterator[None]:
    """Parameters that are all zeros, or all ones, are something else for a while.

    What such zeros are multiplied by could be anything: a wrong gradient behind a fresh SwinV2's norms does not show.
    """
    kept = [(parameter, parameter.detach().clone()) for parameter in network.parameters() if _constant(parameter)]
    try:
        with torch.no_grad():
            for parameter, _ in kept:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        yield
    finally:
        with torch.no_grad():
            for parameter, before in kept:
                parameter.copy_(before)


def _constant(parameter: Tensor) -> bool:
    return parameter.numel() > 0 and bool((parameter == parameter.flatten()[0]).all())


def gradient_size(network: nn.Module, loss: Callable[[], Tensor]) -> float:
    """The norm of all gradients of a loss, which are cleared again."""
    try:
        loss().backward()
        gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
        return torch.nn.utils.get_total_norm(gradients).item()
    finally:
        network.zero_grad()


def disagreement(compiled: float, plain: float) -> str | None:
    """What is wrong with a compiled network's gradients, in words, if they are of another size than they should be.

    It happens: the gradients of a SwinV2 that torch 2.11 compiles for a GPU are thousands of times too large.
    """
    if not isfinite(plain) or plain == compiled:
        return None  # what is not finite without the compiler is no fault of its own
    if plain / FACTOR <= compiled <= plain * FACTOR:
        return None
    return f"gradients of size {compiled:.3g} instead of {plain:.3g}"
