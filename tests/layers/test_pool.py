"""Pooling of maps that belong together: one phase for all, and the ordinary layers at a fixed one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trueshift as ts
from trueshift.layers.pool import max_pool, pool_sequences
from trueshift.ops.nn.depthwise import depthwise
from trueshift.testing import assert_equivariant

STRIDE = (2, 2)


def depthwise_conv(channels: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 3, groups=channels, bias=False)


class Pooled(nn.Module):
    """Keys, values and a skip, all on one chosen grid; after an anchor, as in a network."""

    def __init__(self, criterion: ts.Criterion, anchor: bool) -> None:
        super().__init__()
        self.anchor = ts.Anchor() if anchor else nn.Identity()
        self.convs = nn.ModuleList([depthwise_conv(3), depthwise_conv(3)])
        self.criterion = criterion

    def forward(self, image):
        tokens = self.anchor(ts.Tokens.of_image(image))
        maps = [tokens.values, tokens.values.flip(3)]
        pooled, choice = pool_sequences(maps, list(self.convs), self.criterion, STRIDE, (1, 1), tokens.grid)
        grid = tokens.grid.advance(choice.offset, STRIDE)
        parts = [part.unflatten(1, grid.shape) for part in pooled]
        return tuple(ts.Tokens(part, grid) for part in [*parts, max_pool(tokens.values, choice, STRIDE)])


@torch.no_grad()
def test_shift_law():
    assert_equivariant(Pooled(ts.MaxNorm(), anchor=True), size=16, shifts=12)
    assert_equivariant(Pooled(ts.MaxNorm(), anchor=False), torch.rand(8, 3, 16, 16), shifts=12, tolerance=1e-6)
    with pytest.raises(AssertionError):
        assert_equivariant(Pooled(ts.FixedOffset(), anchor=False), torch.rand(2, 3, 16, 16), tolerance=1e-6)


@torch.no_grad()
def test_a_fixed_phase_is_the_ordinary_layer():
    values = torch.randn(2, 8, 12, 3)
    image, conv = values.permute(0, 3, 1, 2), depthwise_conv(3)
    grid = ts.TokenGrid.of_image(image)
    (pooled,), choice = pool_sequences([values], [conv], ts.FixedOffset(), STRIDE, (1, 1), grid, "zeros")
    torch.testing.assert_close(pooled.mT.unflatten(2, (4, 6)), F.conv2d(image, conv.weight, None, 2, 1, groups=3))
    assert torch.equal(max_pool(values, choice, STRIDE, "zeros").permute(0, 3, 1, 2), F.max_pool2d(image, 3, 2, 1))
    (pooled,), choice = pool_sequences([values], [conv], ts.MaxNorm(), (1, 1), (1, 1), grid)
    assert choice is None  # at stride 1 there is nothing to choose
    assert pooled.shape == (2, 96, 3)


@torch.no_grad()
def test_a_narrow_convolution_serves_each_head():
    values, weight = torch.randn(2, 8, 8, 12), depthwise_conv(4).weight
    heads = [depthwise(part, weight, STRIDE, (1, 1)) for part in values.split(4, 3)]
    torch.testing.assert_close(depthwise(values, weight, STRIDE, (1, 1)), torch.cat(heads, 3))


def test_a_learned_choice_is_trained_through_all_maps():
    layer = Pooled(ts.LearnedScore(6), anchor=False).train()
    sum(part.values.square().sum() for part in layer(torch.rand(2, 3, 8, 8))).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
