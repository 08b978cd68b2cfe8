"""Blocks that begin anywhere: a roll, a cut and back."""

import pytest
import torch

from trueshift.ops.geometry.blocks import cut_blocks, join_blocks
from trueshift.ops.geometry.shift import circular_shift
from trueshift.ops.geometry.windows import window_partition

START = torch.tensor([[0, 0], [1, 5], [9, 13]])


@pytest.mark.parametrize("block", [(2, 3), (5, 7), (1, 3), (10, 21)])
def test_cutting_is_a_roll_and_a_partition(block):
    x = torch.randn(3, 10, 21, 4)
    blocks = cut_blocks(x, block, START)
    expected = window_partition(circular_shift(x, START), block)
    assert torch.equal(blocks.flatten(0, 2), expected.flatten(1, 2))
    assert torch.equal(join_blocks(blocks, block, START), x)
    by_column = blocks.unflatten(3, block).transpose(3, 4).flatten(3, 4)
    assert torch.equal(cut_blocks(x, block, START, column_first=True), by_column)


def test_gradients_go_back_to_where_the_tokens_were():
    x = torch.randn(3, 4, 6, 2, dtype=torch.float64, requires_grad=True)
    blocks = torch.randn(3, 2, 2, 6, 2, dtype=torch.float64, requires_grad=True)
    for column_first in (False, True):
        assert torch.autograd.gradcheck(cut_blocks, (x, (2, 3), START, column_first), fast_mode=True)
    assert torch.autograd.gradcheck(join_blocks, (blocks, (2, 3), START), fast_mode=True)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="needs multiples of the block 2 x 3"):
        cut_blocks(torch.zeros(3, 5, 6, 1), (2, 3), START)
