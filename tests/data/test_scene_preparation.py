"""The size at which a segmentation network is shown a picture: mmsegmentation's rule, and the paper's multiples."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from trueshift.data import Preparation
from trueshift.data.transforms import ScenePreparation


@pytest.mark.parametrize(
    ("scale", "size", "expected"),
    [
        ((2048, 512), (512, 683), (512, 683)),
        ((2048, 512), (683, 512), (683, 512)),
        ((2048, 512), (256, 256), (512, 512)),
        ((2048, 512), (1024, 2048), (512, 1024)),
        ((2048, 512), (100, 1000), (205, 2048)),  # the longest side decides
        ((2048, 512), (1000, 100), (2048, 205)),
        ((1792, 448), (360, 480), (448, 597)),
        ((1792, 448), (1, 4000), (1, 1792)),
    ],
)
def test_the_ratio_is_kept_within_both_sides(scale, size, expected):
    assert ScenePreparation(scale, fit="pad", multiple=(224, 224)).scaled(*size) == expected
    assert ScenePreparation(scale).scaled(*size) == expected


def test_each_side_goes_on_to_the_next_multiple():
    swin = ScenePreparation((1792, 448), (224, 224))
    assert swin.scaled(360, 480) == (448, 672)
    assert swin.scaled(448, 448) == (448, 448)
    assert swin.scaled(100, 1792) == (224, 1792)
    swin_v2 = ScenePreparation((2048, 512), (256, 256))
    assert swin_v2.scaled(512, 683) == (512, 768)
    assert ScenePreparation((64, 32), (7, 5)).scaled(32, 64) == (35, 65)


@pytest.mark.parametrize("fit", ["resize", "pad"])
def test_the_canvas_is_the_picture_at_that_size(fit):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 47, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    preparation = ScenePreparation((64, 20), (8, 8), fit)
    canvas = preparation.canvas(picture)
    height, width = preparation.scaled(30, 47)
    assert (height, width) == ((24, 32) if fit == "resize" else (20, 31))
    expected = np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
    assert np.array_equal(canvas.permute(1, 2, 0), expected)
    as_it_is = ScenePreparation((47, 30))
    assert np.array_equal(as_it_is.canvas(picture).permute(1, 2, 0), pixels)


def test_values_are_normalised_as_for_classification():
    canvas = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
    colours = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    assert torch.equal(ScenePreparation(**colours).normalise(canvas), Preparation(**colours).normalise(canvas))
    assert torch.equal(ScenePreparation(**colours).normaliser()(canvas), Preparation(**colours).normalise(canvas))
    grey = torch.tensor(ScenePreparation().mean_pixel, dtype=torch.uint8).view(3, 1, 1)
    assert ScenePreparation().normalise(grey).abs().max() < 0.5 / 255 / min(ScenePreparation().std) + 1e-6


def test_a_configuration_file_keeps_everything():
    preparation = ScenePreparation((1792, 448), (224, 112), "pad", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic")
    assert ScenePreparation.from_dict(json.loads(json.dumps(preparation.to_dict()))) == preparation
    assert ScenePreparation.from_dict({"fit": "pad"}) == ScenePreparation(fit="pad")
    with pytest.raises(ValueError, match="a preparation with crop, size: needs only scale, multiple, fit, mean"):
        ScenePreparation.from_dict({"size": 3, "crop": 4})


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"scale": (448, 1792)}, "needs the longest side first"),
        ({"scale": (448, 0)}, "and positive numbers"),
        ({"multiple": (0, 1)}, "and positive numbers"),
        ({"fit": "crop"}, "fit 'crop': needs one of resize, pad"),
        ({"std": (1.0, 0.0, 1.0)}, "std above 0"),
        ({"interpolation": "best"}, "interpolation 'best': needs one of nearest, bilinear"),
    ],
)
def test_values_that_cannot_be_are_refused(values, told):
    with pytest.raises(ValueError, match=told):
        ScenePreparation(**values)
