"""The same choice in every precision, under autocast, and for every place in the batch."""

import pytest
import torch
from layer_zoo import make_layers

import trueshift as ts
from trueshift.testing import assert_equivariant, hostile_images, photographs

CHOOSERS = ("tokenize", "tokenize, overlapping", "tokenize, p = 1", "tokenize, learned", "align", "merge, norm before",
            "merge, convolution")  # fmt: skip


def images(dtype: torch.dtype) -> torch.Tensor:
    batch = torch.stack([*hostile_images(16).values(), *photographs(16).values()])
    largest = min(torch.finfo(dtype).max, 1e38) / 1e3
    return batch.clamp(-largest, largest).to(dtype)


def choices(layer, x):
    """Each layer's choice as a map that moves with the image: where its tokens start."""
    chooser = getattr(layer, "layer", layer)
    choice = chooser.choose(ts.Tokens.of_image(x) if chooser is not layer else x)
    stride = getattr(chooser, "patch_size", None) or getattr(chooser, "factor", None) or chooser.window_size
    grid = ts.TokenGrid.of_image(x).advance(choice.offset, stride)
    return ts.Tokens(x.new_ones(x.shape[0], *grid.shape, 1), grid)


HALVES = (torch.float16, torch.bfloat16)
USUAL = pytest.param(torch.float32, marks=pytest.mark.slow)  # in test_shift_laws.py


@pytest.mark.parametrize("dtype", [torch.float64, USUAL, *HALVES])
@pytest.mark.parametrize("name", CHOOSERS)
@pytest.mark.parametrize("shifts", [8, pytest.param("all", marks=pytest.mark.slow)])
def test_choice_moves_with_the_image(name, dtype, shifts):
    layer = make_layers(16)[name]().eval().to(dtype)
    assert_equivariant(lambda x: choices(layer, x), images(dtype), shifts=shifts)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CHOOSERS)
def test_low_precision_weights_and_values_choose_as_their_float32_copies(name, dtype):
    """Scores are derived from the values as given: widening them changes nothing."""
    low = make_layers(16)[name]().eval().to(dtype)
    high = make_layers(16)[name]().eval()
    high.load_state_dict(low.state_dict())
    x = images(dtype)
    assert torch.equal(choices(low, x).grid.origin, choices(high, x.float()).grid.origin)


@pytest.mark.parametrize("name", ["tokenize", pytest.param("stages", marks=pytest.mark.slow)])
def test_autocast_is_bit_identical_and_does_not_touch_the_choice(name):
    layer = make_layers(16)[name]().eval()
    x = torch.stack([image for n, image in hostile_images(16).items() if n != "huge"])

    def lowered(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    assert lowered(x).values.dtype in (torch.bfloat16, torch.float32)
    assert_equivariant(lowered, x, shifts=16)
    if name == "tokenize":
        assert torch.equal(lowered(x).grid.origin, layer(x).grid.origin)


@pytest.mark.parametrize("name", CHOOSERS)
def test_choice_does_not_depend_on_the_rest_of_the_batch(name):
    layer = make_layers(16)[name]().eval()
    x = images(torch.float32)
    together = choices(layer, x).grid.origin
    alone = torch.cat([choices(layer, image[None]).grid.origin for image in x])
    assert torch.equal(together, alone)
