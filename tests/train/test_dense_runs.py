"""Whole runs that learn the class of every pixel, or the next state of a field: what they leave, survive and refuse.

That accumulated gradients learn the same as one large batch is not asked here: batch norm, which the decoder is full
of, takes its statistics from the images of one pass, and a loss is the mean over the labelled pixels of one pass.
"""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from training_runs import TRANSFORMERS, learn, log, losses, run_here, same, tiny, weights, write_scenes

import trueshift
from trueshift.cli import main
from trueshift.data import open_fields
from trueshift.data.transforms import ScenePreparation
from trueshift.eval import run_field_evaluation
from trueshift.eval.models.load import load_eval_model
from trueshift.testing import assert_equivariant
from trueshift.train import train
from trueshift.train.data.fields import FieldReader
from trueshift.train.data.loader import DirectFeed
from trueshift.train.data.sampler import BatchOrder
from trueshift.train.network import build_segmenter

IMAGES, PIXELS, FIELDS = "classification", "segmentation", "fields"
slow = pytest.mark.slow


def run(output, data, kind=PIXELS, **changes):
    return learn(output, task=kind, data__path=data, **changes)


def network(data, **changes):
    """As a run would build it."""
    return build_segmenter(tiny("unused", task="segmentation", data__path=data, **changes), 3)


def test_what_a_run_leaves_behind(learned):
    """Five steps are two and a half epochs: measured after two of them, and at the end."""
    found = losses(learned)
    assert found[5] < 0.9 * found[1]
    assert [(entry["step"], entry["epoch"]) for entry in log(learned, "test")] == [(4, 1), (5, 2)]
    assert {path.name for path in learned.iterdir()} == {
        *("best", "final", "final_ema", "checkpoints", "config.json", "log.jsonl", "summary.json", "eval.json")
    }
    model, subject = trueshift.from_pretrained(learned / "final"), load_eval_model(str(learned / "best"))
    assert isinstance(model, trueshift.UperNet)
    assert (model.config.channels, model.encoder.config.embed_dim) == (8, 8)
    assert model.pretrained_cfg["crop"] == [32, 32]
    assert model.pretrained_cfg["label_names"] == subject.classes == ["ground", "disc", "square"]
    assert not subject.assumed
    wanted = subject.preparation
    assert isinstance(wanted, ScenePreparation)
    assert (wanted.scale, wanted.multiple, wanted.fit) == ((64, 32), (4, 4), "resize")
    best = max(max(entry["model_mean_iou"], entry["ema_mean_iou"]) for entry in log(learned, "test"))
    assert json.loads((learned / "best" / "measured.json").read_text())["mean_iou"] == best
    assert json.loads((learned / "summary.json").read_text())["best_mean_iou"] == best
    # the final weights are measured, and move with the image
    circular = json.loads((learned / "eval.json").read_text())["measured"]["ade20k-circular"]
    assert circular["consistency"]["rate"] == 1
    assert circular["bit_exact"]["rate"] == 1
    assert circular["largest_logit_change"] == 0
    # the same scenes, prepared alike: as measured while learning
    assert circular["mean_iou"] == pytest.approx(log(learned, "test")[-1]["model_mean_iou"])


@slow
def test_scenes_of_different_sizes_are_measured_each_as_it_is_shown_together_or_not(tmp_path):
    data = write_scenes(tmp_path / "data", train=4, test=3)
    for kind in ("images", "masks"):
        tall = data / kind / "val" / "val_01.png"
        Image.open(tall).rotate(90, expand=True).save(tall)
    (one,), (four,) = (
        log(run(tmp_path / str(size), data, evaluate__batch_size=size, schedule__steps=1), "test") for size in (1, 4)
    )
    assert one["model_images"] == 3
    assert one["model_mean_iou"] == pytest.approx(four["model_mean_iou"])


