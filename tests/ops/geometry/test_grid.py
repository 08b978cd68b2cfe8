from itertools import product

import pytest
import torch

from trueshift.ops.geometry.grid import TokenGrid, Tokens, displacements, place
from trueshift.ops.geometry.shift import circular_shift, circular_take


def test_place_puts_each_token_at_its_pixel_and_moves_with_the_image():
    size, origin, moved = torch.tensor([6, 8]), torch.tensor([[3, 5], [0, 7]]), torch.tensor([[4, 1], [2, 7]])
    values = torch.rand(2, 3, 2, 5)
    placed = place(Tokens(values, TokenGrid((2, 4), origin, (6, 8))))
    for image, i, j in product(range(2), range(3), range(2)):
        row, column = (origin[image] + torch.tensor([2 * i, 4 * j])) % size
        assert torch.equal(placed[image, row, column], values[image, i, j])
    assert placed.count_nonzero() == values.count_nonzero()
    there = place(Tokens(values, TokenGrid((2, 4), (origin - moved) % size, (6, 8))))
    assert torch.equal(there, circular_shift(placed, moved))


def test_displacements_are_spread_over_the_patch():
    for stride, grids in (((4, 4), 8), ((4, 2), 8), ((2, 4), 8), ((6, 1), 3)):
        found = displacements(grids, stride)
        assert found.unique(dim=0).shape == (grids, 2)
        assert (found < torch.tensor(stride)).all()
    assert displacements(4, (4, 4)).tolist() == [[0, 0], [0, 2], [2, 0], [2, 2]]
    with pytest.raises(ValueError, match="needs one of 1, 2, 4, 8 for patches of 4 x 2"):
        displacements(3, (4, 2))


def test_choices_add_up_to_one_origin():
    """Picking from a picked grid is picking from the image at the grid's origin and stride."""
    first, second = torch.randint(0, 4, (2, 3, 2))
    for size in ((24, 24), (24, 12)):
        pixels = Tokens.of_image(torch.rand(3, 2, *size))
        once = Tokens(circular_take(pixels.values, first, 2), pixels.grid.advance(first, 2))
        twice = Tokens(circular_take(once.values, second, 3), once.grid.advance(second, 3))
        assert twice.grid.stride == (6, 6)
        assert torch.equal(twice.values, circular_take(pixels.values, twice.grid.origin, 6))
