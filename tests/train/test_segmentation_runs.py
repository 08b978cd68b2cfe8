"""Whole runs that learn the class of every pixel: what they learn, leave behind, survive, start from and refuse.

That accumulated gradients learn the same as one large batch is not asked here: batch norm, which the decoder is full
of, takes its statistics from the images of one pass, and a loss is the mean over the labelled pixels of one pass.
"""

import json
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from training_runs import log, losses, run_here, same, tiny, tiny_words, weights, write_scenes

import trueshift
from trueshift.cli import main
from trueshift.data.transforms import ScenePreparation
from trueshift.eval.models.load import load_eval_model
from trueshift.train import task, train
from trueshift.train.network import build_segmenter
from trueshift.train.preemption import PREEMPTED

RANDOM = {"model__drop_path_rate": 0.3}


@pytest.fixture(scope="module")
def learned(tmp_path_factory, scenes):
    """A run with all that it can leave behind; others are compared with it."""
    output = tmp_path_factory.mktemp("learned")
    assert run(output, scenes, evaluate__protocols="[ade20k-circular]", ema_decay=0.9, **RANDOM) == 0
    return output


def run(output, data, **changes):
    return run_here(output, **{"task": "segmentation", "data__path": data, **changes})


def measurements(output):
    return log(output, "test")


