"""Two products are the library's interpolation, on a circle as well."""

import pytest
import torch
import torch.nn.functional as F

from trueshift.ops.geometry import interpolate as module
from trueshift.ops.geometry.interpolate import enlarge, enlarge_from
from trueshift.ops.geometry.shift import IMAGE_DIMS, TOKEN_DIMS, circular_pad, circular_shift


@pytest.fixture(params=["products", "kernel"])
def way(request, monkeypatch):
    """A CPU takes the library's kernel where it can; a GPU never does."""
    if request.param == "products":
        monkeypatch.setattr(module, "_whole", lambda *given: False)


@pytest.mark.parametrize("dims", [TOKEN_DIMS, IMAGE_DIMS])
@pytest.mark.parametrize(("size", "larger"), [((3, 5), (12, 20)), ((2, 3), (7, 9)), ((1, 4), (3, 4)), ((6, 6), (4, 5))])
def test_is_interpolate_and_goes_around_the_circle(way, dims, size, larger):
    maps = torch.rand(2, 3, *size)

    def ours(**options):
        if dims == IMAGE_DIMS:
            return enlarge(maps, larger, dims=dims, **options)
        return enlarge(maps.permute(0, 2, 3, 1), larger, **options).permute(0, 3, 1, 2)

    theirs = F.interpolate(maps, larger, mode="bilinear", align_corners=False)
    torch.testing.assert_close(ours(circular=False), theirs)
    around = F.interpolate(maps.repeat(1, 1, 3, 3), [3 * side for side in larger], mode="bilinear", align_corners=False)
    middle = around[:, :, larger[0] : 2 * larger[0], larger[1] : 2 * larger[1]]
    torch.testing.assert_close(ours(), middle)
    for margin in (1, 2):
        padded = circular_pad(middle.permute(0, 2, 3, 1), (margin, margin), (margin, margin))
        torch.testing.assert_close(ours(margin=margin), padded.permute(0, 3, 1, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rolled_on_the_way_in_half_precision(dtype):
    """Values are rounded to half precision between rows and columns, so it is the roll alone that is exact."""
    maps, start = torch.rand(3, 5, 4, 6).to(dtype), torch.randint(-24, 24, (3, 2))
    still = enlarge_from(maps, (16, 24), torch.zeros_like(start))
    assert torch.equal(enlarge_from(maps, (16, 24), start), circular_shift(still, start, IMAGE_DIMS))
    whole = enlarge(maps.float(), (16, 24), dims=IMAGE_DIMS)
    torch.testing.assert_close(still.float(), whole, rtol=0, atol=1e-2)


@pytest.mark.parametrize("circular", [True, False])
def test_gradcheck(way, circular):
    x = torch.rand(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(enlarge, (x, (4, 6), circular, int(circular)), fast_mode=True)


def test_a_border_has_no_margin():
    with pytest.raises(ValueError, match="circular"):
        enlarge(torch.rand(1, 2, 2, 1), (4, 4), circular=False, margin=1)
