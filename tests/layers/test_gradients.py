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


def apply(name, layer, image):
    if name.startswith(("tokenize", "convolution")):
        out = layer(image)
    elif name == "window attention":
        out = layer(image.permute(0, 2, 3, 1))
    else:
        out = layer(ts.Tokens.of_image(image))
    return out.values if isinstance(out, ts.Tokens) else out


def clear_image(name, layer):
    """A random image whose choice does not change within gradcheck's steps."""
    for _ in range(50):
        image = torch.randn(1, 2, 4, 4, dtype=torch.float64)
        if not hasattr(layer, "choose"):
            return image
        choice = layer.choose(image if name.startswith("tokenize") else ts.Tokens.of_image(image))
        if choice.margin.min() > 1e-3:
            return image
    raise AssertionError("no image with a clear choice")


@pytest.mark.parametrize("name", LAYERS)
def test_every_parameter_and_pixel_gets_the_right_gradient(name):
    layer = LAYERS[name]().double()
    image = clear_image(name, layer).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: apply(name, layer, x), (image, *layer.parameters()), fast_mode=True)
    layer, image = LAYERS[name](), torch.randn(2, 2, 4, 4, requires_grad=True)
    out = apply(name, layer, image)
    (out * torch.randn_like(out)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert (image.grad != 0).all()


@pytest.mark.parametrize(
    "name", ["tokenize", "tokenize, overlapping", "stages", "stages, convolutional", "anchored attention"]
)
def test_anchored_gradients_are_bit_identical(name):
    layer = make_layers(16)[name]()
    image = torch.rand(3, 3, 16, 16)
    weight = torch.randn_like(layer(image).values)

    def gradients(x):
        layer.zero_grad()
        x = x.clone().requires_grad_()
        (layer(x).values * weight).sum().backward()
        return x.grad, [p.grad.clone() for p in layer.parameters()]

    at_image, at_weights = gradients(image)
    for _ in range(16):
        offset = torch.randint(16, (3, 2))
        moved_image, moved_weights = gradients(circular_shift(image, offset, IMAGE_DIMS))
        assert torch.equal(circular_shift(moved_image, -offset, IMAGE_DIMS), at_image)
        assert all(torch.equal(a, b) for a, b in zip(moved_weights, at_weights, strict=True))


@pytest.mark.parametrize("make", [
    lambda criterion: ts.AdaptiveTokenize(2, 3, 2, criterion=criterion),
    lambda criterion: ts.AdaptiveMerge(2, 3, criterion=criterion),
    lambda criterion: ts.AlignWindows(2, criterion=criterion),
])  # fmt: skip
class TestLearnedScore:
    def output(self, layer, image, seed=0):
        torch.manual_seed(seed)  # the same noise every time
        out = layer(image) if isinstance(layer, ts.AdaptiveTokenize) else layer(ts.Tokens.of_image(image))
        return out.values

    def build(self, make, mode):
        torch.manual_seed(3)
        scored = 2 if isinstance(make(None), ts.AlignWindows) else 3
        return make(ts.LearnedScore(scored, 4, mode=mode)).double()

    def test_soft_mode_passes_gradcheck(self, make):
        layer = self.build(make, "soft")
        image = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda x, *_: self.output(layer, x), (image, *layer.parameters()), fast_mode=True
        )

    def test_straight_through_has_the_soft_gradient_and_the_hard_value(self, make):
        results = {}
        for mode in ("soft", "straight_through"):
            layer = self.build(make, mode)
            torch.manual_seed(5)
            image = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)
            out = self.output(layer, image)
            weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
            (out * weight).sum().backward()
            results[mode] = out.detach(), [image.grad, *(p.grad for p in layer.parameters())]
        soft, hard = results["soft"], results["straight_through"]
        assert all(torch.equal(a, b) for a, b in zip(soft[1], hard[1], strict=True))
        assert not torch.equal(soft[0], hard[0])
        torch.manual_seed(0)
        offset = layer.choose(image if isinstance(layer, ts.AdaptiveTokenize) else ts.Tokens.of_image(image)).offset
        fixed = [make(ts.FixedOffset(tuple(o.tolist()))).double() for o in offset]
        for one in fixed:
            if hasattr(one, "anchor"):
                one.anchor = False
            one.load_state_dict({k: v for k, v in layer.state_dict().items() if "criterion" not in k})
        expected = torch.cat([self.output(one, single[None]) for one, single in zip(fixed, image, strict=True)])
        torch.testing.assert_close(hard[0], expected)
