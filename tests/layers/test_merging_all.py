"""Without gradient, merges after an anchor are scored and taken from one pass: the choice and the values stay."""

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.layers import AdaptiveConvMerge, AdaptiveMerge, Anchor

MERGES = {
    "norm before": lambda: AdaptiveMerge(24, bias=True),
    "norm after": lambda: AdaptiveMerge(24, norm="after", bias=True),
    "no norm": lambda: AdaptiveMerge(24, norm="none"),
    "three by two": lambda: AdaptiveMerge(24, factor=(3, 2)),
    "overlapping": lambda: AdaptiveConvMerge(24, 40),
    "depthwise": lambda: AdaptiveConvMerge(24, 24, groups=24),
    "zeros around": lambda: AdaptiveConvMerge(24, 40, padding_mode="zeros"),
}
IMAGES = {
    "noise": lambda: torch.randn(3, 24, 12, 12),
    "far from zero": lambda: 20 + torch.randn(3, 24, 12, 12),
    "flat": lambda: torch.randn(3, 24, 1, 1).expand(-1, -1, 12, 12),
    "nothing": lambda: torch.zeros(3, 24, 12, 12),
    "periodic": lambda: torch.randn(3, 24, 2, 6).repeat(1, 1, 6, 2),
}


def assert_same_with_gradient(merge, tokens):
    expected = merge(tokens)
    with torch.no_grad():
        found = merge(tokens)
    assert torch.equal(found.grid.origin, expected.grid.origin)
    torch.testing.assert_close(found.values, expected.values, rtol=1e-4, atol=1e-4)
    return found.values


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("name", MERGES)
def test_as_with_gradient_and_bit_identical_behind_an_anchor(name, image):
    merge, content = MERGES[name](), IMAGES[image]()
    for parameter in merge.parameters():
        nn.init.normal_(parameter, std=0.3)
    found = assert_same_with_gradient(merge, Anchor()(ts.Tokens.of_image(content)))
    with torch.no_grad():
        for shift in ((1, 0), (0, 1), (5, 7), (2, 11)):
            assert torch.equal(merge(Anchor()(ts.Tokens.of_image(content.roll(shift, (2, 3))))).values, found)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Halved(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) / 2


def test_hooks_and_other_projections_and_norms_are_heard():
    layer, tokens, seen = ts.AdaptiveMerge(8, 16), Anchor()(ts.Tokens.of_image(torch.randn(2, 8, 6, 6))), []
    before = assert_same_with_gradient(layer, tokens)
    with layer.norm.register_forward_hook(lambda module, given, found: seen.append(module)):
        torch.testing.assert_close(assert_same_with_gradient(layer, tokens), before)
    assert len(seen) == 2
    weight = layer.reduction.weight
    layer.reduction = Doubled(32, 16, bias=False)
    layer.reduction.weight = weight
    torch.testing.assert_close(assert_same_with_gradient(layer, tokens), 2 * before)
    for norm in (nn.RMSNorm(32), Halved(32), nn.LayerNorm(32, bias=False), nn.Identity()):
        layer.norm = norm
        assert_same_with_gradient(layer, tokens)
