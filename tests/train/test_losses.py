"""A loss between two crops, and knowledge distillation: what each loss is, and that nothing changes without it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from training_runs import learn, same, tiny, weights

from trueshift.data import EmbeddedSample, Preparation
from trueshift.data.subset import Subset
from trueshift.models import create_model
from trueshift.train.config import AugmentConfig
from trueshift.train.data.augment import ClassificationTransform
from trueshift.train.data.loader import AugmentedSamples, Batch, DirectFeed, LoaderFeed
from trueshift.train.data.on_device import ResidentImages
from trueshift.train.data.sampler import BatchOrder
from trueshift.train.task import Classification, distillation, divergence
from trueshift.utils.rng import hashed

SMALL = Preparation((24, 24), 0.875)
SAMPLE = Subset(EmbeddedSample(), np.arange(12))
ORDER = BatchOrder(len(SAMPLE), 6, seed=3)
PAD = {"pad_crop": 4, "erasing": 0.5, "vertical_flip": 0.5}
TEACHER = "swin_mini.cifar10"


def transform(consistency, seed=3, **augment):
    return ClassificationTransform(SMALL, AugmentConfig(consistency=consistency, **augment), seed)


def batches(change, epoch):
    return list(LoaderFeed(AugmentedSamples(SAMPLE, change), ORDER, "cpu", 0).epoch(epoch))


def network_and_batch(channels=3):
    """A linear classifier, and four images; 6 channels are two views."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    return model, Batch(torch.randn(4, channels, 32, 32), torch.tensor([0, 3, 3, 9]), np.arange(4))


def task(**changes):
    made = Classification(tiny(Path("unused"), **changes))
    if "distill__teacher" in changes:
        made.build_network()
    return made


@pytest.mark.parametrize("way", [PAD, {"crop_scale": (0.3, 1.0)}, {**PAD, "color_jitter": 0.4}], ids="-".join)
def test_two_views_are_those_of_two_seeds_and_the_first_is_the_one_without_a_loss(way):
    both, first = batches(transform(0.5, **way), 5), batches(transform(0.0, **way), 5)
    second = batches(transform(0.0, int(hashed(3, 10)), **way), 5)
    for pair, one, other in zip(both, first, second, strict=True):
        assert pair.indices.tolist() == one.indices.tolist()
        assert pair.labels.tolist() == one.labels.tolist()
        assert torch.equal(pair.images, torch.cat([one.images, other.images], 1))
        assert (pair.images[:, :3] != pair.images[:, 3:]).flatten(1).any(1).all()


def test_pixels_that_views_share_are_read_once_and_may_lie_on_the_device():
    change = transform(0.5, **PAD)
    assert change(SAMPLE[0], 0, 0)[0].shape == (3, 24, 24)
    resident = DirectFeed(ResidentImages(SAMPLE, SMALL, "cpu").augmented(change), ORDER)
    for one, other in zip(resident.epoch(2), batches(change, 2), strict=True):
        assert torch.equal(one.images, other.images)


def test_the_divergences_are_the_textbooks():
    first, second = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True) * 3
    one, other = first.log_softmax(1), second.log_softmax(1)
    ways = [F.kl_div(a, b, reduction="batchmean", log_target=True) for a, b in ((one, other), (other, one))]
    torch.testing.assert_close(divergence(first, second), sum(ways) / 2)
    assert divergence(first, first + 8) < 1e-12  # the same prediction
    assert torch.autograd.gradcheck(divergence, (first, second))
    for temperature in (1.0, 4.0):
        taught, learned = ((each / temperature).softmax(1) for each in (second, first))
        by_hand = (taught * (taught / learned).log()).sum(1).mean() * temperature**2
        torch.testing.assert_close(distillation(first, second, temperature), by_hand.float())
    far = torch.tensor([[1e4, 0.0]])
    assert divergence(far, -far).isfinite()
    assert distillation(far, -far, 1.0).isfinite()


