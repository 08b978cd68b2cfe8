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


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("name", MERGES)
def test_as_with_gradient_and_bit_identical_behind_an_anchor(name, image):
    merge, content = MERGES[name](), IMAGES[image]()
    for parameter in merge.parameters():
        nn.init.normal_(parameter, std=0.3)
    expected = merge(Anchor()(ts.Tokens.of_image(content)))
    with torch.no_grad():
        found = merge(Anchor()(ts.Tokens.of_image(content)))
        assert torch.equal(found.grid.origin, expected.grid.origin)
        torch.testing.assert_close(found.values, expected.values, rtol=1e-4, atol=1e-4)
        for shift in ((1, 0), (0, 1), (5, 7), (2, 11)):
            moved = merge(Anchor()(ts.Tokens.of_image(content.roll(shift, (2, 3)))))
            assert torch.equal(moved.values, found.values)


@torch.no_grad()
def test_hooks_and_other_projections_are_heard():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer = ts.AdaptiveMerge(8, 16).eval()
    grid = ts.TokenGrid((4, 4), torch.zeros(2, 2, dtype=torch.int64), (24, 24), anchored=True)
    tokens, seen = ts.Tokens(torch.randn(2, 6, 6, 8), grid), []
    before = layer(tokens).values
    with layer.norm.register_forward_hook(lambda module, given, found: seen.append(module)):
        torch.testing.assert_close(layer(tokens).values, before)
    assert seen
    weight = layer.reduction.weight
    layer.reduction = Doubled(32, 16, bias=False)
    layer.reduction.weight = weight
    torch.testing.assert_close(layer(tokens).values, 2 * before)


class Halved(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) / 2


@pytest.mark.parametrize(
    "make", [nn.RMSNorm, Halved, lambda width: nn.LayerNorm(width, bias=False), lambda _: nn.Identity()]
)
def test_another_norm_is_applied_with_and_without_gradient(make):
    layer, tokens = ts.AdaptiveMerge(8, 16), Anchor()(ts.Tokens.of_image(torch.randn(2, 8, 6, 6)))
    layer.norm = make(32)
    with torch.no_grad():
        found = layer(tokens)
    expected = layer(tokens)
    assert torch.equal(found.grid.origin, expected.grid.origin)
    torch.testing.assert_close(found.values, expected.values)
