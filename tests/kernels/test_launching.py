"""Kernels that were compiled once are launched again for arguments of the same kinds, and for no others."""

import pytest
import torch

pytest.importorskip("triton")
from trueshift.ops.kernels import launching
from trueshift.ops.kernels.launching import launched


class Launches(list):
    """Something that was compiled: notes what it is launched with."""

    def __getitem__(self, grid):
        return lambda *arguments: self.append((grid, arguments))


class Pretended:
    """Stands for a kernel: compiling gives something that can be launched."""

    arg_names = ("x", "out", "count", "BLOCK")

    def __init__(self):
        self.by_triton, self.at_once = [], Launches()

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.by_triton.append((grid, arguments, options)) or self.at_once


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)  # as the index of the CPU
    return launched(Pretended())


def test_the_second_launch_does_without_triton_and_takes_addresses(kernel):
    x, other, out = torch.zeros(3, 8)
    kernel[(4,)](x, out, 8, BLOCK=2, num_warps=8)
    kernel[(5, 6)](other, out, 8, 2, num_warps=8)
    assert len(kernel.kernel.by_triton) == 1
    assert kernel.kernel.by_triton[0][2] == {"num_warps": 8}
    assert kernel.kernel.at_once == [((5, 6, 1), (other.data_ptr(), out.data_ptr(), 8, 2))]


def test_a_tensor_elsewhere_is_shown_to_triton(kernel):
    """An address alone does not say that it is not on the device."""

    class Elsewhere(torch.Tensor):
        def get_device(self):
            return 1

    x = torch.zeros(8)
    kernel[(1,)](x, x, 8, 2)
    kernel[(1,)](x, x.as_subclass(Elsewhere), 8, 2)
    assert len(kernel.kernel.by_triton) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {"x": x.half()},
        lambda x: {"x": x[1:]},  # memory that begins elsewhere
        lambda x: {"out": None},
        lambda x: {"count": 16},
        lambda x: {"BLOCK": 4},
        lambda x: {"num_warps": 4},
        lambda x: {"num_stages": 1},
        lambda x: {"enable_fp_fusion": False},
    ],
)
def test_other_kinds_of_arguments_are_compiled_anew(kernel, change):
    x = torch.zeros(8)
    usual = {"x": x, "out": torch.zeros(8), "count": 8, "BLOCK": 2, "num_warps": 8, "num_stages": 2}
    kernel[(1,)](**usual)
    kernel[(1,)](**{**usual, **change(x)})
    assert len(kernel.kernel.by_triton) == 2
    assert not kernel.kernel.at_once


def test_a_missing_argument_is_named(kernel):
    with pytest.raises(KeyError, match="BLOCK"):
        kernel[(1,)](torch.zeros(1), torch.zeros(1), 1)
