"""Every op that declares a kernel has one: in the file of its name, under its name, with its arguments."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

from trueshift.ops import kernels

OPS = Path(kernels.__file__).parents[1]


def declared():
    for path in sorted(OPS.glob("*/*.py")):
        for node in ast.parse(path.read_text()).body:
            decorators = getattr(node, "decorator_list", [])
            if any(isinstance(each, ast.Call) and ast.unparse(each.func) == "kernel_for" for each in decorators):
                yield path.parent.name, path.stem, node.name


@pytest.mark.skipif(not kernels.AVAILABLE, reason="needs Triton")
@pytest.mark.parametrize(("room", "file", "name"), list(declared()))
def test_an_op_and_its_kernel_are_called_alike(room, file, name):
    op = getattr(import_module(f"trueshift.ops.{room}.{file}"), name)
    kernel = getattr(getattr(kernels, file), name)
    assert list(inspect.signature(kernel).parameters) == list(inspect.signature(op).parameters)


def test_a_folder_without_such_a_kernel_says_so():
    assert len(list(declared())) > 10
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kernels.nothing  # noqa: B018
