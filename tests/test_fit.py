"""Images of any size, brought to one that a model accepts, by a way that is named."""

import pytest
import torch

import trueshift as ts


@pytest.mark.parametrize(("way", "size"), [("resize", (32, 64)), ("crop", (32, 32)), ("pad", (64, 64))])
def test_sizes(way, size):
    model = ts.create_model("swin_mini").eval()  # whole windows
    image = torch.rand(1, 3, 40, 50)
    fitted = ts.fit(image, model, way)
    assert tuple(fitted.shape[2:]) == size
    assert model(fitted).shape == (1, 10)


def test_content():
    image = torch.rand(1, 3, 40, 50)
    assert torch.equal(ts.fit(image, 32, "crop"), image[:, :, 4:36, 9:41])
    padded = ts.fit(image, (8, 32), "pad", value=0.5)
    assert torch.equal(padded[:, :, :40, :50], image)
    assert (padded[:, :, :, 50:] == 0.5).all()
    assert torch.equal(ts.fit(image, (8, 10)), image)
    assert ts.fit(image[:, :, :3, :3], 16).shape[2:] == (16, 16)


@pytest.mark.parametrize(
    ("to", "method", "error", "message"),
    [
        (torch.nn.Flatten(), "resize", TypeError, "Flatten has no size multiple: needs a model of trueshift's"),
        ("a_swin_mini", "resize", TypeError, "a str has no size multiple"),
        (32.0, "resize", TypeError, "a float has no size multiple"),
        ((32,), "resize", ValueError, "needs a number of pixels from 1 on, or one for rows"),
        ((32, -1), "resize", ValueError, "needs a number of pixels from 1 on"),
        (32, "squash", ValueError, "'resize', 'crop', 'pad'"),
        (64, "crop", ValueError, "no room for 64 x 64: pad or resize"),
    ],
)
def test_what_cannot_be_fitted_is_refused(to, method, error, message, our_errors):
    with pytest.raises(error, match=message):
        ts.fit(torch.rand(1, 3, 40, 80), to, method)
