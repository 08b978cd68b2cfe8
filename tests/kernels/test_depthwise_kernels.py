"""The kernels of pooling attention give what the plain code gives, gradients included."""

import pytest
import torch
from torch import nn

from trueshift.ops import kernels
from trueshift.ops.geometry.grid import TokenGrid
from trueshift.ops.geometry.rel_pos import circular_rows, linear_rows, position_bias, shortest_rows
from trueshift.ops.nn.depthwise import depthwise, depthwise_energy, depthwise_sequences
from trueshift.ops.nn.max_pool import max_pool

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("quick_interpreter")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OFFSET = torch.tensor([[1, 3], [-2, 17]], device=DEVICE)


def normal(*shape):
    return torch.randn(shape, device=DEVICE)


@pytest.mark.parametrize(
    ("stride", "mode", "offset"),
    [
        ((1, 1), "circular", None),
        ((2, 2), "circular", OFFSET),
        ((4, 2), "zeros", OFFSET),
        ((1, 1), "zeros", None),
        ((2, 2), "circular_width", OFFSET),  # which the kernels leave to plain code
    ],
)
def test_convolutions_of_one_map(stride, mode, offset, same_both_ways):
    """Keys and values of CvT: two weights, one map."""
    same_both_ways(
        lambda x, *weights: depthwise_sequences([x, x], weights, stride, (1, 1), offset, mode),
        normal(2, 8, 4, 5),
        *normal(2, 5, 1, 3, 3),
    )


def test_convolutions_of_several_maps(same_both_ways):
    """Parts of one projection, with weights that heads share; then maps of different layout: one launch each."""

    def of_parts(x, *weights):
        return depthwise_sequences(x.chunk(3, 3), weights, (1, 1), (1, 1))

    def of_maps(x, y, *weights):
        return depthwise_sequences([x, y], weights, (2, 2), (1, 1))

    same_both_ways(of_parts, normal(2, 4, 8, 3 * 8), *normal(3, 4, 1, 3, 3))
    same_both_ways(of_maps, normal(1, 6, 4, 4).permute(0, 2, 3, 1), normal(1, 4, 4, 6), *normal(2, 6, 1, 3, 3))


def energy_of(maps, weights):
    """By the kernel where kernels are on, and twice: it is the same every time, and has no gradient."""
    energy = depthwise_energy(maps, weights, (1, 1))
    if energy is None:
        convolved = [depthwise(x, weight, (1, 1), (1, 1)) for x, weight in zip(maps, weights, strict=True)]
        return [torch.stack(convolved).square().sum((0, 4))]
    with torch.enable_grad():
        again = depthwise_energy(maps, weights, (1, 1))
    assert torch.equal(energy, again)
    assert not again.requires_grad
    return [energy.sum(0)]


@torch.no_grad()
def test_energy(same_both_ways):
    x, weights = normal(2, 4, 8, 2 * 8), normal(2, 4, 1, 3, 3)
    same_both_ways(lambda x, *weights: energy_of(x.chunk(2, 3), weights), x, *weights)
    same_both_ways(lambda x, *weights: energy_of([x, x], weights), x, *weights)


def test_several_tiles_and_blocks(monkeypatch, same_both_ways):
    monkeypatch.setattr(kernels.neighbours, "CHANNELS", 4)
    monkeypatch.setattr(kernels.neighbours, "TILE", (2, 4))
    monkeypatch.setattr(kernels.depthwise_rows, "LONGEST", 3)
    given = normal(1, 4, 6, 7), normal(7, 1, 3, 3)
    for stride in ((2, 2), (1, 1)):
        same_both_ways(lambda x, weight, stride=stride: [depthwise(x, weight, stride, (1, 1))], *given)
    with torch.no_grad():
        same_both_ways(lambda x, weight: energy_of([x], [weight]), *given)


@pytest.mark.parametrize("kind", ["batch", "layer"])
@pytest.mark.parametrize("stride", [(2, 2), (1, 1)])  # by tiles, and by rows
@torch.no_grad()
def test_norms_and_class_tokens_on_the_way(kind, stride, same_both_ways):
    weights = normal(2, 4 if kind == "layer" else 8, 1, 3, 3)
    norms = [nn.LayerNorm(4) if kind == "layer" else nn.BatchNorm2d(8) for _ in weights]
    for norm in norms:
        for tensor in (*norm.parameters(), *norm.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
        norm.to(DEVICE).eval()

    def normed(x, prefix, *weights):
        return depthwise_sequences([x, x], weights, stride, (1, 1), OFFSET, "circular", norms, prefix[:, :2])

    same_both_ways(normed, normal(2, 4, 4, 8), normal(2, 3, 8), *weights)


@torch.no_grad()
def test_low_precision():
    """Sums in float32, rounded once: closer to the truth than plain code; under autocast as torch's convolution."""
    x, weight = normal(1, 4, 4, 6), normal(6, 1, 3, 3)
    expected = depthwise(x.bfloat16().float(), weight, (1, 1), (1, 1))
    with kernels.switched(True):
        fast = depthwise(x.bfloat16(), weight, (1, 1), (1, 1))
        with torch.autocast(DEVICE, torch.bfloat16):
            cast = depthwise(x, weight, (1, 1), (1, 1))
    assert fast.dtype == cast.dtype == torch.bfloat16
    largest = expected.abs().max().clamp_min(1)
    assert (expected.bfloat16() - fast).abs().max() <= 2**-7 * largest  # the interpreter cuts where a GPU rounds
    assert (expected - cast).abs().max() <= 2**-6 * largest


@pytest.mark.parametrize(
    ("stride", "mode"), [((2, 2), "circular"), ((4, 2), "zeros"), ((1, 1), "circular"), ((2, 2), "circular_width")]
)
def test_max_pool(stride, mode, same_both_ways):
    kernel, before = (stride[0] + 1, stride[1] + 1), ((stride[0] + 1) // 2, (stride[1] + 1) // 2)

    def pooled(x):
        # plain code on the CPU, where ties go to the first: on CUDA torch itself is of two minds
        device = DEVICE if kernels.usable(normal(1)) else "cpu"
        return [max_pool(x.to(device), kernel, stride, before, OFFSET.to(device), mode).cpu()]

    same_both_ways(pooled, (4 * torch.randn(2, 4, 8, 5)).round() / 4)


@pytest.mark.parametrize("rows", [circular_rows, shortest_rows, linear_rows])
@pytest.mark.parametrize(("query", "key"), [(4, 8), (8, 4)])
def test_position_bias(rows, query, key, same_both_ways):
    starts = torch.tensor([[[4, 8], [0, 24]], [[12, 4], [4, 12]]], device=DEVICE)
    grid, key_grid = (TokenGrid((s, s), start, (16, 32)) for s, start in zip((query, key), starts, strict=True))
    tables = [normal(steps if rows is circular_rows else 2 * steps - 1, 6) for steps in (4, 8)]

    def biased(queries, *tables):
        return [position_bias(queries, tables, grid, key_grid, rows), position_bias(queries, tables, grid, grid, rows)]

    with torch.set_grad_enabled(rows is not linear_rows):  # whose gradient is plain code's: rows may be met twice
        same_both_ways(biased, normal(2, grid.shape[0] * grid.shape[1], 2, 6), *tables)
