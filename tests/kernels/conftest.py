"""What tests of kernels share."""

import pytest

from trueshift.ops import kernels


@pytest.fixture
def quick_interpreter(monkeypatch):
    """The interpreter looks for overflows in every sum of integers, which takes it most of its time."""
    if kernels.AVAILABLE and kernels.INTERPRETED:
        from triton.runtime.interpreter import interpreter_builder

        monkeypatch.setitem(interpreter_builder.options.__dict__, "sanitize_overflow", False)
