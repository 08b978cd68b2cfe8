"""Under torch.compile and torch.export: one graph, the same choices, the same exactness."""

import pytest

SETUP = """
import warnings
warnings.simplefilter("ignore")
import torch
from layer_zoo import make_layers
import trueshift as ts
from trueshift.testing import assert_equivariant, hostile_images
torch.manual_seed(0)
x = torch.stack([image for name, image in hostile_images(16).items() if name != "huge"])
layer = make_layers(16)["{name}"]().eval()
"""

COMPILE = """
torch.set_grad_enabled(False)
compiled = torch.compile(layer, fullgraph=True, backend="{backend}")
assert_equivariant(compiled, x, shifts=24)
eager, fast = layer(x), compiled(x)
assert torch.equal(eager.grid.origin, fast.grid.origin)
torch.testing.assert_close(eager.values, fast.values, rtol=0, atol=1e-3)  # a norm of faint contrast magnifies rounding
print("ok")
"""

EXPORT = """
from trueshift.layers import AdaptiveMerge
torch.set_grad_enabled(False)
program = torch.export.export(layer, (x,)).module()
assert_equivariant(program, x, shifts=40)
eager, exported = layer(x), program(x)
assert torch.equal(eager.grid.origin, exported.grid.origin)
torch.testing.assert_close(eager.values, exported.values, rtol=0, atol=1e-5)
AdaptiveMerge.merge_for_scores = AdaptiveMerge.merge  # in the plain way, which a compiler is left
assert torch.equal(layer(x).values, exported.values)
print("ok")
"""

TRAIN = """
def gradients(module):
    layer.zero_grad()
    inputs = x.clone().requires_grad_()
    module(inputs).values.square().mean().backward()
    return [inputs.grad, *(p.grad.clone() for p in layer.parameters())]
for eager, fast in zip(gradients(layer), gradients(torch.compile(layer, fullgraph=True))):
    torch.testing.assert_close(eager, fast, rtol=1e-4, atol=1e-5)
print("ok")
"""


# without code generation, which takes a CPU minutes, the graph is what inductor would be given
TRACED = "aot_eager_decomp_partition"
COMPILED = ("tokenize", "tokenize, learned", "tokenize, overlapping", "align, one window high", "merge, norm before",
            "merge, depthwise")  # fmt: skip


@pytest.mark.parametrize("name", ["tokenize", "merge, norm before"])
def test_exact_when_traced_into_one_graph(run_unchecked, name):
    assert "ok" in run_unchecked(SETUP.format(name=name) + COMPILE.format(backend=TRACED))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_exact_when_compiled_into_one_graph(run_unchecked, name):
    assert "ok" in run_unchecked(SETUP.format(name=name) + COMPILE.format(backend="inductor"))


# a whole exported network is in test_onnx_export.py
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenize", "merge, norm before", "stages"])
def test_exact_when_exported(run_unchecked, name):
    assert "ok" in run_unchecked(SETUP.format(name=name) + EXPORT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenize", "merge, norm before"])
def test_trains_in_one_graph(run_unchecked, name):
    assert "ok" in run_unchecked(SETUP.format(name=name) + TRAIN)


@pytest.mark.slow
def test_stages_compiled(run_unchecked):
    """Exact as well, though its later choices may differ from eager ones: they see other rounding."""
    exact = COMPILE.format(backend="inductor").split("eager, fast")[0] + 'print("ok")'
    assert "ok" in run_unchecked(SETUP.format(name="stages") + exact)
