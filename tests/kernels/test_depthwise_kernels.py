"""The kernels of pooling attention give what the plain code gives, gradients included."""

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.ops import kernels
from trueshift.ops.geometry.grid import TokenGrid
from trueshift.ops.geometry.rel_pos import circular_rows, linear_rows, position_bias, shortest_rows
from trueshift.ops.nn.depthwise import depthwise, depthwise_energy, depthwise_sequences
from trueshift.ops.nn.max_pool import max_pool

pytestmark = [
    pytest.mark.skipif(not kernels.AVAILABLE, reason="needs Triton"),
    pytest.mark.usefixtures("quick_interpreter"),
]

OFFSET = [[1, 3], [-2, 17]]


@pytest.fixture
def device():
    return "cpu" if kernels.INTERPRETED else "cuda"


@pytest.fixture
def with_gradients(both_ways):
    """Pairs of results and gradients, by plain code and by kernels."""

    def run(function, *tensors):
        inputs = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in tensors]
        results = function(*inputs)
        weighted = [(y * torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape)).sum() for y in results]
        return [y.detach() for y in results] + list(torch.autograd.grad(sum(weighted), inputs))

    return lambda function, *tensors: zip(*both_ways(run, function, *tensors), strict=True)


def assert_same(pairs, tolerance=1e-5):
    for plain, fast in pairs:
        assert plain.shape == fast.shape
        assert plain.dtype == fast.dtype
        assert (plain - fast).abs().max() <= tolerance * plain.abs().max().clamp_min(1)


@pytest.mark.parametrize(
    ("stride", "mode", "shifted"),
    [
        *[((1, 1), "circular", False), ((2, 2), "circular", True), ((4, 2), "zeros", True), ((1, 1), "zeros", False)],
        ((2, 2), "circular_width", True),  # which the kernels leave to plain code
    ],
)
def test_convolutions_of_one_map(device, stride, mode, shifted, with_gradients):
    """Keys and values of CvT: two weights, one map."""
    x, weights = torch.randn(2, 8, 4, 5, device=device), torch.randn(2, 5, 1, 3, 3, device=device)
    offset = torch.tensor(OFFSET, device=device) if shifted else None

    def pooled(x, *weights):
        return depthwise_sequences([x, x], weights, stride, (1, 1), offset, mode)

    assert_same(with_gradients(pooled, x, *weights))


def test_convolutions_of_views_shared_by_heads(device, with_gradients):
    """Queries, keys and values of MViTv2: parts of one projection, several heads, several tiles."""
    x, weights = torch.randn(2, 4, 8, 3 * 8, device=device), torch.randn(3, 4, 1, 3, 3, device=device)

    def pooled(x, *weights):
        return depthwise_sequences(x.chunk(3, 3), weights, (1, 1), (1, 1))

    assert_same(with_gradients(pooled, x, *weights))


def test_several_tiles_and_blocks(device, monkeypatch, with_gradients):
    monkeypatch.setattr(kernels.neighbours, "CHANNELS", 4)
    monkeypatch.setattr(kernels.neighbours, "TILE", (2, 4))
    monkeypatch.setattr(kernels.depthwise_rows, "LONGEST", 3)
    x, weight = torch.randn(1, 4, 6, 7, device=device), torch.randn(7, 1, 3, 3, device=device)
    for stride in ((2, 2), (1, 1)):
        assert_same(with_gradients(lambda x, weight, s=stride: [depthwise(x, weight, s, (1, 1))], x, weight))
    plain = depthwise(x, weight, (1, 1), (1, 1)).square().sum(3)
    with kernels.switched(True):
        assert_same([(plain, depthwise_energy([x], [weight], (1, 1)).sum(0))])


def test_maps_of_different_layout(device, with_gradients):
    """No view of one tensor, channels not last: one launch each."""
    maps = [torch.randn(1, 6, 4, 4, device=device).permute(0, 2, 3, 1), torch.randn(1, 4, 4, 6, device=device)]
    weights = torch.randn(2, 6, 1, 3, 3, device=device)
    assert_same(with_gradients(lambda x, y, *w: depthwise_sequences([x, y], w, (2, 2), (1, 1)), *maps, *weights))


