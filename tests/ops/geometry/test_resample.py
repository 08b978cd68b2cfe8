import pytest
import torch
import torch.nn.functional as F

from trueshift.ops.geometry.grid import TokenGrid, Tokens, place
from trueshift.ops.geometry.resample import resample, start_at
from trueshift.ops.geometry.shift import circular_shift


def grid(stride, size, origin=None, batch=2):
    origin = torch.zeros(batch, 2, dtype=torch.int64) if origin is None else origin
    return TokenGrid((stride, stride), origin, size)


@pytest.mark.parametrize(("source", "target"), [(4, 1), (8, 4), (8, 2), (4, 8), (2, 8)])
def test_is_interpolate_away_from_the_border(source, target):
    tokens = Tokens(torch.rand(2, 48 // source, 64 // source, 3), grid(source, (48, 64)))
    onto = grid(target, (48, 64))
    ours = resample(tokens, onto).values
    theirs = F.interpolate(tokens.values.permute(0, 3, 1, 2), onto.shape, mode="bilinear", align_corners=False)
    inside = max(source // target, 1)
    cut = slice(inside, -inside)
    torch.testing.assert_close(ours[:, cut, cut], theirs.permute(0, 2, 3, 1)[:, cut, cut], rtol=0, atol=1e-6)


def test_onto_its_own_grid_is_the_identity_and_between_phases_a_roll():
    tokens = Tokens(torch.rand(2, 4, 6, 3), grid(4, (16, 24), torch.tensor([[1, 2], [3, 0]])))
    assert torch.equal(resample(tokens, tokens.grid).values, tokens.values)
    step = torch.tensor([[1, 2], [0, 5]])
    assert torch.equal(resample(tokens, tokens.grid.advance(step)).values, circular_shift(tokens.values, step))


def test_half_way_between_two_tokens_is_their_mean():
    tokens = Tokens(torch.rand(1, 4, 4, 1), grid(4, (16, 16), batch=1))
    moved = resample(tokens, grid(4, (16, 16), torch.tensor([[2, 0]]), batch=1)).values
    torch.testing.assert_close(moved, (tokens.values + tokens.values.roll(-1, 1)) / 2)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize(("source", "target"), [(4, 1), (8, 4), (4, 8)])
def test_moves_with_both_grids(source, target, mode):
    size = (32, 48)
    values = torch.rand(2, size[0] // source, size[1] // source, 3)
    here, there = (torch.stack([torch.randint(n, (2,)) for n in size], 1) for _ in range(2))
    still = place(resample(Tokens(values, grid(source, size, here)), grid(target, size, there), mode))
    for _ in range(20):
        moved = torch.stack([torch.randint(n, (2,)) for n in size], 1)
        wrap = torch.tensor(size)
        tokens = Tokens(values, grid(source, size, (here - moved) % wrap))
        again = place(resample(tokens, grid(target, size, (there - moved) % wrap), mode))
        assert torch.equal(again, circular_shift(still, moved))


def test_nearest_takes_the_cell_the_pixel_is_in():
    tokens = Tokens(torch.rand(1, 4, 4, 1), grid(4, (16, 16), torch.tensor([[3, 1]]), batch=1))
    dense = resample(tokens, grid(1, (16, 16), batch=1), "nearest").values
    cells = tokens.values.repeat_interleave(4, 1).repeat_interleave(4, 2)
    assert torch.equal(dense, circular_shift(cells, (-3, -1)))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("cheap", [False, True])  # grids of one origin
def test_gradcheck(mode, cheap):
    values, origin = torch.rand(1, 2, 3, 2, dtype=torch.float64, requires_grad=True), torch.tensor([[3, 1]])
    own, onto = grid(4, (8, 12), origin if cheap else None, batch=1), grid(2, (8, 12), origin, batch=1)
    assert torch.autograd.gradcheck(lambda v: resample(Tokens(v, own), onto, mode).values, (values,), fast_mode=True)


@pytest.mark.parametrize(("source", "target"), [(8, 4), (8, 1), (4, 4), (16, 2)])
def test_grids_with_one_origin_give_the_same_values_the_cheap_way(source, target):
    origin = torch.tensor([[3, 7], [0, 21]])
    tokens = Tokens(torch.rand(2, 32 // source, 48 // source, 3), grid(source, (32, 48), origin))
    cheap = resample(tokens, grid(target, (32, 48), origin)).values
    torch.testing.assert_close(cheap, resample(tokens, grid(target, (32, 48), origin.clone())).values)


def test_start_at_moves_values_and_grid_together():
    tokens = Tokens(torch.rand(2, 4, 6, 3), grid(4, (16, 24), torch.tensor([[1, 2], [3, 0]])))
    there = torch.tensor([[13, 22], [7, 8]])
    moved = start_at(tokens, there)
    assert moved.grid.origin is there
    assert torch.equal(place(moved), place(tokens))
