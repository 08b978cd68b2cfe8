import pytest
import torch
import torch.nn.functional as F

from trueshift.ops.geometry.grid import TokenGrid, Tokens, place
from trueshift.ops.geometry.resample import resample, start_at
from trueshift.ops.geometry.shift import circular_shift


def grid(stride, size, *origin):
    return TokenGrid((stride, stride), torch.tensor(origin or [(0, 0)]), size)


@pytest.mark.parametrize(("source", "target"), [(4, 1), (8, 4), (8, 2), (4, 8), (2, 8)])
def test_is_interpolate_away_from_the_border(source, target):
    tokens = Tokens(torch.rand(1, 48 // source, 64 // source, 3), grid(source, (48, 64)))
    onto = grid(target, (48, 64))
    ours = resample(tokens, onto).values
    theirs = F.interpolate(tokens.values.permute(0, 3, 1, 2), onto.shape, mode="bilinear", align_corners=False)
    inside = max(source // target, 1)
    cut = slice(inside, -inside)
    torch.testing.assert_close(ours[:, cut, cut], theirs.permute(0, 2, 3, 1)[:, cut, cut], rtol=0, atol=1e-6)


def test_known_answers():
    """The identity on its own grid, a roll between phases, the mean half-way, and the cell that a pixel is in."""
    tokens = Tokens(torch.rand(2, 4, 6, 3), grid(4, (16, 24), (1, 2), (3, 0)))
    assert torch.equal(resample(tokens, tokens.grid).values, tokens.values)
    step = torch.tensor([[1, 2], [0, 5]])
    assert torch.equal(resample(tokens, tokens.grid.advance(step)).values, circular_shift(tokens.values, step))
    tokens = Tokens(torch.rand(1, 4, 4, 1), grid(4, (16, 16), (3, 1)))
    mean = (tokens.values + tokens.values.roll(-1, 1)) / 2
    torch.testing.assert_close(resample(tokens, grid(4, (16, 16), (5, 1))).values, mean)
    cells = tokens.values.repeat_interleave(4, 1).repeat_interleave(4, 2)
    nearest = resample(tokens, grid(1, (16, 16)), "nearest").values
    assert torch.equal(nearest, circular_shift(cells, (-3, -1)))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize(("source", "target"), [(4, 1), (8, 4), (4, 8)])
def test_moves_with_both_grids(source, target, mode):
    size, wrap = (32, 48), torch.tensor([32, 48])
    values = torch.rand(2, size[0] // source, size[1] // source, 3)
    here, there, *shifts = (torch.stack([torch.randint(n, (2,)) for n in size], 1) for _ in range(12))

    def placed(moved):
        tokens = Tokens(values, TokenGrid((source, source), (here - moved) % wrap, size))
        return place(resample(tokens, TokenGrid((target, target), (there - moved) % wrap, size), mode))

    still = placed(torch.zeros_like(here))
    for moved in shifts:
        assert torch.equal(placed(moved), circular_shift(still, moved))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("origin", [(3, 1), (0, 0)])  # the last: grids of one origin
def test_gradcheck(mode, origin):
    values = torch.rand(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    onto = grid(2, (8, 12))
    own = TokenGrid((4, 4), torch.tensor([origin]) if any(origin) else onto.origin, (8, 12))
    assert torch.autograd.gradcheck(lambda v: resample(Tokens(v, own), onto, mode).values, (values,), fast_mode=True)


@pytest.mark.parametrize(("source", "target"), [(8, 4), (8, 1), (4, 4), (16, 2)])
def test_grids_with_one_origin_give_the_same_values_the_cheap_way(source, target):
    own, onto = (grid(stride, (32, 48), (3, 7), (0, 21)) for stride in (source, target))
    tokens = Tokens(torch.rand(2, 32 // source, 48 // source, 3), own)
    cheap = resample(tokens, TokenGrid(onto.stride, own.origin, own.image_size)).values
    torch.testing.assert_close(cheap, resample(tokens, onto).values)


def test_start_at_moves_values_and_grid_together():
    tokens = Tokens(torch.rand(2, 4, 6, 3), grid(4, (16, 24), (1, 2), (3, 0)))
    there = torch.tensor([[13, 22], [7, 8]])
    moved = start_at(tokens, there)
    assert moved.grid.origin is there
    assert torch.equal(place(moved), place(tokens))
