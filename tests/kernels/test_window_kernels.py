"""Attention in windows and the choice after an anchor: kernels against the plain code they stand for."""

from dataclasses import replace

import pytest
import torch
from unchecked import in_own_process

import trueshift as ts
from trueshift.layers import CosineWindowAttention, WindowAttention
from trueshift.layers.attention import WindowCandidates
from trueshift.layers.tokenize import PatchCandidates
from trueshift.ops import kernels
from trueshift.ops.geometry.polyphase import coset_sum
from trueshift.ops.geometry.windows import window_energy
from trueshift.ops.nn.conv import project_patches
from trueshift.ops.selection.choose import choose

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
both_kinds = pytest.mark.parametrize("kind", [WindowAttention, CosineWindowAttention])


def attention(kind, window, **more):
    layer = kind(32, window, 2, **more)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    return layer.to(DEVICE)


def normal(*shape, **options):
    return torch.randn(shape, device=DEVICE, **options)


def anchored_grid(images, stride, size):
    origin = torch.zeros(images, 2, dtype=torch.int64, device=DEVICE)
    return ts.TokenGrid((stride, stride), origin, (size[0] * stride, size[1] * stride), anchored=True)


@pytest.fixture(autouse=True)
def _full_precision():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


SHIFTED = {"shifted": True}
STARTS = [[0, 0], [2, 1]]


@both_kinds
@pytest.mark.parametrize(
    ("window", "size", "start", "options"),
    [
        ((3, 4), (6, 8), None, {}),
        ((3, 4), (6, 8), None, SHIFTED),
        ((3, 4), (6, 8), STARTS, {}),
        ((3, 4), (6, 8), STARTS, SHIFTED),
        ((2, 2), (4, 4), None, SHIFTED),
        ((4, 4), (4, 8), None, SHIFTED),
        ((10, 10), (10, 20), None, SHIFTED),
        ((4, 4), (8, 12), None, {**SHIFTED, "border": True}),  # the ordinary network
        ((3, 4), (7, 6), None, {**SHIFTED, "cut_off": True}),  # windows that do not divide the grid
        ((3, 4), (5, 8), STARTS, {**SHIFTED, "cut_off": True}),
    ],
)
@torch.no_grad()
def test_attention_in_one_kernel_is_attention(kind, window, size, start, options, both_ways):
    layer = attention(kind, window, **options)
    plain, fused = both_ways(layer, normal(2, *size, 32), start and torch.tensor(start, device=DEVICE))
    torch.testing.assert_close(fused, plain, atol=2e-5, rtol=1e-4)


@both_kinds
@pytest.mark.parametrize(("border", "size"), [(False, (6, 8)), (True, (6, 8)), (False, (5, 7))])
def test_gradients_of_attention(kind, border, size, both_ways):
    layer = attention(kind, (3, 4), shifted=True, border=border, cut_off=True)
    x, goal = normal(2, *size, 32, requires_grad=True), normal(2, *size, 32)
    start = None if border else torch.tensor([[1, 3], [2, 0]], device=DEVICE)

    def gradients():
        return torch.autograd.grad((layer(x, start) * goal).sum(), [x, *layer.parameters()])

    for plain, fused in zip(*both_ways(gradients), strict=True):
        torch.testing.assert_close(fused, plain, atol=1e-4 * float(plain.abs().max()), rtol=1e-3)


@in_own_process
def test_gradients_in_a_compiled_graph():
    """The graph calls what eager code calls, forwards and backwards."""
    start, x = torch.tensor([[1, 3], [2, 0]], device=DEVICE), normal(2, 8, 8, 32, requires_grad=True)
    for kind in (WindowAttention, CosineWindowAttention):
        layer = attention(kind, 4, shifted=True)
        graph = torch.compile(layer, fullgraph=True, backend="aot_eager")
        with kernels.switched(True):
            eager, compiled = (
                torch.autograd.grad(network(x, start).square().sum(), [x, *layer.parameters()])
                for network in (layer, graph)
            )
        assert all(map(torch.equal, eager, compiled))


def test_second_derivatives_are_refused():
    layer, x = attention(WindowAttention, 4), normal(1, 4, 4, 32, requires_grad=True)
    with kernels.switched(True), pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)


