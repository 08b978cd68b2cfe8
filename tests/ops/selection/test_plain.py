"""Plain arithmetic is that of the definition in float32; exact arithmetic agrees with it to rounding."""

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.ops.selection.plain import EXACT, PLAIN

X = torch.randn(2, 8, 8, 12)
NORM = nn.LayerNorm(12)
nn.init.normal_(NORM.weight)
CASES = {
    "sum": lambda a: a.sum(X.double(), (1, 2)),
    "linear": lambda a: a.linear(X, torch.ones(5, 12) / 7),
    "conv": lambda a: a.conv(X, torch.ones(4, 12, 3, 3) / 9, (1, 1)),
    "depthwise": lambda a: a.conv(X, torch.ones(12, 1, 3, 3) / 9, (1, 1), 12),
    "layer_norm": lambda a: a.layer_norm(X, NORM),
    "norm": lambda a: a.norm(X, 2),
    "norm, p = 3": lambda a: a.norm(X, 3),
    "window_mean": lambda a: a.window_mean(a.norm(X, 2), (4, 2)),
    "window_mean, spanning": lambda a: a.window_mean(a.norm(X, 2), (8, 2)),
}


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_both_agree(case):
    exact, plain = CASES[case](EXACT), CASES[case](PLAIN)
    assert exact.dtype == torch.float64
    assert plain.dtype == (torch.float64 if case == "sum" else torch.float32)
    torch.testing.assert_close(exact.float(), plain.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [1, 2, 2.5])
def test_energies_agree_up_to_their_unit(p):
    ratio = EXACT.power_sum(X.double(), p).float() / PLAIN.power_sum(X, p)
    torch.testing.assert_close(ratio, ratio[:, :1, :1].expand_as(ratio), rtol=1e-4, atol=0)


@torch.no_grad()
def test_behind_an_anchor_tokens_are_still_scored_as_they_were_before_a_norm():
    """After a norm all tokens have the same norm, and rounding would choose."""
    tokens = ts.AdaptiveTokenize(3, 16, 4, norm_layer=nn.LayerNorm, anchor=False)(torch.rand(4, 3, 32, 32))
    anchored, align = ts.Anchor()(tokens), ts.AlignWindows(4)
    assert ts.Anchor().choose(tokens).margin.min() > 1e-5
    assert align.choose(anchored).margin.min() > 1e-5
    assert torch.equal(align(anchored).grid.origin % 16, align(tokens).grid.origin % 16)  # the same windows


@torch.no_grad()
def test_who_is_anchored():
    image = torch.rand(1, 3, 32, 32)
    for anchor in (False, True):
        tokens = ts.AdaptiveTokenize(3, 8, 4, anchor=anchor)(image)
        assert tokens.grid.anchored is anchor
        merged = ts.AdaptiveMerge(8)(ts.AlignWindows(4)(tokens))
        assert merged.grid.anchored is anchor
        assert ts.Anchor()(merged).grid.anchored
        assert ts.AdaptiveMerge(8, anchor=True)(tokens).grid.anchored
    mixed = ts.AdaptiveTokenize(3, 8, 4, criterion=ts.LearnedScore(8)).train()(image)
    assert not mixed.grid.anchored  # while a criterion is learned, grids are mixed and none has a first token
