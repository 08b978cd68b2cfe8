"""What tests of kernels share."""

import inspect

import pytest

from trueshift.ops import kernels


@pytest.fixture(autouse=True)
def floats_are_constants(monkeypatch):
    """Others are float64 in compiled graphs, and so is all that is computed with them."""
    if not kernels.AVAILABLE:
        return
    from triton.language import constexpr

    class_, launch = kernels.launching.launched, kernels.launching.launched.__getitem__

    def checked(launched, grid):
        def run(*arguments, **named):
            if function := getattr(launched.kernel, "fn", None):
                parameters = inspect.signature(function).parameters
                given = dict(zip(parameters, arguments, strict=False)) | named
                plain = {name for name, value in given.items() if isinstance(value, float)}
                assert not [name for name in plain if parameters[name].annotation is not constexpr]
            return launch(launched, grid)(*arguments, **named)

        return run

    monkeypatch.setattr(class_, "__getitem__", checked)


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
