"""Every op that declares a kernel has one: in the file of its name, under its name, with its arguments."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest
import torch

from trueshift import create_model
from trueshift.ops import kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
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


@pytest.mark.skipif(not kernels.AVAILABLE, reason="needs Triton")
def test_transforms_of_torch_func_take_plain_code(both_ways):
    """Kernels read memory, which the tensors of a transform have not. Swin's gradients have the same bits each time."""
    model = create_model("a_swin_mini", num_classes=2).to(DEVICE).eval()
    parameters, image = dict(model.named_parameters()), torch.rand(1, 3, 32, 32, device=DEVICE)

    def gradients():
        return torch.func.grad(lambda given: torch.func.functional_call(model, given, image).sum())(parameters)

    plain, fused = both_ways(gradients)
    assert any(grad.any() for grad in plain.values())
    assert all(torch.equal(grad, fused[name]) for name, grad in plain.items())
