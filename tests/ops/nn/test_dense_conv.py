"""Both ways to a convolution's grids give its numbers, and the faster one is taken."""

import pytest
import torch
import torch.nn.functional as F

from trueshift.ops.geometry.polyphase import polyphase
from trueshift.ops.geometry.shift import circular_pad
from trueshift.ops.nn import dense_conv as all_phases
from trueshift.ops.nn.dense_conv import convolution_phases, fewer_products_pay, fits


@pytest.mark.parametrize("fewer_products", [False, True])
@pytest.mark.parametrize(("kernel", "before"), [((2, 2), (0, 0)), ((3, 3), (1, 1)), ((3, 3), (0, 2)), ((2, 3), (1, 1))])
def test_the_convolution_at_every_position(monkeypatch, kernel, before, fewer_products):
    monkeypatch.setattr(all_phases, "fewer_products_pay", lambda taps, channels: fewer_products)
    x, weight = torch.randn(2, 6, 8, 5, dtype=torch.float64), torch.randn(7, *kernel, 5, dtype=torch.float64)
    (rows, columns), (up, left) = kernel, before
    padded = circular_pad(x, (up, rows - 1 - up), (left, columns - 1 - left)).permute(0, 3, 1, 2)
    expected = F.conv2d(padded, weight.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    phases = convolution_phases(x, weight, before)
    torch.testing.assert_close(phases, polyphase(expected, 2), rtol=0, atol=1e-12)


PROCESSORS = [
    ("DEFAULT", 3, 64, True),
    ("SVE256", 2, 96, True),
    ("AVX512", 3, 192, False),
    ("AVX512", 2, 192, True),
    ("AVX2", 2, 96, False),
]


@pytest.mark.parametrize(("capability", "taps", "channels", "pay"), PROCESSORS)
def test_by_the_processor(monkeypatch, capability, taps, channels, pay):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert fewer_products_pay(taps, channels) is pay


def test_only_small_kernels_of_stride_2_fit():
    x = torch.zeros(1, 4, 4, 2)
    assert fits(x, (2, 3), (2, 2))
    assert not fits(x, (4, 4), (2, 2))
    assert not fits(x, (3, 3), (3, 3))
    assert not fits(x.to("meta"), (2, 2), (2, 2))