def network(data, **changes):
    """As a run would build it."""
    return build_segmenter(tiny("unused", task="segmentation", data__path=data, **changes), 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_mini", "a_swin_mini"])
def test_it_finds_shapes_that_it_has_not_seen(tmp_path, scenes, name):
    wider = {"model__name": name, "model__arguments": "{embed_dim: 16, depths: [1, 1], num_heads: [1, 2]}"}
    assert run(tmp_path, scenes, schedule__steps=60, evaluate__every_epochs=30, **wider) == 0
    assert measurements(tmp_path)[-1]["model_mean_iou"] > 0.6  # all ground is 0.3 at most


def test_it_learns_to_its_last_step_and_is_measured_there(learned):
    """Five steps are two and a half epochs: measured after two of them, and at the end."""
    found = losses(learned)
    assert list(found) == [1, 2, 3, 4, 5]
    assert found[5] < 0.9 * found[1]
    assert [(entry["step"], entry["epoch"]) for entry in measurements(learned)] == [(4, 1), (5, 2)]
    assert json.loads((learned / "summary.json").read_text())["steps"] == 5


def test_what_a_run_leaves_behind(learned, scenes):
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
    best = max(max(entry["model_mean_iou"], entry["ema_mean_iou"]) for entry in measurements(learned))
    assert json.loads((learned / "best" / "measured.json").read_text())["mean_iou"] == best
    assert json.loads((learned / "summary.json").read_text())["best_mean_iou"] == best
    # the final weights are measured, and move with the image
    circular = json.loads((learned / "eval.json").read_text())["measured"]["ade20k-circular"]
    assert circular["consistency"]["rate"] == 1
    assert circular["bit_exact"]["rate"] == 1
    assert circular["largest_logit_change"] == 0
    # the same scenes, prepared alike: as measured while learning
    assert circular["mean_iou"] == pytest.approx(measurements(learned)[-1]["model_mean_iou"])


@pytest.mark.slow
def test_a_pair_of_scenes_of_different_sizes_is_measured_each_as_it_is(tmp_path):
    """mIoU does not depend on which scenes are shown together."""
    data = write_scenes(tmp_path / "data", train=4, test=3)
    tall = data / "images" / "val" / "val_01.png", data / "masks" / "val" / "val_01.png"
    for path in tall:
        Image.open(path).rotate(90, expand=True).save(path)
    found = {}
    for size in (1, 4):
        run(tmp_path / str(size), data, evaluate__batch_size=size, schedule__steps=1)
        (found[size],) = measurements(tmp_path / str(size))
    assert found[1]["model_images"] == 3
    assert found[1]["model_mean_iou"] == pytest.approx(found[4]["model_mean_iou"])


@pytest.mark.parametrize("which", [1, 2])
def test_a_run_told_to_stop_while_it_measures_goes_on_from_there(tmp_path, scenes, learned, monkeypatch, which):
    """At the end of an epoch, and at the end of the run, which is within one."""
    read, calls = task.read_scenes, []

    def interrupted(*arguments, **more):
        calls.append(1)
        if len(calls) == which:
            signal.raise_signal(signal.SIGTERM)
        yield from read(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(task, "read_scenes", interrupted)
        assert run(tmp_path, scenes, **RANDOM) == PREEMPTED
    assert len(measurements(tmp_path)) == which - 1
    assert run(tmp_path, scenes, **RANDOM) == 0
    assert same(weights(tmp_path), weights(learned))
    assert losses(tmp_path) == losses(learned)
    assert [(entry["step"], entry["epoch"]) for entry in measurements(tmp_path)] == [(4, 1), (5, 2)]
    assert measurements(tmp_path)[-1]["model_mean_iou"] == measurements(learned)[-1]["model_mean_iou"]


@pytest.mark.slow
def test_a_trial_that_goes_on_is_the_whole_run(tmp_path, scenes, learned):
    assert run(tmp_path, scenes, max_steps=3, **RANDOM) == 0
    assert [entry["step"] for entry in measurements(tmp_path)] == [3]
    assert run(tmp_path, scenes, **RANDOM) == 0
    assert same(weights(tmp_path), weights(learned))


def test_scenes_that_cannot_be_read_are_named_and_others_stand_in(tmp_path):
    data = write_scenes(tmp_path / "data", train=4, test=2)
    (data / "masks" / "train" / "train_00.png").write_bytes(b"no mask")
    unknown = data / "masks" / "train" / "train_01.png"
    Image.fromarray(np.full((48, 64), 7, np.uint8)).save(unknown)
    (data / "images" / "val" / "val_00.png").write_bytes(b"no image")
    assert run(tmp_path / "run", data, schedule__steps=1) == 0
    reported = {entry["instead"]: entry["images"] for entry in log(tmp_path / "run", "unreadable")}
    first, second = reported["another stands in for it"]
    assert first.startswith("images/train/train_00.png: ValueError: ")
    assert "train_00.png is not an image that Pillow knows" in first
    assert "train_01.png has the value 7, which no class has: needs 0 to 2, or 255 for what is ignored" in second
    (left_out,) = reported["it is not measured on"]
    assert "val_00.png" in left_out
    assert measurements(tmp_path / "run")[0]["model_images"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("mask", "message"), [(255, "has a labelled pixel"), (7, "could be read")])
def test_nothing_to_measure_on_is_reported(tmp_path, mask, message):
    data = write_scenes(tmp_path / "data", train=4, test=1)
    Image.fromarray(np.full((48, 64), mask, np.uint8)).save(data / "masks" / "val" / "val_00.png")
    with pytest.raises(ValueError, match=f"none of the images to measure on {message}"):
        run(tmp_path / "run", data, schedule__steps=1)


def test_a_network_of_another_run_goes_on(learned, scenes):
    again = network(scenes, model__start_from=learned / "final", model__drop_path_rate=0.25)
    assert (again.training, again.adaptive) == (True, True)
    assert same(again.state_dict(), weights(learned))
    assert again.encoder.config.drop_path_rate == 0.25  # what is said beside the name counts here too
    dropped = network(scenes, model__start_from=learned / "final", segmentation__decoder="{drop_rate: 0.3}")
    assert dropped.drop.p == 0.3


def test_an_ordinary_network_is_adapted_with_its_decoder(tmp_path, scenes):
    ordinary = network(scenes, model__name="swin_mini")
    folder = ordinary.save_pretrained(tmp_path / "ordinary")
    adapted = network(scenes, model__start_from=folder, model__drop_path_rate=0.25)
    assert (adapted.adaptive, ordinary.adaptive) == (True, False)
    assert same(adapted.state_dict(), ordinary.state_dict())
    assert adapted.encoder.config.drop_path_rate == 0.25
    images = torch.rand(1, 3, 32, 32)
    adapted.eval()
    with torch.inference_mode():
        assert torch.equal(adapted(images.roll((3, 5), (2, 3))), adapted(images).roll((3, 5), (2, 3)))


@pytest.mark.parametrize("name", ["swin_mini", "a_swin_mini"])
def test_a_backbone_of_another_run_gets_a_new_decoder(tmp_path, scenes, name):
    small = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1)}
    backbone = trueshift.create_model(name, num_classes=10, **small)
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
    with pytest.raises(ValueError, match="knows 3 classes: needs the 4 of the data"):
        build_segmenter(tiny(tmp_path, task="segmentation", model__start_from=final), 4)


def test_scenes_without_splits_need_some_that_are_held_out(tmp_path, capsys):
    data = write_scenes(tmp_path / "data", train=8, test=2, flat=True)
    words = tiny_words(tmp_path / "run", task="segmentation", data__path=data, schedule__steps=1)
    assert main(["train", *words]) == 2
    assert "has the same images to learn from and to measure on: needs folders" in " ".join(
        capsys.readouterr().err.split()
    )
    assert run(tmp_path / "run", data, schedule__steps=1, data__holdout=0.2) == 0
    assert measurements(tmp_path / "run")[0]["model_images"] == 2
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["data"]["images"], summary["data"]["classes"]) == (8, 3)


def test_padded_crops_and_images_are_learned_from_too(tmp_path, scenes, capsys):
    changes = {
        "segmentation__fit": "pad",
        "segmentation__augment__crop": "[40, 24]",
        "segmentation__multiple": 16,
        "schedule__steps": 1,
    }
    asked = tiny(tmp_path, task="segmentation", data__path=scenes, **changes)
    assert train(asked, Console(width=500)) == 0
    assert "images of 40 x 24 padded to 48 x 32 (0 workers)" in capsys.readouterr().out
    assert load_eval_model(str(tmp_path / "final")).preparation.fit == "pad"
