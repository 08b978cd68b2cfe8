"""Under torch.compile and torch.export: one graph, the same choices, the same exactness."""

import pytest
import torch
from layer_zoo import make_layers
from unchecked import in_own_process

from trueshift.testing import assert_equivariant, hostile_images

# without code generation, which takes a CPU minutes, the graph is what inductor would be given
TRACED = "aot_eager_decomp_partition"
COMPILED = ("tokenize", "tokenize, learned", "tokenize, overlapping", "align, one window high", "merge, norm before",
            "merge, depthwise", "stages")  # fmt: skip


def some_images():
    return torch.stack([image for name, image in hostile_images(16).items() if name != "huge"])


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, TRACED) for name in ("tokenize", "merge, norm before")),
        *(pytest.param(name, "inductor", marks=pytest.mark.slow) for name in COMPILED),
    ],
)
@in_own_process
@torch.no_grad()
def test_exact_in_one_graph(name, backend):
    layer, x = make_layers(16)[name]().eval(), some_images()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    assert_equivariant(compiled, x, shifts=24)
    if name != "stages":  # whose later choices may differ from eager ones: they see other rounding
        eager, fast = layer(x), compiled(x)
        assert torch.equal(eager.grid.origin, fast.grid.origin)
        torch.testing.assert_close(eager.values, fast.values, rtol=0, atol=1e-3)  # a norm of faint contrast magnifies


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenize", "merge, norm before"])
@in_own_process
def test_trains_in_one_graph(name):
    layer, x = make_layers(16)[name]().eval(), some_images()

    def gradients(module):
        layer.zero_grad()
        inputs = x.clone().requires_grad_()
        module(inputs).values.square().mean().backward()
        return [inputs.grad, *(p.grad.clone() for p in layer.parameters())]

    for eager, fast in zip(gradients(layer), gradients(torch.compile(layer, fullgraph=True)), strict=True):
        torch.testing.assert_close(eager, fast, rtol=1e-4, atol=1e-5)
