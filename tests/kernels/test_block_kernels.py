"""Cutting and joining blocks, and padding, by a kernel: the same rows, and the same gradients."""

import pytest
import torch

from trueshift.ops.geometry.blocks import cut_blocks, join_blocks
from trueshift.ops.geometry.shift import circular_pad

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
START = torch.tensor([[0, 0], [5, 7], [6, 3]], device=DEVICE)


@pytest.mark.parametrize("block", [(2, 2), (3, 4), (6, 8)])
def test_the_same_rows_and_gradients(block, same_both_ways):
    def moved(x):
        cut = cut_blocks(x, block, START)
        return [cut, cut_blocks(x, block, START, column_first=True), join_blocks(2 * cut, block, START)]

    same_both_ways(moved, torch.randn(3, 6, 8, 5, device=DEVICE), tolerance=0)


@pytest.mark.parametrize(("rows", "columns"), [((1, 1), (1, 1)), ((0, 2), (3, 1)), ((5, 0), (0, 7))])
def test_padding_from_anywhere(rows, columns, same_both_ways):
    x = torch.randn(3, 8, 6, 5, device=DEVICE).transpose(1, 2)
    start = torch.tensor([[0, 0], [5, -7], [-20, 30]], device=DEVICE)
    for values in (x, x.bfloat16()):
        same_both_ways(lambda x: [circular_pad(x, rows, columns, start)], values, tolerance=0)
