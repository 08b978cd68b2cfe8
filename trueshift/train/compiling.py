"""A network compiled for training, and whether it learns what the network itself would."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import isfinite

import torch
import torch.distributed as dist
from torch import Tensor, nn

FACTOR = 3.0  # random depth and rounding change the size of all gradients by less,
SHARE = 0.02  # those of one parameter by less than so much of it,
CHANCE = 5.0  # and than so many times what they change it by in another try

Gradients = dict[str, Tensor]  # by a parameter's name

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


def gradients(network: nn.Module, loss: Callable[[], Tensor]) -> Gradients:
    """Of a loss, by parameter; they are cleared again."""
    try:
        loss().backward()
        return {name: value.grad for name, value in network.named_parameters() if value.grad is not None}
    finally:
        network.zero_grad()


def disagreement(found: Gradients, plain: Gradients, again: Gradients) -> str | None:
    """What is wrong with a compiled network's gradients, in words, if they are not what they should be.

    It happens: see :data:`SAFE`. A single parameter's are wrong where they are farther from what they should be than
    these are large, and than chance explains. The size of all would not tell: most may be right.

    Args:
        plain, again: the network's own, twice, by other random numbers.
    """
    size, own = _size(found.values()), _size(plain.values())
    if not isfinite(own):
        return None  # what is not finite without the compiler is no fault of its own
    if not own / FACTOR <= size <= own * FACTOR:
        return f"gradients of size {size:.3g} instead of {own:.3g}"
    wrong = [name for name in plain if _astray(found.get(name), plain[name], again.get(name), SHARE * own)]
    return f"gradients of {len(wrong)} parameters of {len(plain)}, as of {wrong[0]}" if wrong else None


def _astray(found: Tensor | None, plain: Tensor, again: Tensor | None, allowed: float) -> bool:
    if found is None:
        return _size([plain]) > allowed
    by_chance = 0.0 if again is None else CHANCE * _size([again - plain])
    return _size([found - plain]) > _size([plain]) + by_chance + allowed


def _size(each: Iterable[Tensor]) -> float:
    return torch.nn.utils.get_total_norm(each).item()


def fault_of_compiler(
    network: nn.Module,
    by_compiler: Callable[[], Gradients],
    own: Callable[[int], Gradients],
    tell: Callable[[str], None],
) -> str | None:
    """What goes wrong with a compiled network, in words; the same in all processes, and the network is as before.

    Args:
        by_compiler: the compiled network's gradients.
        own: the network's own, of the first attempt (0) or the second, which draws other random numbers.
        tell: takes what a user should know.
    """
    buffers = [buffer.clone() for buffer in network.buffers()]
    with constants_moved(network):
        reason = _fault_here(by_compiler, own, tell)
    for buffer, before in zip(network.buffers(), buffers, strict=True):
        buffer.copy_(before)  # batch norm had moved on
    if dist.is_initialized():  # one process without the compiler would leave the others waiting
        reasons: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, reason)
        reason = next(filter(None, reasons), None)
    return reason


def _fault_here(
    by_compiler: Callable[[], Gradients], own: Callable[[int], Gradients], tell: Callable[[str], None]
) -> str | None:
    try:
        found = by_compiler()
    except torch.OutOfMemoryError:  # no fault of the compiler's
        raise
    except Exception as error:  # compilers fail in many ways
        last = (str(error).strip().splitlines() or [""])[-1][:200]
        return f"{type(error).__name__}: {last}"
    try:
        return disagreement(found, own(0), own(1))
    except torch.OutOfMemoryError:  # the network itself needs more than the compiled one, which fits
        tell("Too little memory to compare the compiled network's gradients with the network's own")
        return None
