import math

import pytest
import torch
import torch.nn.functional as F

from trueshift.ops.geometry.polyphase import coset_max, coset_sum, polyphase
from trueshift.ops.selection.exact import (
    exact_conv,
    exact_linear,
    exact_power,
    exact_sum,
    power_of_two_above,
    quantise,
)


def test_powers_of_two_above_and_when_exported(monkeypatch):
    values = torch.tensor([0.0, 1e-300, 5e-324, 1.0, 1.5, 2.0, 3.0, 1e30, 1e300], dtype=torch.float64)
    powers = power_of_two_above(values)
    assert (powers > values).all()
    assert torch.equal(powers.log2(), powers.log2().round())
    assert ((powers <= 2 * values) | (values < 2.0**-900)).all()
    assert (1 / powers).isfinite().all()
    powers = 2.0 ** torch.arange(-1074, 1024, dtype=torch.float64)
    below = torch.nextafter(powers, torch.zeros_like(powers))
    special = torch.tensor([0.0, math.inf, math.nan, torch.finfo(torch.float64).max], dtype=torch.float64)
    anything = torch.randint(0, 2**63 - 1, (2000,)).view(torch.float64)
    peaks = torch.cat([powers, below, special, anything]).view(-1, 1, 1, 1)
    usual = power_of_two_above(peaks)
    monkeypatch.setattr(torch.compiler, "_is_exporting_flag", True)
    assert torch.equal(power_of_two_above(peaks), usual)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_quantise_rounds_to_whole_units(dtype):
    x = torch.randn(4, 3, 5, 5).mul(torch.tensor([1e-30, 1.0, 7.0, 1e20]).view(4, 1, 1, 1)).to(dtype)
    integers, unit = quantise(x, 20)
    assert torch.equal(integers, integers.round())
    assert integers.abs().amax() <= 2**20
    assert (integers.abs().amax((1, 2, 3)) >= 2**19).all()
    assert ((integers * unit - x.double()).abs() <= unit / 2).all()


def test_sums_and_products_do_not_depend_on_order_and_are_close():
    x, weight, order = torch.randn(2, 50, 33, dtype=torch.float64), torch.randn(7, 33), torch.randperm(33)
    assert torch.equal(exact_sum(x, (2,)), exact_sum(x[..., order], (2,)))
    torch.testing.assert_close(exact_sum(x, (1, 2)), x.sum((1, 2)), rtol=1e-10, atol=1e-9)
    assert torch.equal(exact_linear(x, weight), exact_linear(x[..., order], weight[:, order]))
    torch.testing.assert_close(exact_linear(x, weight), x @ weight.double().T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("groups", "kernel"), [(1, (3, 3)), (4, (3, 2)), (2, (1, 5))])
def test_conv_is_the_circular_one(groups, kernel):
    x, weight = torch.randn(2, 6, 8, 4), torch.randn(8, 4 // groups, *kernel)
    padding = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2)
    pad = (padding[1], kernel[1] - 1 - padding[1], padding[0], kernel[0] - 1 - padding[0])
    wide = F.pad(x.permute(0, 3, 1, 2).double(), pad, mode="circular")
    expected = F.conv2d(wide, weight.double(), groups=groups).permute(0, 2, 3, 1)
    out = exact_conv(x, weight, padding, groups)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(exact_conv(x.roll((1, 3), (1, 2)), weight, padding, groups), out.roll((1, 3), (1, 2)))


@pytest.mark.parametrize("p", [1, 2, 3, 7, 0.5, 1.5, 2.25, 1 / 3, math.pi])
def test_power(p):
    x = torch.rand(1001, dtype=torch.float64)
    x[0] = 0
    torch.testing.assert_close(exact_power(x, p), x**p, rtol=1e-7, atol=1e-12)
    odd = x[3:].clone()  # another alignment, another tail
    assert torch.equal(exact_power(odd, p), exact_power(x, p)[3:])


def test_polyphase_components_are_slices():
    x, scores = torch.rand(2, 6, 8, 3), torch.rand(2, 6, 8, dtype=torch.float64)
    split, sums, largest = polyphase(x, (3, 2)), coset_sum(scores, (3, 2)), coset_max(scores, (3, 2))
    for m in range(3):
        for n in range(2):
            assert torch.equal(split[:, m, n], x[:, m::3, n::2])
            torch.testing.assert_close(sums[:, m, n], scores[:, m::3, n::2].sum((1, 2)))
            assert torch.equal(largest[:, m, n], scores[:, m::3, n::2].amax((1, 2)))
    assert torch.equal(coset_sum(scores.roll((-1, -1), (1, 2)), (3, 2)), sums.roll((-1, -1), (1, 2)))
    with pytest.raises(ValueError, match="needs a multiple of the stride 4"):
        polyphase(torch.rand(1, 6, 8), 4)
