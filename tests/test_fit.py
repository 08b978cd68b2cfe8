"""Images of any size, brought to one that a model accepts, by a way that is named."""

import re

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
    ("to", "error", "message"),
    [
        *(
            (to, TypeError, f"a {kind} has no size multiple: needs a model of trueshift's, or the multiple itself")
            for to, kind in ((torch.nn.Flatten(), "Flatten"), ("a_swin_mini", "str"), (32.0, "float"))
        ),
        *(
            (to, ValueError, re.escape(f"a multiple of {to}: needs a number of pixels from 1 on, or one for rows and"))
            for to in ((32,), (1, 2, 3), 0, (32, -1))
        ),
    ],
)
def test_what_has_no_sizes_is_refused(to, error, message, our_errors):
    with pytest.raises(error, match=message):
        ts.fit(torch.rand(1, 3, 40, 40), to)


def test_refusals():
    with pytest.raises(ValueError, match="'resize', 'crop', 'pad'"):
        ts.fit(torch.rand(1, 3, 40, 40), 32, "squash")
    with pytest.raises(ValueError, match="no room for 64 x 64: pad or resize"):
        ts.fit(torch.rand(1, 3, 40, 80), 64, "crop")
