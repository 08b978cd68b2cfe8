"""Layers along one axis: columns go around as ever, rows are those of the ordinary layer."""

from collections.abc import Callable

import pytest
import torch
from layer_zoo import Busiest, InWindows, OnPixels
from torch import Tensor, nn

import trueshift as ts
from trueshift.layers.pool import max_pool, pool_sequences
from trueshift.ops.geometry.interpolate import enlarge
from trueshift.testing import assert_equivariant

SIZE = (8, 16)


class Brightest(ts.Criterion):
    """Scores all grids at once, and ties often."""

    def scores(self, candidates):
        return candidates.total((candidates.content[..., 0] > 0.5).double())


def tokenize(*arguments, **named) -> nn.Module:
    return ts.AdaptiveTokenize(3, 8, *arguments, circular="width", **named)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "tokenize": lambda: tokenize(4),
    "tokenize, oblong": lambda: tokenize((2, 8), anchor=False),
    "tokenize, overlapping": lambda: tokenize(4, 7, 2),
    "tokenize, closed": lambda: tokenize(4, 7, 2, padding_mode="zeros", closed=True),
    "tokenize, learned": lambda: tokenize(4, criterion=ts.LearnedScore(8)),
    "tokenize, own": lambda: tokenize(4, criterion=Busiest(), anchor=False),
    "tokenize, own scores": lambda: tokenize(4, criterion=Brightest()),
    "align": lambda: OnPixels(ts.AlignWindows((2, 4)), True),
    "align, windows that span the grid": lambda: OnPixels(ts.AlignWindows(SIZE), True),
    "merge": lambda: OnPixels(ts.AdaptiveMerge(3, anchor=True), True),
    "merge, convolution": lambda: OnPixels(
        ts.AdaptiveConvMerge(3, 8, anchor=True, padding_mode="circular_width"), True
    ),
    "stages": lambda: nn.Sequential(
        tokenize(2),
        ts.AlignWindows((2, 4), criterion=Busiest()),
        InWindows(ts.WindowAttention(8, (2, 4), 2, shifted=True, circular="width")),
        ts.Anchor(),
        ts.AdaptiveMerge(8),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_shift_law(name):
    layer = LAYERS[name]().eval()
    assert_equivariant(layer, size=SIZE, shifts=6, circular="width")
    image = torch.rand(4, 3, *SIZE)
    grid = layer(image).grid
    assert not grid.origin[:, 0].any()
    assert grid.fixed_rows
    if not name.startswith("align"):  # which moves pixels and computes nothing
        with pytest.raises(AssertionError, match="does not hold"):
            assert_equivariant(layer, image, shifts=4)


# -- rows are ordinary: on an image repeated side by side, the ordinary layer's middle --------------------------------


def pooled(values: Tensor, mode: str) -> Tensor:
    conv = nn.Conv2d(4, 4, 3, groups=4, bias=False)
    grid = ts.TokenGrid.of_image(values.permute(0, 3, 1, 2), fixed_rows=True)
    (pooled,), choice = pool_sequences([values], [conv], ts.FixedOffset(), (2, 2), (1, 1), grid, mode)
    largest = max_pool(values, choice, (2, 2), mode)
    return torch.cat([pooled.unflatten(1, largest.shape[1:3]), largest], 3)


def resampled(values: Tensor, mode: str) -> Tensor:
    size, origin = (16, 2 * values.shape[2]), torch.zeros(len(values), 2, dtype=torch.int64)
    tokens = ts.Tokens(values, ts.TokenGrid((2, 2), origin, size, fixed_rows=True))
    return ts.resample(tokens, ts.TokenGrid((1, 1), origin.clone(), size)).values


def windows(mode: str, window: tuple[int, int], **more: bool) -> nn.Module:
    attention = ts.WindowAttention(4, window, 2, shifted=True, border=mode == "zeros", circular="width", **more)
    nn.init.normal_(attention.relative_position_bias_table)
    return attention


ORDINARY = {"criterion": ts.FixedOffset(), "anchor": False}
OPERATIONS = {
    "pool": pooled,
    "merge": lambda x, mode: (
        OnPixels(ts.AdaptiveConvMerge(4, 5, padding_mode=mode, **ORDINARY), True)(x.permute(0, 3, 1, 2)).values
    ),
    "tokenize": lambda x, mode: (
        ts.AdaptiveTokenize(4, 5, 4, 7, 2, padding_mode=mode, circular="width", **ORDINARY)(
            x.permute(0, 3, 1, 2)
        ).values
    ),
    "windows": lambda x, mode: windows(mode, (4, 8))(x, torch.zeros(len(x), 2, dtype=torch.int64)),
    "windows that do not divide the rows": lambda x, mode: windows(mode, (5, 8), cut_off=True)(x),
    "enlarge": lambda x, mode: enlarge(x, (16, 2 * x.shape[2]), (False, mode != "zeros")),
    "enlarge by parts": lambda x, mode: enlarge(x, (12, 3 * x.shape[2] // 2), (False, mode != "zeros")),
    "resample": resampled,
}


@pytest.mark.parametrize("name", OPERATIONS)
@torch.no_grad()
def test_rows_are_those_of_the_ordinary_layer(name):
    values, found = torch.randn(2, *SIZE, 4), []
    for x, mode in ((values, "circular_width"), (torch.cat([values] * 3, 2), "zeros")):
        torch.manual_seed(0)
        found.append(OPERATIONS[name](x, mode))
    torch.testing.assert_close(found[0], found[1].chunk(3, 2)[1])


def test_a_learned_choice_is_mixed_along_the_columns():
    layer = tokenize((2, 4), criterion=ts.LearnedScore(8)).train()
    image = torch.rand(2, 3, *SIZE, requires_grad=True)
    assert layer.choose(image).weights.shape == (2, 1, 4)
    layer(image).values.square().sum().backward()
    assert layer.criterion.hidden.weight.grad.any()
    align = ts.AlignWindows((4, 4), criterion=ts.LearnedScore(3)).train()
    assert align(ts.Tokens.of_image(image, fixed_rows=True)).values.shape == (2, *SIZE, 3)


def test_random_grids_start_in_the_first_row():
    layer = tokenize(4, anchor=False).train()
    layer.criterion.grid_drop_rate = 1.0
    offset = layer.choose(torch.rand(64, 3, *SIZE)).offset
    assert not offset[:, 0].any()
    assert offset[:, 1].unique().tolist() == [0, 1, 2, 3]
