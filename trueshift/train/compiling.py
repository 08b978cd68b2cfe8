"""A network compiled for training, and whether it learns what the network itself would."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite

import torch
import torch.distributed as dist
from torch import Tensor, nn

FACTOR = 3.0  # random depth and rounding change the size of a gradient by less

# No kernel may write where it reads. With such kernels, which torch 2.11 makes of norms on a GPU, the gradients of a
# SwinV2 were thousands of times too large, by another factor each time, and without them they are right. It looks like
# a race, of the kind of https://github.com/pytorch/pytorch/issues/190517
SAFE = {"inplace_buffers": False}


def compiled(network: nn.Module) -> nn.Module:
    """The network in the compiler's hands."""
    return torch.compile(network, options=dict(SAFE))  # type: ignore[return-value]


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


def disagreement(found: float, plain: float) -> str | None:
    """What is wrong with a compiled network's gradients, in words, if they are of another size than they should be.

    It happens: see :data:`SAFE`.
    """
    if not isfinite(plain) or plain == found:
        return None  # what is not finite without the compiler is no fault of its own
    if plain / FACTOR <= found <= plain * FACTOR:
        return None
    return f"gradients of size {found:.3g} instead of {plain:.3g}"


def fault_of_compiler(
    network: nn.Module, compiled_size: Callable[[], float], own_size: Callable[[], float], tell: Callable[[str], None]
) -> str | None:
    """What goes wrong with a compiled network, in words; the same in all processes, and the network is as before.

    Args:
        compiled_size, own_size: of the gradients, by the compiled network and by the network itself.
        tell: takes what a user should know.
    """
    buffers = [buffer.clone() for buffer in network.buffers()]
    with constants_moved(network):
        reason = _fault_here(compiled_size, own_size, tell)
    for buffer, before in zip(network.buffers(), buffers, strict=True):
        buffer.copy_(before)  # batch norm had moved on
    if dist.is_initialized():  # one process without the compiler would leave the others waiting
        reasons: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, reason)
        reason = next(filter(None, reasons), None)
    return reason


def _fault_here(
    compiled_size: Callable[[], float], own_size: Callable[[], float], tell: Callable[[str], None]
) -> str | None:
    try:
        found = compiled_size()
    except torch.OutOfMemoryError:  # no fault of the compiler's
        raise
    except Exception as error:  # compilers fail in many ways
        last = (str(error).strip().splitlines() or [""])[-1][:200]
        return f"{type(error).__name__}: {last}"
    try:
        return disagreement(found, own_size())
    except torch.OutOfMemoryError:  # the network itself needs more than the compiled one, which fits
        tell("Too little memory to compare the compiled network's gradients with the network's own")
        return None
