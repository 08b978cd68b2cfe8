"""Two products are the library's interpolation, on a circle as well."""

import pytest
import torch
import torch.nn.functional as F

from trueshift.ops.geometry.interpolate import enlarge, enlarge_from
from trueshift.ops.geometry.shift import IMAGE_DIMS, TOKEN_DIMS, circular_pad, circular_shift


def as_maps(x, dims):
    return x if dims == IMAGE_DIMS else x.permute(0, 3, 1, 2)


@pytest.mark.parametrize("dims", [TOKEN_DIMS, IMAGE_DIMS])
@pytest.mark.parametrize(("size", "larger"), [((3, 5), (12, 20)), ((2, 3), (7, 9)), ((1, 4), (3, 4)), ((6, 6), (4, 5))])
def test_is_interpolate_and_goes_around_the_circle(dims, size, larger):
    x = torch.rand(2, *size, 3) if dims == TOKEN_DIMS else torch.rand(2, 3, *size)
    theirs = F.interpolate(as_maps(x, dims), larger, mode="bilinear", align_corners=False)
    torch.testing.assert_close(as_maps(enlarge(x, larger, circular=False, dims=dims), dims), theirs)
    thrice = as_maps(x, dims).repeat(1, 1, 3, 3)
    around = F.interpolate(thrice, (3 * larger[0], 3 * larger[1]), mode="bilinear", align_corners=False)
    middle = around[:, :, larger[0] : 2 * larger[0], larger[1] : 2 * larger[1]]
    torch.testing.assert_close(as_maps(enlarge(x, larger, dims=dims), dims), middle)


@pytest.mark.parametrize("margin", [1, 2])
def test_the_margin_continues_the_circle(margin):
    x = torch.rand(2, 3, 5, 4)
    padded = circular_pad(enlarge(x, (12, 20)), (margin, margin), (margin, margin))
    torch.testing.assert_close(enlarge(x, (12, 20), margin=margin), padded)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rolled_on_the_way_in_half_precision(dtype):
    """Values are rounded to half precision between rows and columns, so it is the roll alone that is exact."""
    maps, start = torch.rand(3, 5, 4, 6).to(dtype), torch.randint(-24, 24, (3, 2))
    still = enlarge_from(maps, (16, 24), torch.zeros_like(start))
    assert torch.equal(enlarge_from(maps, (16, 24), start), circular_shift(still, start, IMAGE_DIMS))
    whole = enlarge(maps.float(), (16, 24), dims=IMAGE_DIMS)
    torch.testing.assert_close(still.float(), whole, rtol=0, atol=1e-2)


@pytest.mark.parametrize("circular", [True, False])
def test_gradcheck(circular):
    x = torch.rand(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: enlarge(x, (4, 6), circular, margin=int(circular)), (x,), fast_mode=True)


def test_a_border_has_no_margin():
    with pytest.raises(ValueError, match="circular"):
        enlarge(torch.rand(1, 2, 2, 1), (4, 4), circular=False, margin=1)
