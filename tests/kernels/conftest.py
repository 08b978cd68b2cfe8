"""What tests of kernels share."""

import pytest

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
def quick_interpreter(monkeypatch):
    """The interpreter looks for overflows in every sum of integers, which takes it most of its time."""
    if kernels.AVAILABLE and kernels.INTERPRETED:
        from triton.runtime.interpreter import interpreter_builder

        monkeypatch.setitem(interpreter_builder.options.__dict__, "sanitize_overflow", False)
