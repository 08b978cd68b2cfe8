"""Compile a network for training, and check that its gradients are right."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite

import torch
import torch.distributed as dist
from torch import Tensor, nn

ALLOWED = 0.45  # of a parameter's gradient (an adaptive network may choose other grids for an image or two), and
CHANCE = 10.0  # so many times what its rounding explains, and
SHARE = 1e-4  # of all gradients: where one should be nothing, what is left of it is rounding alone
BF16 = 2.0**-8  # what a weight in bf16 may be off by

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
def weights_moved(network: nn.Module, move: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Replace parameters for a while, where ``move`` returns a value; restored exactly."""
    kept = []
    try:
        with torch.no_grad():
            for parameter in network.parameters():
                if (moved := move(parameter)) is not None:
                    kept.append((parameter, parameter.detach().clone()))
                    parameter.copy_(moved)
        yield
    finally:
        with torch.no_grad():
            for parameter, before in kept:
                parameter.copy_(before)


def otherwise_if_constant(parameter: Tensor) -> Tensor | None:
    """Noise for a constant parameter: zeros, as in a fresh SwinV2's norms, would hide wrong gradients behind them."""
    constant = parameter.numel() > 0 and bool((parameter == parameter.flatten()[0]).all())
    return parameter + 0.1 * torch.randn_like(parameter) if constant else None


def rounded_otherwise(parameter: Tensor) -> Tensor:
    """Noise of the size of bf16 rounding."""
    return parameter * (1 + BF16 * (2 * torch.rand_like(parameter) - 1))


def gradients(network: nn.Module, loss: Callable[[], Tensor]) -> Gradients:
    """Gradients of a loss by parameter; the network's own are cleared."""
    try:
        loss().backward()
        return {name: value.grad for name, value in network.named_parameters() if value.grad is not None}
    finally:
        network.zero_grad()


def disagreement(found: Gradients, plain: Gradients, rounded: Sequence[Gradients]) -> str | None:
    """What is wrong with a compiled network's gradients, each parameter by itself; None if nothing is.

    Args:
        plain: the eager gradients, with the same random numbers.
        rounded: the same with other rounding. In bf16 on a CPU, torch's norms err by as much as a gradient is large.
    """
    own = _size(plain.values())
    if not isfinite(own):
        return None  # not the compiler's fault
    wrong = []
    for name, gradient in plain.items():
        there = found.get(name, torch.zeros_like(gradient))
        error, size = _size([there - gradient]), _size([gradient])
        chance = max(_size([other[name] - gradient]) for other in rounded)
        if not error <= ALLOWED * size + CHANCE * chance + SHARE * own:  # so NaN is wrong
            wrong.append(f"{name}, of size {_size([there]):.3g} instead of {size:.3g}")
    return f"wrong gradients of {len(wrong)} parameters in {len(plain)}, as of {wrong[-1]}" if wrong else None


def _size(each: Iterable[Tensor]) -> float:
    return torch.nn.utils.get_total_norm(each).item()


def fault_of_compiler(
    network: nn.Module,
    by_compiler: Callable[[], Gradients],
    own: Callable[[bool], Gradients],
    report: Callable[[str], None],
) -> str | None:
    """What is wrong with a compiled network, in words, the same in all processes; the network is left unchanged.

    Args:
        by_compiler: computes the compiled network's gradients.
        own: computes the eager ones with the same random numbers; in float32 if its argument is true.
        report: receives notes for the user.
    """

    def fault() -> str | None:
        try:
            found = by_compiler()
        except torch.OutOfMemoryError:  # not the compiler's fault
            raise
        except Exception as error:  # compilers fail in many ways
            return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1][:200]}"
        try:
            plain = own(False)
            with weights_moved(network, rounded_otherwise):
                rounded = [own(False)]
            with suppress(torch.OutOfMemoryError):  # float32 takes twice as much
                rounded.append(own(True))
            return disagreement(found, plain, rounded)
        except torch.OutOfMemoryError:  # the network itself needs more than the compiled one, which fits
            report("Too little memory to compare the compiled network's gradients with the network's own")
            return None

    buffers = [buffer.clone() for buffer in network.buffers()]
    with weights_moved(network, otherwise_if_constant):
        reason = fault()
    for buffer, before in zip(network.buffers(), buffers, strict=True):
        buffer.copy_(before)  # moved by batch norm
    if dist.is_initialized():  # processes must agree
        reasons: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, reason)
        reason = next(filter(None, reasons), None)
    return reason
