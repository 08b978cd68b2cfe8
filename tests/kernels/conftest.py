"""What tests of kernels share."""

import pytest
import torch

from trueshift.ops import kernels


@pytest.fixture
def both_ways():
    """What a function gives by plain code, and by kernels."""

    def run(function, *arguments):
        found = []
        for on in (False, True):
            with kernels.switched(on):
                found.append(function(*arguments))
        return found

    return run


@pytest.fixture
def same_both_ways(both_ways):
    """Check that a function of tensors gives the same both ways, and the same gradients where they are enabled."""

    def results_and_gradients(function, *tensors):
        inputs = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in tensors]
        results = function(*inputs)
        if not torch.is_grad_enabled():
            return results
        weighted = [(y * torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape)).sum() for y in results]
        return [*results, *torch.autograd.grad(sum(weighted), inputs)]

    def check(function, *tensors, tolerance=1e-5):
        for plain, fast in zip(*both_ways(results_and_gradients, function, *tensors), strict=True):
            assert (plain.shape, plain.dtype) == (fast.shape, fast.dtype)
            assert (plain - fast).abs().max() <= tolerance * plain.abs().max().clamp_min(1)

    return check


@pytest.fixture
def quick_interpreter(monkeypatch):
    """The interpreter looks for overflows in every sum of integers, which takes it most of its time."""
    if kernels.AVAILABLE and kernels.INTERPRETED:
        from triton.runtime.interpreter import interpreter_builder

        monkeypatch.setitem(interpreter_builder.options.__dict__, "sanitize_overflow", False)
