"""Cutting and joining blocks, and padding, by a kernel: the same rows, and the same gradients."""

import pytest
import torch

from trueshift.ops import kernels
from trueshift.ops.geometry.blocks import cut_blocks, join_blocks
from trueshift.ops.geometry.shift import circular_pad

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("block", [(2, 2), (3, 4), (6, 8)])
@pytest.mark.parametrize("column_first", [False, True])
def test_the_same_rows_and_gradients(block, column_first):
    x = torch.randn(3, 6, 8, 5, device=DEVICE, requires_grad=True)
    start = torch.tensor([[0, 0], [5, 7], [6, 3]], device=DEVICE)
    goal = torch.randn(3, 6 // block[0], 8 // block[1], block[0] * block[1], 5, device=DEVICE)
    answers = []
    for on in (False, True):
        with kernels.switched(on):
            cut = cut_blocks(x, block, start, column_first)
            (grad,) = torch.autograd.grad((cut * goal).sum(), x, create_graph=True)
            answers.append((cut, grad, *([] if column_first else [join_blocks(cut, block, start)])))
    for plain, moved in zip(*answers, strict=True):
        assert torch.equal(plain, moved)
    if not column_first:
        assert torch.equal(answers[1][2], x)


@pytest.mark.parametrize(("rows", "columns"), [((1, 1), (1, 1)), ((0, 2), (3, 1)), ((5, 0), (0, 7))])
def test_padding_from_anywhere(rows, columns):
    x = torch.randn(3, 6, 8, 5, device=DEVICE).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    start = torch.tensor([[0, 0], [5, -7], [-20, 30]], device=DEVICE)
    goal = torch.randn(3, 6 + sum(rows), 8 + sum(columns), 5, device=DEVICE)
    answers = []
    for on in (False, True):
        with kernels.switched(on):
            padded = circular_pad(x, rows, columns, start)
            answers.append((padded, padded.bfloat16(), *torch.autograd.grad((padded * goal).sum(), x)))
    assert all(torch.equal(*both) for both in zip(*answers, strict=True))
