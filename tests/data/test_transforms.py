"""From images to pixels: timm's evaluation transform exactly, room to shift in, and mmsegmentation's sizes."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

from trueshift.data import Preparation, ScenePreparation


def photo(width, height, seed=0):
    """Large areas with edges and a little noise."""
    random = np.random.default_rng(seed)
    areas = Image.fromarray(random.integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize((width, height))
    noisy = np.asarray(areas).astype(int) + random.integers(-20, 21, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def assert_same_as_timm(preparation, image):
    ours = preparation.normalise(preparation.canvas(image))
    given = {key: getattr(preparation, key) for key in ("interpolation", "crop_pct", "mean", "std")}
    theirs = create_transform((3, *preparation.size), is_training=False, separate=False, **given)(image)
    assert ours.shape == (3, *preparation.size)
    assert (ours - theirs).abs().max() <= 1e-6, image.size


@pytest.mark.parametrize("size", [224, 32])
@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 1.0])
def test_the_pixels_are_those_of_timm(size, crop_pct):
    for width, height in ((320, 240), (240, 320), (333, 250), (200, 31), (32, 32), (size, size), (257, 256)):
        assert_same_as_timm(Preparation((size, size), crop_pct), photo(width, height))
    whole = Preparation((size, size), 1.0).canvas(photo(size, size))
    assert np.array_equal(whole.permute(1, 2, 0), np.asarray(photo(size, size)))  # of the right size: left alone


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_the_pixels_are_those_of_timm_at_many_sizes(interpolation):
    # sides and crops are rounded, and a pixel to one side would go unnoticed at one size
    preparation = Preparation((24, 24), 0.875, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), interpolation)
    for width, height in np.random.default_rng(0).integers(5, 120, (60, 2)).tolist():
        assert_same_as_timm(preparation, photo(width, height))


def test_an_input_that_is_not_square_cuts_but_does_not_distort():
    preparation = Preparation((20, 40), 1.0, interpolation="nearest")
    stripes = np.zeros((40, 40, 3), np.uint8)
    stripes[10:30] = 200
    canvas = preparation.canvas(Image.fromarray(stripes))
    assert canvas.shape == (3, 20, 40)
    assert (canvas == 200).all()


# margins


@pytest.mark.parametrize("margin", [(0, 0), (1, 1), (2, 3), (3, 0), (0, 4), (4, 4)])
def test_a_margin_adds_pixels_around_the_same_middle(margin):
    preparation, (rows, columns) = Preparation((56, 56), 0.875), margin
    # resized to 64 x 64 up to 69 x 64: even and odd differences to 56
    for picture in [photo(100, 100), *(photo(100 + extra, 100) for extra in range(1, 9))]:
        for turned in (picture, picture.transpose(Image.Transpose.TRANSPOSE)):
            canvas = preparation.canvas(turned, margin)
            assert canvas.shape == (3, 56 + 2 * rows, 56 + 2 * columns)
            middle = canvas[:, rows : rows + 56, columns : columns + 56]
            assert torch.equal(middle, preparation.canvas(turned))


@pytest.mark.parametrize("crop_pct", [1.0, 0.95])
@pytest.mark.parametrize(("width", "height"), [(100, 100), (150, 100), (100, 150), (20, 30)])
def test_without_room_the_image_grows_until_the_margin_is_filled(crop_pct, width, height):
    picture = photo(width, height)
    canvas = Preparation((56, 56), crop_pct).canvas(picture, (8, 8))
    assert canvas.shape == (3, 72, 72)
    # the very pixels of a larger network that keeps all of the shorter side
    assert torch.equal(canvas, Preparation((72, 72), 1.0).canvas(picture))


@pytest.mark.parametrize("crop_pct", [0.8, 0.875, 0.9, 1.0])
def test_with_room_no_image_grows_for_its_margin(crop_pct):
    preparation = Preparation((56, 56), crop_pct)
    assert preparation.has_room((4, 4)) == (crop_pct <= 0.875)
    assert preparation.has_room((0, 0))
    for width, height in ((70, 70), (90, 60), (60, 90), (33, 300)):
        picture = photo(width, height)
        middle = preparation.canvas(picture, (4, 4))[:, 4:-4, 4:-4]
        assert torch.equal(middle, preparation.canvas(picture)) == preparation.has_room((4, 4))


def test_settings_come_from_timms_configuration():
    config = timm.models.get_pretrained_cfg("vit_tiny_patch16_384.augreg_in21k_ft_in1k").to_dict()
    expected = Preparation((384, 384), 1.0, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")
    assert Preparation.from_config(config) == expected
    assert Preparation.from_config({"interpolation": "bilinear"}) == Preparation(interpolation="bilinear")


# segmentation: mmsegmentation's rule, and the paper's multiples


@pytest.mark.parametrize(
    ("scale", "multiple", "size", "expected"),
    [
        ((2048, 512), (1, 1), (512, 683), (512, 683)),
        ((2048, 512), (1, 1), (683, 512), (683, 512)),
        ((2048, 512), (1, 1), (256, 256), (512, 512)),
        ((2048, 512), (1, 1), (100, 1000), (205, 2048)),  # the longest side decides
        ((1792, 448), (1, 1), (1, 4000), (1, 1792)),
        ((1792, 448), (224, 224), (360, 480), (448, 672)),
        ((1792, 448), (224, 224), (448, 448), (448, 448)),
        ((64, 32), (7, 5), (32, 64), (35, 65)),
    ],
)
def test_the_ratio_is_kept_within_both_sides_and_each_rounded_up(scale, multiple, size, expected):
    assert ScenePreparation(scale, multiple).scaled(*size) == expected


@pytest.mark.parametrize(("fit", "size"), [("resize", (24, 32)), ("pad", (20, 31))])
def test_the_canvas_is_the_image_at_that_size(fit, size):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 47, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    canvas = ScenePreparation((64, 20), (8, 8), fit).canvas(image)
    expected = np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR))
    assert np.array_equal(canvas.permute(1, 2, 0), expected)
    assert np.array_equal(ScenePreparation((47, 30)).canvas(image).permute(1, 2, 0), pixels)  # as it is


def test_the_mean_pixel_is_nearly_zero():
    grey = torch.tensor(ScenePreparation().mean_pixel, dtype=torch.uint8).view(3, 1, 1)
    assert ScenePreparation().normalise(grey).abs().max() < 0.5 / 255 / min(ScenePreparation().std) + 1e-6


def test_a_configuration_file_keeps_everything():
    preparation = ScenePreparation((1792, 448), (224, 112), "pad", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic")
    assert ScenePreparation.from_dict(json.loads(json.dumps(preparation.to_dict()))) == preparation
    assert ScenePreparation.from_dict({"fit": "pad"}) == ScenePreparation(fit="pad")
    with pytest.raises(ValueError, match="a preparation with crop, size: needs only scale, multiple, fit, mean"):
        ScenePreparation.from_dict({"size": 3, "crop": 4})


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Preparation, {"size": (0, 224)}, "needs positive sizes"),
        (Preparation, {"crop_pct": 0.0}, "0 < crop_pct <= 1"),
        (Preparation, {"crop_pct": 1.2}, "0 < crop_pct <= 1"),
        (Preparation, {"mean": (0.5,)}, "needs three values each"),
        (Preparation, {"std": (0.5, 0.5)}, "needs three values each"),
        (Preparation, {"interpolation": "cubic"}, "needs one of nearest, .*bicubic, lanczos"),
        (ScenePreparation, {"std": (0.5, 0.5, 0.0)}, "std above 0"),
        (ScenePreparation, {"scale": (448, 1792)}, "needs the longest side first"),
        (ScenePreparation, {"scale": (448, 0)}, "and positive numbers"),
        (ScenePreparation, {"multiple": (0, 1)}, "and positive numbers"),
        (ScenePreparation, {"fit": "crop"}, "needs one of resize, pad"),
    ],
)
def test_settings_that_cannot_be_are_refused(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(**settings)
