"""Gradients reach weights and inputs, are right, and are as exact as the values."""

import pytest
import torch
from layer_zoo import make_layers
from torch import nn

import trueshift as ts
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_shift

LAYERS = {
    "tokenize": lambda: ts.AdaptiveTokenize(2, 3, 2, norm_layer=nn.LayerNorm),
    "tokenize, overlapping": lambda: ts.AdaptiveTokenize(2, 3, 2, kernel_size=3, padding=1),
    "align": lambda: ts.AlignWindows(2),
    "align, one window": lambda: ts.AlignWindows(4),
    "merge, norm before": lambda: ts.AdaptiveMerge(2, 3),
    "merge, norm after": lambda: ts.AdaptiveMerge(2, 3, norm="after"),
    "merge, convolution": lambda: ts.AdaptiveConvMerge(2, 3, anchor=True),
    "anchor": ts.Anchor,
    "convolution": lambda: ts.CircularConv2d(2, 3, 3),
    "window attention": lambda: ts.WindowAttention(2, 2, 1),
    "circular attention": lambda: ts.CircularAttention(2, 1, 4),
}


def given(layer, image):
    """An image as a layer takes it."""
    if isinstance(layer, ts.AdaptiveTokenize | ts.CircularConv2d):
        return image
    return image.permute(0, 2, 3, 1) if isinstance(layer, ts.WindowAttention) else ts.Tokens.of_image(image)


def output(layer, image):
    out = layer(given(layer, image))
    return out.values if isinstance(out, ts.Tokens) else out


def clear_image(layer):
    """A random image whose choice does not change within gradcheck's steps."""
    images = (torch.randn(1, 2, 4, 4, dtype=torch.float64) for _ in range(50))
    return next(x for x in images if not hasattr(layer, "choose") or layer.choose(given(layer, x)).margin.min() > 1e-3)


@pytest.mark.parametrize("name", LAYERS)
def test_every_parameter_and_pixel_gets_the_right_gradient(name):
    layer = LAYERS[name]().double()
    image = clear_image(layer).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: output(layer, x), (image, *layer.parameters()), fast_mode=True)
    layer, image = LAYERS[name](), torch.randn(2, 2, 4, 4, requires_grad=True)
    out = output(layer, image)
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert (image.grad != 0).all()


@pytest.mark.parametrize("name", ["tokenize", "tokenize, overlapping", "stages", "anchored attention"])
def test_anchored_gradients_are_bit_identical(name):
    layer = make_layers(16)[name]()
    image = torch.rand(3, 3, 16, 16)
    weight = torch.randn_like(layer(image).values)

    def gradients(offset):
        x = circular_shift(image, offset, IMAGE_DIMS).requires_grad_()
        at_image, *at_weights = torch.autograd.grad((layer(x).values * weight).sum(), (x, *layer.parameters()))
        return circular_shift(at_image, -offset, IMAGE_DIMS), *at_weights

    expected = gradients(torch.zeros(3, 2, dtype=torch.int64))
    for _ in range(8):
        assert all(map(torch.equal, gradients(torch.randint(16, (3, 2))), expected))


@pytest.mark.parametrize("make", [
    lambda criterion: ts.AdaptiveTokenize(2, 3, 2, criterion=criterion, anchor=isinstance(criterion, ts.LearnedScore)),
    lambda criterion: ts.AdaptiveMerge(2, 3, criterion=criterion),
    lambda criterion: ts.AlignWindows(2, criterion=criterion),
])  # fmt: skip
def test_straight_through_has_the_soft_gradient_and_the_hard_value(make):
    results, image = [], torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    for mode in ("soft", "straight_through"):
        torch.manual_seed(3)
        layer = make(ts.LearnedScore(2 if isinstance(make(None), ts.AlignWindows) else 3, 4, mode=mode)).double()

        def seeded(x, *_, layer=layer):
            torch.manual_seed(0)  # the same noise every time
            return output(layer, x)

        weight = torch.linspace(-1, 1, seeded(image).numel()).double().view_as(seeded(image))
        inputs = (image, *layer.parameters())
        results.append((seeded(image), torch.autograd.grad((seeded(image) * weight).sum(), inputs)))
        assert mode != "soft" or torch.autograd.gradcheck(seeded, inputs, fast_mode=True)
    (soft, soft_gradients), (hard, hard_gradients) = results
    assert all(map(torch.equal, soft_gradients, hard_gradients))
    assert not torch.equal(soft, hard)
    torch.manual_seed(0)
    for one, expected, offset in zip(image, hard, layer.choose(given(layer, image)).offset.tolist(), strict=True):
        fixed = make(ts.FixedOffset(tuple(offset))).double()
        fixed.load_state_dict({key: value for key, value in layer.state_dict().items() if "criterion" not in key})
        torch.testing.assert_close(output(fixed, one[None])[0], expected)