@pytest.mark.parametrize("mixed", [{}, {"augment__mixup": 0.8, "augment__cutmix": 1.0}], ids=["plain", "mixed"])
def test_the_loss_is_that_of_both_views_and_the_weighted_divergence(mixed):
    model, given = network_and_batch(6)

    def loss(weight, images=given.images):
        np.random.seed(5)  # noqa: NPY002 -- timm mixes by it
        return task(augment__pad_crop=4, augment__consistency=weight, **mixed).loss(
            model, replace(given, images=images)
        )

    views = given.images.chunk(2, 1)
    apart = torch.stack([loss(0.0, view) for view in views]).mean()  # mixed in the same way
    between = loss(1.0) - apart
    assert between > 0.1
    torch.testing.assert_close(loss(0.25), apart + 0.25 * between)
    torch.testing.assert_close(loss(100.0, torch.cat([views[0]] * 2, 1)), loss(0.0, views[0]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_without_a_weight_there_is_one_view_and_cross_entropy_alone(smoothing):
    change, (model, given) = transform(0.0, **PAD), network_and_batch()
    assert change.views == (change,)
    expected = F.cross_entropy(model(given.images), given.labels, label_smoothing=smoothing)
    assert torch.equal(task(augment__label_smoothing=smoothing).loss(model, given), expected)


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_the_loss_is_the_labels_and_the_teachers_in_their_shares(weight):
    model, batch = network_and_batch()
    taught = task(distill__teacher=TEACHER, distill__weight=weight, distill__temperature=2.0)
    teacher = create_model(TEACHER, pretrained=True).eval()
    loss, logits = taught.loss(model, batch), model(batch.images)
    with torch.no_grad():
        apart = distillation(logits, teacher(batch.images), 2.0)
    torch.testing.assert_close(loss, (1 - weight) * F.cross_entropy(logits, batch.labels) + weight * apart)
    loss.backward()
    assert all(parameter.grad is None for parameter in taught.teacher.module.parameters())
    assert all(map(torch.equal, teacher.parameters(), taught.teacher.module.parameters()))
    assert not taught.teacher.module.training


def test_a_teacher_sees_both_views_of_a_loss_between_crops():
    model, batch = network_and_batch(6)
    given = {"augment__pad_crop": 4, "distill__weight": 0.5, "distill__teacher": TEACHER}
    alone, both = task(**given), task(**given, augment__consistency=1.0)
    views = [replace(batch, images=view) for view in batch.images.chunk(2, 1)]
    assert both.loss(model, batch) > torch.stack([alone.loss(model, view) for view in views]).mean()
    same_views = replace(batch, images=torch.cat([views[0].images] * 2, 1))
    torch.testing.assert_close(both.loss(model, same_views), alone.loss(model, views[0]))


def test_a_run_learns_from_its_teacher(tmp_path):
    """From another run's folder, too; a share of nothing changes no weight, a share of something does."""
    teacher = create_model("swin_mini", num_classes=10, embed_dim=8, depths=(1, 1), num_heads=(1, 2))
    folder = teacher.save_pretrained(tmp_path / "teacher")
    given = {"max_steps": 2, "evaluate__limit": 4, "optimizer__lr": 0.01}
    plain = weights(learn(tmp_path / "plain", **given))
    for weight in (0.0, 0.5):
        taught = {"distill__teacher": folder, "distill__weight": weight}
        assert same(weights(learn(tmp_path / str(weight), **given, **taught)), plain) == (weight == 0)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"num_classes": 7}, "has 7 classes: needs 10, as the data"),
        ({"num_classes": 10, "img_size": 64}, r"takes images of size \(64, 64\): needs \(32, 32\)"),
        (None, "nowhere"),
    ],
)
def test_a_teacher_of_something_else_is_refused(made, message, tmp_path):
    folder = tmp_path / "nowhere" / "at" / "all"
    if made:
        small = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2)}
        folder = create_model("swin_mini", **small, **made).save_pretrained(tmp_path / "teacher")
    with pytest.raises((ValueError, OSError), match=message):
        task(distill__teacher=folder)