@both_kinds
@torch.no_grad()
def test_attention_in_half_precision(kind):
    half = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter cannot multiply bfloat16
    layer, x = attention(kind, 4), normal(1, 8, 8, 32)
    exact = layer(x)
    with kernels.switched(True):
        fused = layer.to(half)(x.to(half)).float()
    assert (fused - exact).norm() < 0.03 * exact.norm()


MERGES = {
    "Swin": (8, lambda: ts.AdaptiveMerge(8, 24)),
    "Swin, with a bias": (16, lambda: ts.AdaptiveMerge(16, 16, bias=True)),
    "SwinV2": (8, lambda: ts.AdaptiveMerge(8, 20, norm="after")),
    "CvT": (8, lambda: ts.AdaptiveConvMerge(8, 24)),
    "other patches": (8, lambda: ts.AdaptiveMerge(8, 24, factor=(2, 3))),
}


@pytest.mark.parametrize("name", MERGES)
@torch.no_grad()
def test_energies_of_merges(name, both_ways):
    channels, make = MERGES[name]
    layer = make().to(DEVICE)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    candidates = layer.grids(layer, ts.Tokens(normal(2, 6, 12, channels) + 0.5, anchored_grid(2, 4, (6, 12))))
    plain = candidates.arithmetic.power_sum(candidates.features(), 2)
    with kernels.switched(True):
        torch.testing.assert_close(candidates.position_energy().sum(0), plain, rtol=1e-4, atol=1e-5)
    expected, chosen = both_ways(layer.criterion, candidates)
    assert torch.equal(chosen.offset, expected.offset)
    torch.testing.assert_close(chosen.scores[0], expected.scores[0].double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("size", "window"), [((6, 8), (3, 4)), ((6, 6), (6, 6)), ((4, 12), (4, 3)), ((14, 14), (7, 7))]
)
def test_the_choice_of_windows(size, window, both_ways):
    x = normal(5, *size, 8)
    x[1] = 1.0  # all tie: the first is taken
    x[2, :, : size[1] // 2] = x[2, :, size[1] // 2 :]  # repeats
    plain, fused = both_ways(ts.MaxNorm(), WindowCandidates(x, window, 2, anchored_grid(5, 1, size)))
    assert torch.equal(plain.offset, fused.offset)
    torch.testing.assert_close(fused.scores[0], plain.scores[0].double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("images", [1, 3])
def test_few_images_are_shared_by_programs(images):
    scores = torch.rand(2, images, 16, 24, device=DEVICE)
    sums = coset_sum(scores.double().sum(0), (2, 2))
    windows = coset_sum(window_energy(scores[0].double(), (4, 4)).square(), (4, 4))
    for given, size, expected in ((scores, [2, 2], sums), (scores[0], [4, 4], windows)):
        offset, totals = kernels.choose.pick_by_total(given, size, size == [4, 4], 1e-9)
        assert torch.allclose(totals, expected)
        assert torch.equal(offset, choose((expected,), None).offset)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_scores_that_are_no_numbers_choose_the_first():
    layer = ts.AdaptiveTokenize(3, 16, 2).to(DEVICE)
    pixels = ts.Tokens.of_image(torch.full((1, 3, 8, 8), float("nan"), device=DEVICE))
    candidates = PatchCandidates(layer, replace(pixels, grid=replace(pixels.grid, anchored=True)))
    with kernels.switched(True):
        assert ts.MaxNorm()(candidates).offset.tolist() == [[0, 0]]


@pytest.mark.parametrize(("patch", "kernel", "padding"), [(4, 4, 0), (4, 4, 1), (4, 7, 2), (2, 3, 1)])
@pytest.mark.parametrize("mode", ["circular", "zeros", "circular_width"])
def test_patches_are_projected_as_by_a_convolution(patch, kernel, padding, mode, both_ways):
    layer = ts.AdaptiveTokenize(3, 24, patch, kernel, padding, padding_mode=mode).to(DEVICE)
    image, start = normal(3, 3, 16, 24), torch.tensor([[0, 0], [15, 23], [5, 7]], device=DEVICE)

    def project():
        values = project_patches(image, layer.proj, start, layer.patch_size, layer.padding, mode)
        return values.detach(), *torch.autograd.grad(values.square().sum(), list(layer.proj.parameters()))

    for plain, fused in zip(*both_ways(project), strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4 * float(plain.abs().max()))