def test_scenes_that_cannot_be_read_are_named_and_others_stand_in(tmp_path):
    data = write_scenes(tmp_path / "data", train=4, test=2)
    (data / "masks" / "train" / "train_00.png").write_bytes(b"no mask")
    unknown = data / "masks" / "train" / "train_01.png"
    Image.fromarray(np.full((48, 64), 7, np.uint8)).save(unknown)
    (data / "images" / "val" / "val_00.png").write_bytes(b"no image")
    output = run(tmp_path / "run", data, schedule__steps=1)
    reported = {entry["instead"]: entry["images"] for entry in log(output, "unreadable")}
    first, second = reported["another stands in for it"]
    assert first.startswith("images/train/train_00.png: ValueError: ")
    assert "train_00.png is not an image that Pillow knows" in first
    assert "train_01.png has the value 7, which no class has: needs 0 to 2, or 255 for what is ignored" in second
    (left_out,) = reported["it is not measured on"]
    assert "val_00.png" in left_out
    assert log(output, "test")[0]["model_images"] == 1


@slow
@pytest.mark.parametrize(("mask", "message"), [(255, "has a labelled pixel"), (7, "could be read")])
def test_nothing_to_measure_on_is_reported(tmp_path, mask, message):
    data = write_scenes(tmp_path / "data", train=4, test=1)
    Image.fromarray(np.full((48, 64), mask, np.uint8)).save(data / "masks" / "val" / "val_00.png")
    with pytest.raises(ValueError, match=f"none of the images to measure on {message}"):
        run(tmp_path / "run", data, schedule__steps=1)


def test_a_network_of_another_run_goes_on(learned, scenes):
    changes = {"model__drop_path_rate": 0.25, "segmentation__decoder": "{drop_rate: 0.3}"}
    again = network(scenes, model__start_from=learned / "final", **changes)
    assert (again.training, again.adaptive) == (True, True)
    assert same(again.state_dict(), weights(learned))
    assert (again.encoder.config.drop_path_rate, again.drop.p) == (0.25, 0.3)


def test_an_ordinary_network_is_adapted_with_its_decoder(tmp_path, scenes):
    ordinary = network(scenes, model__name="swin_mini")
    folder = ordinary.save_pretrained(tmp_path / "ordinary")
    adapted = network(scenes, model__start_from=folder, model__drop_path_rate=0.25)
    assert (adapted.adaptive, ordinary.adaptive) == (True, False)
    assert same(adapted.state_dict(), ordinary.state_dict())
    assert adapted.encoder.config.drop_path_rate == 0.25
    assert_equivariant(adapted.eval(), torch.rand(1, 3, 32, 32), shifts=2)


def test_a_backbone_of_another_run_gets_a_new_decoder(tmp_path, scenes):
    small = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1)}
    backbone = trueshift.create_model("swin_mini", num_classes=10, **small)
    model = network(scenes, model__start_from=backbone.save_pretrained(tmp_path))
    assert model.adaptive
    assert model.num_classes == 3
    for key, value in model.encoder.state_dict().items():
        assert torch.equal(value, backbone.state_dict()[key]), key


