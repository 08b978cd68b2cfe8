"""Networks whose grids all start on the strongest spot of the image."""

import pytest
import torch

import trueshift as ts
from trueshift.testing import assert_invariant, photographs

FAMILIES = ["a_swin_mini", "a_swinv2_mini", "a_cvt_mini", "a_mvitv2_mini"]


def made(name, **more):
    torch.manual_seed(0)
    return ts.create_model(name, criterion="spot", **more).eval()


def scene():
    """A photograph, and the place of a spot stronger than any of its own."""
    image = 0.4 + 0.2 * next(iter(photographs(80).values()))
    image[:, 40, 36] = 1
    return image, (40, 36)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_every_grid_starts_on_the_spot_while_the_camera_moves(name):
    model, (image, spot) = made(name, border="closed"), scene()
    for row, column in ((24, 20), (25, 20), (24, 21), (28, 25), (17, 30)):
        view = image[None, :, row : row + 32, column : column + 32]
        grids = [tokens.grid for tokens in model.features(view)]
        for grid in grids:
            assert grid.spot.tolist() == [[spot[0] - row, spot[1] - column]]
            assert ((grid.spot - grid.origin) % torch.tensor(grid.stride) == 0).all()


def test_random_grids_are_followed_by_all_layers():
    model, image = made("a_swin_mini", grid_drop_rate=1.0).train(), torch.rand(64, 3, 32, 32)
    grids = [tokens.grid for tokens in model.features(image)]
    assert len(grids[0].spot.unique(dim=0)) > 40  # of 1024 pixels
    assert all(((grid.spot - grid.origin) % torch.tensor(grid.stride) == 0).all() for grid in grids)
    first, *later = [tokens.grid.spot for tokens in model.eval().features(image)]
    assert all(torch.equal(spot, first) for spot in later)


@pytest.mark.parametrize("place", ["merge", "align"])
@pytest.mark.parametrize("anchor", [True, False])
@torch.no_grad()
def test_without_a_spot_before_it_a_layer_looks_for_its_own(place, anchor):
    torch.manual_seed(0)
    model = ts.create_model("a_swin_mini", criterion={place: "spot"}, anchor=anchor).eval()
    assert_invariant(model, torch.rand(4, 3, 32, 32), shifts=4, tolerance=0 if anchor else 1e-6)
    grids = [tokens.grid for tokens in model.features(torch.rand(4, 3, 32, 32))]
    assert [grid.spot is None for grid in grids] == [True, place == "align", place == "align"]
