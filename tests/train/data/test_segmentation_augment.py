"""Scenes as they are learned from: image and labels together, and nothing drawn but by seed, epoch and scene."""

import numpy as np
import pytest
import torch
from PIL import Image

from trueshift.data import Sample, ScenePreparation
from trueshift.data.source import IGNORED
from trueshift.train.data.augment import SegmentationTransform, largest_share
from trueshift.train.dense_config import SegmentationAugmentConfig


def transform(scale=(96, 48), seed=0, interpolation="bilinear", **augment):
    usual = {"crop": (32, 40), "scale_range": (1.0, 1.0), "flip": 0.0, "photometric": False}
    preparation = ScenePreparation(scale, interpolation=interpolation)
    return SegmentationTransform(preparation, SegmentationAugmentConfig(**{**usual, **augment}), seed)


def scene(height=48, width=64, classes=5, seed=0):
    """Areas of random shape, each class with its own grey, so that pixels tell their labels."""
    random = np.random.default_rng(seed)
    small = random.integers(0, classes, (6, 8))
    mask = np.repeat(np.repeat(small, -(-height // 6), 0), -(-width // 8), 1)[:height, :width].astype(np.int32)
    grey = (mask * 50 + 25).astype(np.uint8)
    return Sample(Image.fromarray(np.repeat(grey[..., None], 3, 2)), "a scene", mask)


def smooth(height, width):
    """Red grows with the row and green with the column: a pixel tells where it is from; so does its label."""
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    pixels = np.stack([rows, columns, 0 * rows], -1).astype(np.uint8)
    return Sample(Image.fromarray(pixels), "smooth", (rows * 1000 + columns).astype(np.int32))


@pytest.mark.parametrize(("factor", "flip"), [(0.77, 0.0), (1.0, 1.0), (2.0, 1.0)])
def test_image_and_labels_stay_together_to_a_fraction_of_a_pixel(factor, flip):
    source = smooth(120, 160)
    change = transform((160, 120), scale_range=(factor, factor), flip=flip, max_class_share=1.0, crop=(50, 60))
    for index in range(5):
        pixels, labels = change(source, 0, index)
        assert (pixels.dtype, labels.dtype) == (torch.uint8, torch.int32)
        assert pixels.shape == (3, 50, 60)
        assert labels.shape == (50, 60)
        red, green = pixels[0].float(), pixels[1].float()
        # labels know whole pixels only: half a pixel of the source, its rounding, and the border of a resized image
        allowed = 0.5 + 0.5 + 0.5 / factor
        assert (red - labels // 1000).abs().max() <= allowed
        assert (green - labels % 1000).abs().max() <= allowed
        # without a preference for either side
        inside = (labels % 1000 > 2) & (labels % 1000 < 157) & (labels // 1000 > 2) & (labels // 1000 < 117)
        assert abs((red - labels // 1000)[inside].mean()) < 0.3
        assert abs((green - labels % 1000)[inside].mean()) < 0.3
        assert (green[:, 0] > green[:, -1]).all() == bool(flip)


@pytest.mark.parametrize(("interpolation", "factor"), [("bilinear", 0.6), ("bicubic", 1.2), ("nearest", 1.2)])
def test_a_crop_is_cut_out_of_the_resized_whole(factor, interpolation):
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    source = Sample(Image.fromarray(noise), "noise", np.zeros((48, 64), np.int32))
    change = transform(scale_range=(factor, factor), crop=(20, 24), interpolation=interpolation, max_class_share=1.0)
    size = change.preparation.kept_ratio(48, 64, factor)
    whole = np.asarray(source.image.resize(size[::-1], change.preparation.filter)).astype(int)
    parts = np.lib.stride_tricks.sliding_window_view(whole, (20, 24, 3))[:, :, 0]
    for index in range(2):
        away = np.abs(parts - change(source, 0, index)[0].permute(1, 2, 0).numpy())
        # nearest: where centres lie on the edge of pixels, either is right
        assert (away <= 1).mean((2, 3, 4)).max() > (0.85 if interpolation == "nearest" else 0.999)


def test_what_is_smaller_than_the_crop_is_padded_at_the_bottom_and_the_right():
    source = scene(24, 32)
    change = transform((32, 24), crop=(40, 44))
    pixels, labels = change(source, 0, 0)
    assert np.array_equal(labels[:24, :32], source.target)
    assert (labels[24:] == IGNORED).all()
    assert (labels[:, 32:] == IGNORED).all()
    padding = change.preparation.normalise(pixels)
    assert padding[:, 24:].abs().max() < 0.01
    assert padding[:, :, 32:].abs().max() < 0.01
    assert np.array_equal(pixels[:, :24, :32].permute(1, 2, 0), source.image)
    # mirrored first: the padding stays where a network's own is
    mirrored = transform((32, 24), crop=(40, 44), flip=1.0)(source, 0, 0)[1]
    assert np.array_equal(mirrored[:24, :32], source.target[:, ::-1])
    # its colours change, and no label; the padding stays
    changed = transform((32, 24), crop=(40, 44), photometric=True)
    seen = [changed(source, 1, index) for index in range(20)]
    assert all(torch.equal(classes, labels) for _, classes in seen)
    assert all(torch.equal(image[:, 24:], pixels[:, 24:]) for image, _ in seen)
    assert 0.4 < np.mean([not torch.equal(image, pixels) for image, _ in seen]) < 1


@pytest.mark.parametrize(
    ("crop", "multiple", "frame"), [((48, 96), (32, 28), (64, 112)), ((64, 56), (32, 28), (64, 56))]
)
def test_a_crop_is_padded_to_what_the_network_takes(crop, multiple, frame):
    preparation = ScenePreparation((200, 100), multiple, "pad")
    asked = SegmentationAugmentConfig(scale_range=(1.0, 1.0), crop=crop, flip=0.5, max_class_share=1.0)
    change = SegmentationTransform(preparation, asked, 0)
    assert change.frame == frame
    for source, inside in ((scene(100, 100), crop), (scene(30, 100), (min(crop[0], 60), crop[1]))):
        pixels, labels = change(source, 0, 0)  # large enough, and low: 60 rows of 200 columns
        assert pixels.shape == (3, *frame)
        outside = torch.ones(frame, dtype=torch.bool)
        outside[: inside[0], : inside[1]] = False
        assert torch.equal(labels == IGNORED, outside)
        assert (pixels[:, outside] == torch.tensor(preparation.mean_pixel)[:, None]).all()


def test_nothing_counts_but_seed_epoch_and_scene():
    source = scene()

    def drawn(epoch=3, index=5, seed=0):
        change = transform(scale_range=(0.5, 2.0), flip=0.5, photometric=True, seed=seed)
        torch.rand(3)
        pixels, labels = change(source, epoch, index)
        assert set(labels.unique().tolist()) <= {IGNORED, 0, 1, 2, 3, 4}  # taken, never mixed
        return pixels

    first = drawn()
    assert torch.equal(drawn(), first)
    assert not any(torch.equal(other, first) for other in (drawn(index=6), drawn(epoch=4), drawn(seed=1)))


def test_factors_and_corners_are_spread_over_all_that_is_allowed():
    """A label tells where its pixel is from, so the first two of a row tell the corner and the scale."""
    source = smooth(40, 40)
    change = transform((40, 40), seed=7, crop=(37, 39), flip=0.3, max_class_share=1.0)
    labels = np.stack([change(source, 0, index)[1].numpy() for index in range(200)])
    mirrored = labels[:, 0, 0] > labels[:, 0, 1]
    corners = np.stack([labels[:, 0, 0] // 1000, labels.min((1, 2)) % 1000], 1)
    for column, count in ((0, 4), (1, 2)):
        found = np.bincount(corners[:, column], minlength=count)
        assert len(found) == count
        assert (abs(found - 200 / count) < 5 * np.sqrt(200 / count)).all()
    assert abs(mirrored.mean() - 0.3) < 0.1
    scaled = transform((40, 40), scale_range=(0.5, 2.0), crop=(80, 80), max_class_share=1.0)
    sizes = np.array([(scaled(source, 0, index)[1][0] != IGNORED).sum() for index in range(100)]) / 40
    assert 0.5 <= sizes.min() < 0.6
    assert 1.9 < sizes.max() <= 2
    assert abs(sizes.mean() - 1.25) < 0.1


def test_a_crop_with_too_much_of_one_class_is_drawn_again():
    mask = np.zeros((40, 400), np.int32)
    mask[:, :40] = np.arange(40) % 4
    source = Sample(Image.new("RGB", (400, 40)), "mostly one", mask)

    def too_much(most):
        change = transform((400, 40), crop=(40, 40), max_class_share=most)
        return np.mean([largest_share(change(source, 0, index)[1].numpy()) > 0.75 for index in range(60)])

    assert too_much(1.0) > 0.8  # one in ten shows more than one class
    assert too_much(0.75) < 0.55  # what is left after ten more attempts at one in ten
    alike = Sample(source.image, "one class", np.zeros((40, 400), np.int32))
    assert transform((400, 40), crop=(40, 40))(alike, 0, 0)[1].eq(0).all()  # ends, with the last crop


def test_unlabelled_pixels_do_not_count_for_the_share():
    assert largest_share(np.array([[0, 0, 0, 1, *[IGNORED] * 12]])) == 0.75
    assert largest_share(np.full((2, 2), IGNORED)) == 1.0


def test_a_scene_without_labels_cannot_be_learned_from():
    with pytest.raises(ValueError, match="an image has no label file: needs one to learn from"):
        transform()(Sample(Image.new("RGB", (64, 48)), "an image", None), 0, 0)
