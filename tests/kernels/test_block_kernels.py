"""Cutting and joining blocks, and padding, by a kernel: the same rows, and the same gradients."""

import pytest
import torch

from trueshift.ops.geometry.blocks import cut_blocks, join_blocks
from trueshift.ops.geometry.shift import circular_pad

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("block", [(2, 2), (3, 4), (6, 8)])
@pytest.mark.parametrize("column_first", [False, True])
def test_the_same_rows_and_gradients(block, column_first, both_ways):
    x = torch.randn(3, 6, 8, 5, device=DEVICE, requires_grad=True)
    start = torch.tensor([[0, 0], [5, 7], [6, 3]], device=DEVICE)
    goal = torch.randn(3, 6 // block[0], 8 // block[1], block[0] * block[1], 5, device=DEVICE)

    def moved():
        cut = cut_blocks(x, block, start, column_first)
        (grad,) = torch.autograd.grad((cut * goal).sum(), x, create_graph=True)
        return cut, grad, x if column_first else join_blocks(cut, block, start)

    plain, fast = both_ways(moved)
    assert all(torch.equal(*pair) for pair in zip(plain, fast, strict=True))
    assert torch.equal(fast[2], x)


@pytest.mark.parametrize(("rows", "columns"), [((1, 1), (1, 1)), ((0, 2), (3, 1)), ((5, 0), (0, 7))])
def test_padding_from_anywhere(rows, columns, both_ways):
    x = torch.randn(3, 6, 8, 5, device=DEVICE).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    start = torch.tensor([[0, 0], [5, -7], [-20, 30]], device=DEVICE)
    goal = torch.randn(3, 6 + sum(rows), 8 + sum(columns), 5, device=DEVICE)

    def padded():
        wide = circular_pad(x, rows, columns, start)
        return wide, wide.bfloat16(), *torch.autograd.grad((wide * goal).sum(), x)

    assert all(torch.equal(*pair) for pair in zip(*both_ways(padded), strict=True))
