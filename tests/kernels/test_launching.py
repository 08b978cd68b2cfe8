"""Kernels that were compiled once are launched again for arguments of the same kinds, and for no others."""

import pytest
import torch

pytest.importorskip("triton")
from trueshift.ops.kernels import launching
from trueshift.ops.kernels.launching import launched


class Pretended:
    """Stands for a kernel, and for what compiling it gives: notes what it is launched with."""

    arg_names = ("x", "out", "count", "BLOCK")

    def __init__(self, at_once=None):
        self.launches, self.at_once = [], at_once

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.launches.append((grid, arguments, options)) or self.at_once


class Elsewhere(torch.Tensor):
    """On another device, which an address alone does not say."""

    def get_device(self):
        return 1


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)  # as the index of the CPU
    return launched(Pretended(Pretended()))


def test_the_second_launch_does_without_triton_and_takes_addresses(kernel):
    x, other, out = torch.zeros(3, 8)
    kernel[(4,)](x, out, 8, BLOCK=2, num_warps=8)
    kernel[(5, 6)](other, out, 8, 2, num_warps=8)
    assert [options for _, _, options in kernel.kernel.launches] == [{"num_warps": 8}]
    assert kernel.kernel.at_once.launches == [((5, 6, 1), (other.data_ptr(), out.data_ptr(), 8, 2), {})]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {"x": x.half()},
        lambda x: {"x": x[1:]},  # memory that begins elsewhere
        lambda x: {"out": x.as_subclass(Elsewhere)},
        lambda x: {"out": None},
        lambda x: {"count": 16},
        lambda x: {"BLOCK": 4},
        lambda x: {"num_warps": 4},
        lambda x: {"enable_fp_fusion": False},
    ],
)
def test_other_kinds_of_arguments_are_compiled_anew(kernel, change):
    x = torch.zeros(8)
    usual = {"x": x, "out": torch.zeros(8), "count": 8, "BLOCK": 2, "num_warps": 8}
    kernel[(1,)](**usual)
    kernel[(1,)](**{**usual, **change(x)})
    assert len(kernel.kernel.launches) == 2
    assert not kernel.kernel.at_once.launches


def test_a_missing_argument_is_named(kernel):
    with pytest.raises(KeyError, match="BLOCK"):
        kernel[(1,)](torch.zeros(1), torch.zeros(1), 1)
