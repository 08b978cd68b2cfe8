"""Convolutions by fewer products, and norms folded into them: the same numbers as by the definition."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trueshift.ops.geometry.polyphase import polyphase, take_phase
from trueshift.ops.geometry.shift import circular_pad, circular_shift, circular_take
from trueshift.ops.nn.fold_layernorm import fold_norm, patch_variance
from trueshift.ops.nn.winograd import winograd_phases

KERNELS = [((2, 2), (0, 0)), ((3, 3), (1, 1)), ((3, 3), (0, 2)), ((2, 3), (1, 1))]


def definition(x, weight, before):
    """Every position's own sum of products."""
    (rows, columns), (up, left) = weight.shape[1:3], before
    padded = circular_pad(x, (up, rows - 1 - up), (left, columns - 1 - left)).permute(0, 3, 1, 2)
    return F.conv2d(padded, weight.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


@pytest.mark.parametrize(("kernel", "before"), KERNELS)
def test_phases_are_those_of_the_convolution(kernel, before):
    x, weight = torch.randn(2, 6, 8, 5, dtype=torch.float64), torch.randn(7, *kernel, 5, dtype=torch.float64)
    phases = winograd_phases(x, weight, before)
    torch.testing.assert_close(phases, polyphase(definition(x, weight, before), 2), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kernel", "before"), KERNELS)
def test_float32_is_as_close_as_the_plain_convolution(kernel, before):
    x, weight = torch.randn(2, 16, 16, 64), torch.randn(32, *kernel, 64)
    exact = definition(x.double(), weight.double(), before)
    error = (winograd_phases(x, weight, before) - polyphase(exact, 2)).abs().max()
    assert error <= 2 * (definition(x, weight, before) - exact).abs().max()


@pytest.mark.parametrize("shift", [(1, 0), (0, 1), (3, 5), (2, 4)])
def test_phases_move_with_the_image(shift):
    x, weight = torch.randn(2, 8, 12, 3, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    before, after = winograd_phases(x, weight, (1, 1)), winograd_phases(circular_shift(x, shift), weight, (1, 1))
    for row in (0, 1):
        for column in (0, 1):
            (down, right) = (row + shift[0], column + shift[1])
            same = circular_shift(before[:, down % 2, right % 2], (down // 2, right // 2))
            torch.testing.assert_close(after[:, row, column], same, rtol=0, atol=1e-12)


def test_a_phase_is_taken_as_from_the_whole():
    x, offset = torch.randn(4, 6, 9, 2), torch.tensor([[0, 0], [1, 2], [1, 0], [0, 1]])
    assert torch.equal(take_phase(polyphase(x, (2, 3)), offset), circular_take(x, offset, (2, 3)))


@pytest.mark.parametrize("column_first", [False, True])
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_a_folded_norm_is_the_norm(column_first, mean):
    x, weight = torch.randn(2, 6, 4, 5).double() + mean, torch.randn(7, 2, 3, 5).double()
    bias, norm = torch.randn(7).double(), nn.LayerNorm(30).double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    windows = circular_pad(x, (0, 1), (0, 2)).unfold(1, 2, 1).unfold(2, 3, 1)  # B H W C 2 3
    order = (0, 1, 2, 5, 4, 3) if column_first else (0, 1, 2, 4, 5, 3)
    rows = (weight.transpose(1, 2) if column_first else weight).flatten(1)
    expected = F.linear(norm(windows.permute(order).flatten(3)), rows, bias)

    folded, added = fold_norm(weight, bias, norm, column_first)
    scale = (patch_variance(x, (2, 3)) + norm.eps).rsqrt()[..., None]
    torch.testing.assert_close(definition(x, folded, (0, 0)) * scale + added, expected, rtol=0, atol=1e-9)