def test_what_cannot_be_started_from_is_refused(tmp_path, learned, scenes):
    final = learned / "final"
    for changes, message in (
        ({"model__name": "swin_mini"}, r"holds a a_\S+: needs swin_mini\S*, or the ordinary network to adapt"),
        ({"model__name": "swinv2_mini", "model__arguments": "{}"}, "needs swinv2_mini"),
        ({"segmentation__decoder": "{channels: 4}"}, "do not fit|not fit"),
        ({"model__start_from": tmp_path / "nowhere" / "at" / "all"}, "nowhere"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            network(scenes, **{"model__start_from": final, **changes})
    with pytest.raises(ValueError, match="logits of classifiers; needs grids=1"):
        network(scenes, model__arguments="{grids: 4}")
    with pytest.raises(ValueError, match="knows 3 classes: needs the 4 of the data"):
        build_segmenter(tiny(tmp_path, task="segmentation", model__start_from=final), 4)


def test_padded_crops_are_learned_from_too_and_images_without_splits_held_out(tmp_path, capsys):
    data = write_scenes(tmp_path / "data", train=8, test=2, flat=True)
    changes = {"segmentation__fit": "pad", "segmentation__augment__crop": "[40, 24]", "segmentation__multiple": 16}
    asked = tiny(tmp_path / "run", task=PIXELS, data__path=data, data__holdout=0.2, schedule__steps=1, **changes)
    assert train(asked, Console(width=500)) == 0
    assert "images of 40 x 24 padded to 48 x 32 (0 workers)" in capsys.readouterr().out
    assert load_eval_model(str(tmp_path / "run" / "final")).preparation.fit == "pad"
    assert log(tmp_path / "run", "test")[0]["model_images"] == 2
    with pytest.raises(ValueError, match="has the same images to learn from and to measure on: needs folders"):
        run(tmp_path / "other", data)


# -- fields ------------------------------------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_a_network_behind(tmp_path, flows):
    run(tmp_path, flows, FIELDS, schedule__epochs=16, evaluate__every_epochs=8)
    errors = [entry["model_relative_l2"] for entry in log(tmp_path, "test")]
    assert errors[-1] < 0.3 < 2 * np.sin(0.2)  # of a network that does nothing
    net = trueshift.from_pretrained(tmp_path / "final")
    train = open_fields(flows, "train")
    assert net.pretrained_cfg["mean"] == pytest.approx(list(train.statistics().mean))
    assert net.pretrained_cfg["size"] == [32, 32]
    assert_equivariant(net, torch.randn(2, 2, 32, 32), shifts=2)
    assert main(["eval", str(tmp_path / "final"), "--data", str(flows), "--output", str(tmp_path / "eval")]) == 0
    measured = json.loads((tmp_path / "eval" / "eval.json").read_text())["measured"]
    assert measured["one_step_l2"] == pytest.approx(errors[-1], rel=1e-4)
    assert measured["shift_error"] == {"1": 0}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["best_skill"] == pytest.approx(1 - min(errors))
    assert summary["data"]["pairs"] == 12
    assert trueshift.from_pretrained(tmp_path / "best").config == net.config


def test_a_network_of_transformers(tmp_path, flows):
    """By name, with random grids: it learns, and what it leaves behind moves with the field."""
    whole = run(tmp_path / "whole", flows, FIELDS, **TRANSFORMERS)
    assert losses(whole)[6] < losses(whole)[1]
    net = trueshift.from_pretrained(whole / "final")
    assert (net.encoder.config.grid_drop_rate, net.encoder.model.config.drop_path_rate) == (0.5, 0.1)
    assert_equivariant(net, torch.randn(2, 2, 32, 32), shifts=2)
    start = {**TRANSFORMERS, "model__start_from": whole / "final", "max_steps": 1, "optimizer__lr": 0}
    second = run(tmp_path / "second", flows / "train.npy", FIELDS, data__holdout=0.25, **start)
    assert same(weights(whole), weights(second))
    assert log(second, "test")[-1]["model_images"] == 3  # one of four trajectories is kept for that


@pytest.mark.parametrize("on_device", [True, False])
def test_a_state_and_the_next_are_rolled_together(flows, on_device):
    pairs = open_fields(flows, "train")
    how = pairs, pairs.statistics(), torch.device("cpu"), on_device
    still, moving, wide = (FieldReader(*how, rolls, seed=7) for rolls in (False, True, "width"))
    plain, rolled = (DirectFeed(reader.rolled, BatchOrder(len(pairs), 4)) for reader in (still, moving))
    seen = set()
    for epoch in (0, 1):
        for one, other in zip(plain.epoch(epoch), rolled.epoch(epoch), strict=True):
            offsets = moving.offsets(epoch, one.indices)
            seen |= {tuple(offset) for offset in offsets.tolist()}
            rolled_wide = wide.rolled(epoch, one.indices)[0]
            assert torch.equal(
                rolled_wide, trueshift.circular_shift(one.images, wide.offsets(epoch, one.indices), (2, 3))
            )
            for part in ("images", "labels"):
                moved = trueshift.circular_shift(getattr(one, part), offsets, (2, 3))
                assert torch.equal(getattr(other, part), moved)
            now = pairs.statistics().normalize(torch.from_numpy(pairs.batch(one.indices)[0]))
            torch.testing.assert_close(one.images, now)
    assert len(seen) > 16  # another offset for each, in each epoch
    at = np.arange(12)
    assert torch.equal(wide.offsets(0, at), moving.offsets(0, at) * torch.tensor([0, 1]))  # columns alone
    resumed = next(iter(rolled.epoch(1, first_step=2)))
    assert torch.equal(resumed.images, list(rolled.epoch(1))[2].images)


def test_splits_of_other_variables_are_refused(tmp_path, flows):
    """Also by what was trained: in the same place stands something else."""
    xarray, states = pytest.importorskip("xarray"), np.load(flows / "train.npy")

    def save(split, number, *names):
        channels = {name: (("time", "lat", "lon"), states[number, :, at]) for at, name in enumerate(names)}
        xarray.Dataset(channels).to_netcdf(tmp_path / f"{split}.nc")

    save("train", 0, "u", "v")
    save("test", 1, "u", "v")
    run(tmp_path / "run", tmp_path, FIELDS, max_steps=1, batch_size=2)
    save("test", 1, "t", "u")
    with pytest.raises(ValueError, match=r"test\.nc has the variables t, u, train\.nc u, v: needs the same names"):
        run(tmp_path / "other", tmp_path, FIELDS, batch_size=2)
    with pytest.raises(ValueError, match=r"test\.nc has the variables t, u, .*final u, v: needs the same names"):
        run_field_evaluation([str(tmp_path / "run" / "final")], tmp_path, steps=(1,))


def test_fields_that_do_not_fit_are_refused(tmp_path, flows):
    states = np.load(flows / "train.npy")

    def refused(message, train, test):
        np.save(tmp_path / "train.npy", train)
        np.save(tmp_path / "test.npy", test)
        with pytest.raises(ValueError, match=message):
            run(tmp_path / "run", tmp_path, FIELDS)

    refused("the same fields to learn from and to measure on", states, states)
    refused("needs the same channels and size", states, states[1:, :, :1])
    refused("needs a multiple of", states[..., :31], states[1:, ..., :31])
    refused("holds NaN", states, np.full_like(states, np.nan))
    refused("fewer than a batch", states[:1, :3], states[1:])


# -- all tasks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        (IMAGES, {"data__holdout": 0}, "the same images to learn from and to measure on: .*holdout"),
        (IMAGES, {"data__path": "nowhere"}, "there is no data at nowhere"),
        (IMAGES, {"data__path": "nowhere", "data__kind": "cifar10"}, "trueshift download cifar10 --folder nowhere"),
        (IMAGES, {"data__kind": "imagenet"}, "has 10 classes: this recipe is for imagenet, which has 1000"),
        (IMAGES, {"batch_size": 97}, "fewer than a batch of 97"),
        (IMAGES, {"batch_size": 16, "accumulate": 3}, "does not divide into 3 equal parts.*15 or 18"),
        (IMAGES, {"batch_size": 15, "augment__mixup": 0.8}, "need an even number of images in each, e.g. 14"),
        (IMAGES, {"model__name": "a_swin_tiy"}, "did you mean"),
        (IMAGES, {"evaluate__protocols": "[circulr]"}, "circular"),
        (IMAGES, {"model__name": "resnet10t", "model__padding": "circular"}, "cannot be padded circularly"),
        (IMAGES, {"sync_batchnorm": "true"}, "works on GPUs only"),
        (IMAGES, {"precision": "fp16"}, "needs bf16 or float32 on a CPU"),
        (IMAGES, {"data__on_device": "yes", "augment__color_jitter": 0.4}, "color_jitter works on single images"),
        (IMAGES, {"augment__auto_augment": "rand-n2-x9"}, "^augment.auto_augment 'rand-n2-x9': timm cannot read it"),
        (IMAGES, {"optimizer__name": "adamv"}, "optimizer 'adamv' cannot be made"),
        (IMAGES, {"data__img_size": 33}, r"height 33: needs a multiple of \d+"),
        (IMAGES, {"resume": "somewhere"}, "somewhere is not a whole checkpoint.*: needs auto, never or the folder"),
        (PIXELS, {"data__path": "nowhere"}, "there is no data at nowhere: name where it is with --data.path"),
        (PIXELS, {"data__train_split": "trainings"}, "split 'trainings': needs one of train, training, val"),
        (PIXELS, {"data__kind": "camvid"}, "has 3 classes: this recipe is for camvid, which has 11"),
        (PIXELS, {"batch_size": 4, "accumulate": 4}, "4 in 4 parts: .* 2 images in each, e.g. --batch_size 8"),
        (
            PIXELS,
            {"segmentation__augment__crop": "[42, 32]"},
            "augment.crop, height 42: .*multiple of 4.*or .*fit pad",
        ),
        (PIXELS, {"segmentation__multiple": "6"}, "segmentation.multiple, height 6: needs a multiple of 4"),
        (PIXELS, {"segmentation__scale": "[32, 64]"}, r"scale \(32, 64\).*needs the longest side first"),
        (PIXELS, {"segmentation__decoder": "{channel: 8}"}, "decoder has channel: needs some of channels, bins"),
        (PIXELS, {"model__name": "resnet10t"}, "resnet10t is timm's own: UperNet needs a network of ours"),
        (PIXELS, {"model__name": "a_swin_minni"}, "no model is called 'a_swin_minni': did you mean"),
        (PIXELS, {"evaluate__protocols": "[ade20k, circular]"}, "circular: segmentation needs those for pixels"),
        (IMAGES, {"fields__random_rolls": True}, "fields is for fields: needs --task fields"),
        (FIELDS, {"augment__flip": 0.1}, "needs --fields.random_rolls here"),
        (FIELDS, {"data__kind": "camvid"}, "has no fields"),
        (FIELDS, {"data__img_size": 64}, "leave them out"),
        (FIELDS, {"model__pretrained": True}, "published weights are for images"),
        (FIELDS, {"evaluate__protocols": "[circular]"}, "are for images"),
        (FIELDS, {"fields__decoder": "{channels: 3}"}, "fields.decoder has channels: needs some of residual"),
        (FIELDS, {"fields__random_rolls": True, "model__arguments": "{circular: width}"}, "rolls rows: needs width"),
        (FIELDS, {"cuda_graph": True, "data__path": "nowhere"}, "cuda_graph works on GPUs only"),  # nothing is opened
        (FIELDS, {"model__name": "resnet18"}, "resnet18"),
        (FIELDS, {"model__name": "transformers/vit"}, "needs one of transformers/swin, transformers/swinv2"),
        (FIELDS, {**TRANSFORMERS, "model__arguments": "{}"}, "grid_drop_rate with a fixed grid"),
        (FIELDS, {"data__path": "nowhere"}, "there are no fields at nowhere"),
        (FIELDS, {"data__holdout": 0.9}, "leaves none; needs .* such as test.npy"),
    ],
)
def test_what_cannot_work_is_reported_before_the_first_step(tmp_path, data, task, changes, message):
    with pytest.raises((ValueError, OSError), match=message):
        run_here(tmp_path / "new" / "run", **data[task] | changes)
    assert not (tmp_path / "new").exists()
