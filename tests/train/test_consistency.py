"""A loss between two crops: which crops, what the loss is, and that nothing changes without it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training_runs import network_and_batch, tiny

from trueshift.data import EmbeddedSample, Preparation
from trueshift.data.subset import Subset
from trueshift.train.config import AugmentConfig
from trueshift.train.data.augment import ClassificationTransform
from trueshift.train.data.loader import AugmentedSamples, DirectFeed, LoaderFeed
from trueshift.train.data.on_device import ResidentImages
from trueshift.train.data.sampler import BatchOrder
from trueshift.train.task import Classification, divergence
from trueshift.utils.rng import hashed

SMALL = Preparation((24, 24), 0.875)
SAMPLE = Subset(EmbeddedSample(), np.arange(12))
ORDER = BatchOrder(len(SAMPLE), 6, seed=3)
PAD = {"pad_crop": 4, "erasing": 0.5, "vertical_flip": 0.5}
WAYS = [PAD, {"crop_scale": (0.3, 1.0)}, {**PAD, "color_jitter": 0.4}]


def transform(consistency, seed=3, **augment):
    return ClassificationTransform(SMALL, AugmentConfig(consistency=consistency, **augment), seed)


def batches(change, epoch):
    return list(LoaderFeed(AugmentedSamples(SAMPLE, change), ORDER, "cpu", 0).epoch(epoch))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way))
def test_two_views_are_those_of_two_seeds_and_the_first_is_the_one_without_a_loss(way):
    for epoch in (0, 5):
        both, first = batches(transform(0.5, **way), epoch), batches(transform(0.0, **way), epoch)
        second = batches(transform(0.0, int(hashed(3, 10)), **way), epoch)
        for pair, one, other in zip(both, first, second, strict=True):
            assert pair.images.shape == (6, 6, 24, 24)
            assert pair.indices.tolist() == one.indices.tolist()
            assert pair.labels.tolist() == one.labels.tolist()
            assert torch.equal(pair.images[:, :3], one.images)
            assert torch.equal(pair.images[:, 3:], other.images)
            assert (pair.images[:, :3] != pair.images[:, 3:]).flatten(1).any(1).all()


def test_pixels_that_views_share_are_read_once_and_may_lie_on_the_device():
    change = transform(0.5, **PAD)
    assert change(SAMPLE[0], 0, 0)[0].shape == (3, 24, 24)
    resident = DirectFeed(ResidentImages(SAMPLE, SMALL, "cpu").augmented(change), ORDER)
    for one, other in zip(resident.epoch(2), batches(change, 2), strict=True):
        assert torch.equal(one.images, other.images)


def test_the_divergence_is_the_mean_of_both_ways_and_zero_for_equal_predictions():
    first, second = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True) * 3
    one, other = first.log_softmax(1), second.log_softmax(1)
    ways = [F.kl_div(a, b, reduction="batchmean", log_target=True) for a, b in ((one, other), (other, one))]
    torch.testing.assert_close(divergence(first, second), sum(ways) / 2)
    assert torch.equal(divergence(first, second), divergence(second, first))
    assert divergence(first, second) > 0
    assert divergence(first, first + 8) < 1e-12  # the same prediction
    assert torch.autograd.gradcheck(divergence, (first, second))
    far = torch.tensor([[1e4, 0.0]])
    assert divergence(far, -far).isfinite()


class Constant(nn.Module):
    def forward(self, images):
        return torch.tensor([3.0, -1.0, *[0.5] * 8]).expand(len(images), 10)


def task(**augment):
    return Classification(tiny(Path("unused"), **{f"augment__{key}": value for key, value in augment.items()}))


@pytest.mark.parametrize(
    "mixed", [{}, {"mixup": 0.8, "cutmix": 1.0}, {"label_smoothing": 0.1}], ids=["plain", "mixed", "smooth"]
)
def test_the_loss_is_that_of_both_views_and_the_weighted_divergence(mixed):
    model, given = network_and_batch(6)

    def loss(weight, images=given.images, model=model):
        np.random.seed(5)  # noqa: NPY002 -- timm mixes by it
        return task(pad_crop=4, consistency=weight, **mixed).loss(model, replace(given, images=images))

    views = given.images.chunk(2, 1)
    apart = torch.stack([loss(0.0, view) for view in views]).mean()  # mixed in the same way
    between = loss(1.0) - apart
    assert between > 0.1
    torch.testing.assert_close(loss(0.25), apart + 0.25 * between)
    # nothing between two views that are the same, nor in a constant network
    torch.testing.assert_close(loss(100.0, torch.cat([views[0]] * 2, 1)), loss(0.0, views[0]))
    torch.testing.assert_close(loss(100.0, model=Constant()), loss(0.0, views[0], Constant()))


def test_without_a_weight_there_is_one_view_and_cross_entropy_alone():
    change, (model, given) = transform(0.0, **PAD), network_and_batch(3)
    assert change.views == (change,)
    assert torch.equal(task(pad_crop=4).loss(model, given), F.cross_entropy(model(given.images), given.labels))
