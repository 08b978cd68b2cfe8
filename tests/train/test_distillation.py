"""Knowledge distillation: what the loss is, who may teach, and that nothing changes without a teacher."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from training_runs import learn, network_and_batch, same, tiny, weights

from trueshift.models import create_model
from trueshift.train.task import Classification, distillation


def test_the_divergence_is_the_textbooks():
    own, teacher = torch.randn(2, 6, 5, dtype=torch.float64)
    for temperature in (1.0, 4.0):
        taught, learned = ((each / temperature).softmax(1) for each in (teacher, own))
        by_hand = (taught * (taught / learned).log()).sum(1).mean() * temperature**2
        torch.testing.assert_close(distillation(own, teacher, temperature), by_hand.float())
    assert distillation(own, own + 3, 2.0).abs() < 1e-6  # the same prediction
    far = torch.tensor([[1e4, 0.0]])
    assert distillation(far, -far, 1.0).isfinite()


def taught(teacher, **given):
    task = Classification(tiny(Path("unused"), distill__teacher=teacher, **given))
    task.build_network()
    return task


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_the_loss_is_the_labels_and_the_teachers_in_their_shares(weight):
    model, batch = network_and_batch()
    task = taught("swin_mini.cifar10", distill__weight=weight, distill__temperature=2.0)
    teacher = create_model("swin_mini.cifar10", pretrained=True).eval()
    before = [parameter.clone() for parameter in task.teacher.module.parameters()]
    loss = task.loss(model, batch)
    logits = model(batch.images)
    with torch.no_grad():
        apart = distillation(logits, teacher(batch.images), 2.0)
    torch.testing.assert_close(loss, (1 - weight) * F.cross_entropy(logits, batch.labels) + weight * apart)
    loss.backward()
    assert all(parameter.grad is None for parameter in task.teacher.module.parameters())
    assert all(map(torch.equal, before, task.teacher.module.parameters()))
    assert not task.teacher.module.training


def test_a_teacher_sees_both_views_of_a_loss_between_crops():
    model, batch = network_and_batch(6)
    given = {"augment__pad_crop": 4, "distill__weight": 0.5}
    views = [replace(batch, images=view) for view in batch.images.chunk(2, 1)]
    alone = torch.stack([taught("swin_mini.cifar10", **given).loss(model, view) for view in views]).mean()
    without = {**given, "augment__consistency": 1.0}
    both = taught("swin_mini.cifar10", **without).loss(model, batch)
    assert both > alone
    same_views = replace(batch, images=torch.cat([views[0].images] * 2, 1))
    torch.testing.assert_close(
        taught("swin_mini.cifar10", **without).loss(model, same_views),
        taught("swin_mini.cifar10", **given).loss(model, views[0]),
    )


def test_a_run_learns_from_its_teacher(tmp_path):
    """From another run's folder, too; a share of nothing changes no weight, a share of something does."""
    teacher = create_model("swin_mini", num_classes=10, embed_dim=8, depths=(1, 1), num_heads=(1, 2))
    folder = teacher.save_pretrained(tmp_path / "teacher")
    given = {"schedule__epochs": 1, "data__limit": 32, "optimizer__lr": 0.01}
    plain = weights(learn(tmp_path / "plain", **given))
    for weight in (0.0, 0.5):
        taught = {"distill__teacher": folder, "distill__weight": weight}
        assert same(weights(learn(tmp_path / str(weight), **given, **taught)), plain) == (weight == 0)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"num_classes": 7}, "has 7 classes: needs 10, as the data"),
        ({"num_classes": 10, "img_size": 64}, r"takes images of size \(64, 64\): needs \(32, 32\)"),
    ],
)
def test_a_teacher_of_something_else_is_refused(made, message, tmp_path):
    small = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2)}
    folder = create_model("swin_mini", **small, **made).save_pretrained(tmp_path / "teacher")
    with pytest.raises(ValueError, match=message):
        taught(folder)


def test_a_teacher_that_is_not_there_is_named(tmp_path):
    with pytest.raises(Exception, match="nowhere"):
        taught(tmp_path / "nowhere" / "at" / "all")