@pytest.mark.parametrize("kind", ["batch", "layer"])
@torch.no_grad()
def test_norms_and_class_tokens_on_the_way(device, kind, both_ways):
    x, width = torch.randn(2, 4, 4, 8, device=device), 4 if kind == "layer" else 8
    weights = list(torch.randn(2, width, 1, 3, 3, device=device))
    norms = [nn.LayerNorm(4) if kind == "layer" else nn.BatchNorm2d(8) for _ in weights]
    for norm in norms:
        for tensor in (*norm.parameters(), *norm.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
        norm.to(device).eval()
    prefix = torch.randn(2, 3, 8, device=device)[:, :2]
    offset = torch.tensor(OFFSET, device=device)
    found = both_ways(depthwise_sequences, [x, x], weights, (2, 2), (1, 1), offset, "circular", norms, prefix)
    assert_same(zip(*found, strict=True))


@torch.no_grad()
def test_low_precision(device):
    """Sums in float32, rounded once: closer to the truth than plain code; under autocast as torch's convolution."""
    x, weight = torch.randn(1, 4, 4, 6, device=device), torch.randn(6, 1, 3, 3, device=device)
    expected = depthwise(x.bfloat16().float(), weight, (1, 1), (1, 1))
    with kernels.switched(True):
        fast = depthwise(x.bfloat16(), weight, (1, 1), (1, 1))
        with torch.autocast(device, torch.bfloat16):
            cast = depthwise(x, weight, (1, 1), (1, 1))
    assert fast.dtype == cast.dtype == torch.bfloat16
    assert_same([(expected.bfloat16(), fast)], 2**-7)  # the interpreter cuts where a GPU rounds
    assert_same([(expected, cast.float())], 2**-6)


@torch.no_grad()
def test_energy(device):
    x, weights = torch.randn(2, 4, 8, 2 * 8, device=device), list(torch.randn(2, 4, 1, 3, 3, device=device))
    for maps in (x.chunk(2, 3), [x, x]):
        plain = [depthwise(*pair, (1, 1), (1, 1)).square().sum(3) for pair in zip(maps, weights, strict=True)]
        with kernels.switched(True):
            fast = depthwise_energy(maps, weights, (1, 1))
            assert torch.equal(fast, depthwise_energy(maps, weights, (1, 1)))
        assert_same([(plain[0] + plain[1], fast.sum(0))])


@pytest.mark.parametrize(
    ("stride", "mode"), [((2, 2), "circular"), ((4, 2), "zeros"), ((1, 1), "circular"), ((2, 2), "circular_width")]
)
def test_max_pool(device, stride, mode, with_gradients):
    x = (4 * torch.randn(2, 4, 8, 5)).round() / 4
    kernel, before = (stride[0] + 1, stride[1] + 1), ((stride[0] + 1) // 2, (stride[1] + 1) // 2)

    def pooled(x):
        return [max_pool(x, kernel, stride, before, torch.tensor(OFFSET, device=x.device), mode)]

    # plain code on the CPU, where ties go to the first: on CUDA torch itself is of two minds
    plain, fast = (list(zip(*with_gradients(pooled, x.to(place)), strict=True)) for place in ("cpu", device))
    assert_same(zip(plain[0], [y.cpu() for y in fast[1]], strict=True))


def test_gradients_of_plain_code():
    x = torch.randn(2, 4, 2, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    for mode in ("circular", "zeros", "circular_width"):
        assert torch.autograd.gradcheck(
            lambda x, weight, mode=mode: depthwise(x, weight, (2, 1), (1, 1), torch.tensor(OFFSET), mode), (x, weight)
        )


@pytest.mark.parametrize("rows", [circular_rows, shortest_rows, linear_rows])
@pytest.mark.parametrize(("query", "key"), [(4, 8), (8, 4)])
def test_position_bias(device, rows, query, key, with_gradients, both_ways):
    size = (16, 32)
    starts = torch.tensor([[4, 8], [0, 24]], device=device), torch.tensor([[12, 4], [4, 12]], device=device)
    grid, key_grid = (TokenGrid((s, s), start, size) for s, start in zip((query, key), starts, strict=True))
    steps = [extent // 4 if rows is circular_rows else 2 * (extent // 4) - 1 for extent in size]
    tables = [torch.randn(count, 6, device=device) for count in steps]
    queries = torch.randn(2, grid.shape[0] * grid.shape[1], 2, 6, device=device)

    def biased(queries, *tables):
        return [position_bias(queries, tables, grid, key_grid, rows), position_bias(queries, tables, grid, grid, rows)]

    if rows is not linear_rows:
        assert_same(with_gradients(biased, queries, *tables))
        return
    with torch.no_grad():  # its gradient is that of plain code: rows may be met twice
        assert_same(zip(*both_ways(biased, queries, *tables), strict=True))


# a whole CvT in kernels, without gradients, is in test_attention_kernel.py
@pytest.mark.slow
@pytest.mark.parametrize("name", ["a_cvt_mini", "a_mvitv2_mini"])
def test_all_stages(device, name, both_ways):
    narrow = {"embed_dim": (8, 16, 16), "num_heads": (1, 1, 2), "depths": (1, 1, 1), "img_size": 16}
    model = ts.create_model(name, **narrow).to(device)
    with torch.no_grad():
        door = model.tokenize(torch.rand(2, 3, 16, 16, device=device))

    def last():
        tokens = door
        for stage in model.stage_list:
            tokens = stage(tokens)
        return tokens.values

    state = {key: value.clone() for key, value in model.state_dict().items()}

    def gradients():
        model.load_state_dict(state)
        model.train().zero_grad()
        last().square().sum().backward()
        return [parameter.grad.clone() for parameter in model.stages.parameters() if parameter.grad is not None]

    model.eval()
    with torch.no_grad():
        assert_same([both_ways(last)])
    for plain, fast in zip(*both_ways(gradients), strict=True):
        assert (plain - fast).abs().max() <= 1e-3 * plain.abs().max() + 1e-4
