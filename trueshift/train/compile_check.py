"""Compile a network for training, and check that its gradients are right."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from math import isfinite

import torch
from torch import Tensor, nn

from ..utils.checks import first_line
from ..utils.distributed import gathered

ALLOWED = 0.45  # of a parameter's gradient (an adaptive network may choose other grids for an image or two), and
CHANCE = 10.0  # so many times what low precision costs the network itself, and
SHARE = 1e-4  # of all gradients: where one should be nothing, what is left of it is rounding alone

AGAIN_AT = (10, 100, 1_000, 10_000)  # steps: what is right for fresh weights may be wrong for others

Gradients = dict[str, Tensor]  # by a parameter's name

# No kernel may write where it reads: with such kernels, which torch 2.11 makes of norms on a GPU, the gradients of a
# SwinV2 were thousands of times too large, by another factor each time. It looks like a race, as in
# https://github.com/pytorch/pytorch/issues/190517
# Random numbers are drawn as in eager mode, so that the two can be compared closely: where stochastic depth differed,
# tenfold gradients passed for chance.
SAFE = {"inplace_buffers": False, "fallback_random": True}


def compiled(network: nn.Module) -> nn.Module:
    """``torch.compile`` with safe options."""
    return torch.compile(network, options=dict(SAFE))  # type: ignore[return-value]


@contextmanager
def constants_moved(network: nn.Module) -> Iterator[None]:
    """Add noise to constant parameters for a while; all parameters and buffers are restored exactly.

    Zeros, as in a fresh SwinV2's norms, would hide wrong gradients behind them.
    """
    before = [tensor.detach().clone() for tensor in (*network.parameters(), *network.buffers())]
    try:
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
                    parameter.add_(0.1 * torch.randn_like(parameter))
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip((*network.parameters(), *network.buffers()), before, strict=True):
                tensor.copy_(value)


def gradients(network: nn.Module, loss: Callable[[], Tensor]) -> Gradients:
    """Gradients of a loss by parameter; the network's own are cleared."""
    try:
        loss().backward()
        return {name: value.grad for name, value in network.named_parameters() if value.grad is not None}
    finally:
        network.zero_grad()


def disagreement(found: Gradients, plain: Gradients, precise: Gradients) -> str | None:
    """What is wrong with a compiled network's gradients, each parameter by itself; None if nothing is.

    Those in float32 show the error of the eager ones: in bf16 on a CPU, torch's norms err by as much as a gradient is.
    """
    own = _size(plain.values())
    if not isfinite(own):
        return None  # not the compiler's fault
    wrong = []
    for name, gradient in plain.items():
        there = found.get(name, torch.zeros_like(gradient))
        error, size, chance = _size([there - gradient]), _size([gradient]), _size([precise[name] - gradient])
        if not error <= ALLOWED * size + CHANCE * chance + SHARE * own:  # so NaN is wrong
            wrong.append(f"{name}, of size {_size([there]):.3g} instead of {size:.3g}")
    return f"wrong gradients of {len(wrong)} parameters in {len(plain)}, as of {wrong[-1]}" if wrong else None


def _size(each: Iterable[Tensor]) -> float:
    return torch.nn.utils.get_total_norm(each).item()


def fault_of_compiler(
    network: nn.Module, by_compiler: Callable[[], Tensor], own: Callable[[], Tensor], in_float32: Callable[[], Tensor]
) -> str | None:
    """What is wrong with a compiled network, in words, the same in all processes; the network is left unchanged.

    Each function computes the loss, with the same random numbers.
    """
    with constants_moved(network):
        try:
            found = gradients(network, by_compiler)
            plain = precise = gradients(network, own)
            with suppress(torch.OutOfMemoryError):  # float32 takes twice as much
                precise = gradients(network, in_float32)
            reason = disagreement(found, plain, precise)
        except torch.OutOfMemoryError:  # the network itself may need more than the compiled one, which fits
            warnings.warn("Too little memory to compare the compiled network's gradients", stacklevel=2)
            reason = None
        except Exception as error:  # compilers fail in many ways
            reason = f"{type(error).__name__}: {first_line(error)}"  # the last one tells of debugging options
    return next(filter(None, gathered(reason)), None)  # processes must agree
