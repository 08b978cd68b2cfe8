"""The heart: at every shift, bit for bit, on every kind of image."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_zoo import LAYERS, OnPixels, make_layers
from torch import nn

import trueshift as ts
from trueshift.ops.geometry.shift import pair
from trueshift.testing import assert_equivariant, hostile_images, photographs


def build(name: str, size: int, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make_layers(size)[name]().eval()


def all_images(size: int) -> torch.Tensor:
    return torch.stack([*hostile_images(size).values(), *photographs(size).values()])


CORE = ("tokenize", "align", "merge, norm before", "merge, convolution", "tokenize, overlapping", "stages")


def test_all_shifts_of_16_pixels():
    """Of one layer; the others have fewer shifts in the default run, all of them in the slow one."""
    assert_equivariant(build("anchor", 16), all_images(16), shifts="all")


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_all_shifts_of_32_pixels(name):
    assert_equivariant(build(name, 32), all_images(32), shifts="all")
    if name in CORE:
        assert_equivariant(build(name, 56), all_images(56), shifts="all")


@pytest.mark.parametrize("name", LAYERS)
def test_some_shifts_of_40_pixels(name):
    """As 56 no power of two, in half the time."""
    assert_equivariant(build(name, 40), all_images(40), shifts=6)


@pytest.mark.parametrize("name", LAYERS)
def test_photographs_at_224(name):
    assert_equivariant(build(name, 224), torch.stack(list(photographs(224).values())[:1]), shifts=3)


@pytest.mark.parametrize("patch", [2, 3, 5, 8, pytest.param(16, marks=pytest.mark.slow), (4, 2), (3, 6)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_any_patch_and_channels(patch, channels):
    rows, columns = pair(patch)
    layer = ts.AdaptiveTokenize(channels, 12, patch)
    size = (rows * 6, columns * 4) if rows < 8 else (rows * 3, columns * 2)  # large patches, small grids
    assert_equivariant(layer, size=size, channels=channels, shifts=8 if rows < 16 else 4)


@pytest.mark.parametrize("kernel", [4, 5, 7, 11])
def test_any_kernel(kernel):
    layer = ts.AdaptiveTokenize(3, 12, 4, kernel_size=kernel, padding=(kernel - 4) // 2)
    assert_equivariant(layer, size=(16, 24), shifts=8)


def test_attention_over_all_tokens_is_equal_to_rounding_without_an_anchor():
    layer = nn.Sequential(ts.AdaptiveTokenize(3, 16, 4, anchor=False), ts.CircularAttention(16, 2, 8)).eval()
    usual = {name: image for name, image in hostile_images(32).items() if name != "huge"}
    assert_equivariant(layer, torch.stack(list(usual.values())), shifts=16, tolerance=1e-6)


def test_circular_convolution_is_equal_to_rounding_without_an_anchor():
    for groups in (1, 4):
        usual = torch.rand(6, 4, 32, 32)
        assert_equivariant(ts.CircularConv2d(4, 8, 3, groups=groups), usual, shifts=16, tolerance=1e-6)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data(), name=st.sampled_from(CORE), levels=st.integers(1, 4))
def test_search_for_a_counterexample(data, name, levels):
    """Images of few levels with much symmetry: where ties live."""
    tile = data.draw(st.sampled_from([(2, 2), (3, 3), (4, 2), (5, 16), (16, 16)]))
    cells = data.draw(st.lists(st.integers(0, levels), min_size=tile[0] * tile[1], max_size=tile[0] * tile[1]))
    plane = torch.tensor(cells, dtype=torch.float32).view(tile)
    plane = plane.repeat(16 // tile[0] + 1, 16 // tile[1] + 1)[:16, :16]
    flip = data.draw(st.sampled_from([(), (0,), (1,), (0, 1)]))
    plane = plane + plane.flip(flip) if flip else plane
    row, column = data.draw(st.tuples(st.integers(0, 15), st.integers(0, 15)))
    plane[row, column] += data.draw(st.sampled_from([0.0, 1.0, -1.0, 1e-7, 1e-30]))
    image, rounding = plane.expand(1, 3, 16, 16).clone(), 0.0
    if name == "merge, convolution":  # oneDNN rounds by place on some CPUs; an anchor hides it
        rounding = 1e-6
        assert_equivariant(OnPixels(ts.AdaptiveConvMerge(3, 8, anchor=True)), image, shifts=24)
    assert_equivariant(build(name, 16), image, shifts=24, tolerance=rounding)
