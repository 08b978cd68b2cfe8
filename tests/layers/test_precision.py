"""The same choice in every precision and for every place in the batch."""

import pytest
import torch
from layer_zoo import make_layers

import trueshift as ts
from trueshift.testing import assert_equivariant, hostile_images, photographs

CHOOSERS = ("tokenize", "tokenize, overlapping", "tokenize, p = 2.5", "tokenize, learned", "align",
            "merge, norm before", "merge, convolution")  # fmt: skip
every_chooser = pytest.mark.parametrize("name", CHOOSERS)


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


@pytest.mark.parametrize("shifts", [8, pytest.param("all", marks=pytest.mark.slow)])
@every_chooser
def test_choice_moves_with_the_image_in_float64(name, shifts):
    """In float32 see test_shift_laws.py; that of half precision is the same, see below."""
    layer = make_layers(16)[name]().eval().double()
    assert_equivariant(lambda x: choices(layer, x), images(torch.float64), shifts=shifts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_chooser
def test_low_precision_weights_and_values_choose_as_their_float32_copies(name, dtype):
    """Scores are derived from the values as given: widening them changes nothing."""
    low, high = (make_layers(16)[name]().eval() for _ in range(2))
    high.load_state_dict(low.to(dtype).state_dict())
    x = images(dtype)
    assert torch.equal(choices(low, x).grid.origin, choices(high, x.float()).grid.origin)


@every_chooser
def test_choice_does_not_depend_on_the_rest_of_the_batch(name):
    layer, x = make_layers(16)[name]().eval(), images(torch.float32)
    alone = torch.cat([choices(layer, image[None]).grid.origin for image in x])
    assert torch.equal(choices(layer, x).grid.origin, alone)
