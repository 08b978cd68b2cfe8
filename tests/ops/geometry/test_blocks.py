"""Blocks that begin anywhere: a roll, a cut and back."""

import pytest
import torch

from trueshift.ops.geometry.blocks import cut_blocks, join_blocks
from trueshift.ops.geometry.shift import circular_pad, circular_shift
from trueshift.ops.geometry.windows import window_partition

START = torch.tensor([[0, 0], [1, 5], [9, 13]])


@pytest.mark.parametrize("block", [(2, 2), (5, 7), (1, 3), (10, 21)])
def test_cutting_is_a_roll_and_a_partition(block):
    x = torch.randn(3, 10, 21, 4) if block != (2, 2) else torch.randn(3, 10, 20, 4)
    blocks = cut_blocks(x, block, START)
    expected = window_partition(circular_shift(x, START), block)
    assert torch.equal(blocks.flatten(0, 2), expected.flatten(1, 2))
    assert torch.equal(join_blocks(blocks, block, START), x)


def test_a_block_can_be_read_column_by_column():
    x = torch.randn(3, 4, 6, 2)
    by_row = cut_blocks(x, (2, 3), START).unflatten(3, (2, 3))
    by_column = cut_blocks(x, (2, 3), START, column_first=True).unflatten(3, (3, 2))
    assert torch.equal(by_row.transpose(3, 4), by_column)


def test_gradients_go_back_to_where_the_tokens_stood():
    x = torch.randn(3, 4, 6, 2, dtype=torch.float64, requires_grad=True)
    for column_first in (False, True):
        assert torch.autograd.gradcheck(lambda x: cut_blocks(x, (2, 3), START, column_first), x, fast_mode=True)  # noqa: B023
    blocks = torch.randn(3, 2, 2, 6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: join_blocks(x, (2, 3), START), blocks, fast_mode=True)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="5 x 6 tokens: needs multiples of the block 2 x 3"):
        cut_blocks(torch.zeros(3, 5, 6, 1), (2, 3), START)


@pytest.mark.parametrize("pads", [((1, 2), (0, 3)), ((7, 11), (11, 7))])  # the last: more than once around
def test_padding_from_anywhere_is_a_roll_and_a_padding(pads):
    x = torch.randn(3, 4, 5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.equal(circular_pad(x, *pads, START), circular_pad(circular_shift(x, START), *pads))
    assert torch.autograd.gradcheck(lambda x: circular_pad(x, *pads, START), x, fast_mode=True)
