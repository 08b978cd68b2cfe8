"""Whole runs that learn the class of every pixel: what they learn, leave behind, survive, start from and refuse.

That accumulated gradients learn the same as one large batch is not asked here: batch norm, which the decoder is full
of, takes its statistics from the images of one pass, and a loss is the mean over the labelled pixels of one pass.
"""

import json
import signal
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from training_runs import Run, log, losses, run_here, same, tiny, tiny_words, weights, write_scenes

import trueshift
from trueshift.cli import main
from trueshift.data.transforms import ScenePreparation
from trueshift.eval.models.load import load_eval_model
from trueshift.train import Diverged, task, train
from trueshift.train import trainer as loop
from trueshift.train.network import build_segmenter
from trueshift.train.preemption import PREEMPTED
from trueshift.train.task import Segmentation

RANDOM = {"model__drop_path_rate": 0.3}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_scenes(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def learned(tmp_path_factory, scenes):
    """A run with all that it can leave behind; others are compared with it."""
    output = tmp_path_factory.mktemp("learned")
    assert run(output, scenes, evaluate__protocols="[ade20k-circular]", ema_decay=0.9, **RANDOM) == 0
    return output


def run(output, data, **changes):
    return run_here(output, **{"task": "segmentation", "data__path": data, **changes})


def measurements(output):
    return [entry for entry in log(output) if entry["kind"] == "test"]


def network(data, **changes):
    """As a run would build it."""
    return build_segmenter(tiny("unused", task="segmentation", data__path=data, **changes), 3)


# what is learned and left behind


def test_a_run_learns_to_tell_shapes(learned):
    found = losses(learned)
    assert list(found) == [1, 2, 3, 4, 5]
    assert found[5] < 0.8 * found[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_mini", "a_swin_mini"])
def test_it_finds_shapes_that_it_has_not_seen(tmp_path, scenes, name):
    assert run(tmp_path, scenes, model__name=name, schedule__steps=60, evaluate__every_epochs=30) == 0
    assert measurements(tmp_path)[-1]["model_mean_iou"] > 0.6  # all ground is 0.3 at most


def test_it_ends_at_its_last_step_and_is_measured_there(learned):
    """Five steps are two and a half epochs: measured after two of them, and at the end."""
    assert [(entry["step"], entry["epoch"]) for entry in measurements(learned)] == [(4, 1), (5, 2)]
    assert json.loads((learned / "summary.json").read_text())["steps"] == 5


def test_what_a_run_leaves_behind(learned, scenes):
    assert {path.name for path in learned.iterdir()} == {
        *("best", "final", "final_ema", "checkpoints", "config.json", "log.jsonl", "summary.json", "eval.json")
    }
    model = trueshift.from_pretrained(learned / "final")
    assert isinstance(model, trueshift.UperNet)
    assert model.config.channels == 8
    assert model.encoder.config.embed_dim == 16
    assert model.pretrained_cfg["label_names"] == ["ground", "disc", "square"]
    subject = load_eval_model(str(learned / "best"))
    assert subject.classes == ["ground", "disc", "square"]
    assert not subject.assumed
    assert isinstance(subject.preparation, ScenePreparation)
    wanted = subject.preparation
    assert (wanted.scale, wanted.multiple, wanted.fit) == ((64, 32), (16, 16), "resize")
    assert model.pretrained_cfg["crop"] == [32, 32]
    best = max(max(entry["model_mean_iou"], entry["ema_mean_iou"]) for entry in measurements(learned))
    assert json.loads((learned / "best" / "measured.json").read_text())["mean_iou"] == best
    assert json.loads((learned / "summary.json").read_text())["best_mean_iou"] == best


def test_the_final_weights_are_measured_and_move_with_the_image(learned):
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


# what a run survives


def test_a_run_that_broke_off_ends_with_the_same_bits(tmp_path, scenes, learned, monkeypatch):
    step, calls = loop.Trainer._update, []

    def breaks_off(trainer, batches):
        calls.append(1)
        if len(calls) == 5:  # the last step, after the second epoch and its checkpoint
            raise MemoryError
        return step(trainer, batches)

    with monkeypatch.context() as patched:
        patched.setattr(loop.Trainer, "_update", breaks_off)
        with pytest.raises(MemoryError):
            run(tmp_path, scenes, **RANDOM)
    assert run(tmp_path, scenes, **RANDOM) == 0
    assert same(weights(tmp_path), weights(learned))
    assert losses(tmp_path) == losses(learned)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_run_ends_with_the_same_bits(tmp_path, scenes, processes):
    often = {"task": "segmentation", "data__path": scenes, "checkpoint__every_steps": 3, **RANDOM}
    often |= {"schedule__steps": 15, "ema_decay": 0.9}
    whole = Run(tmp_path / "whole", processes, **often)
    step = Random(torch.seed()).randrange(2, 14)
    killed = Run(tmp_path / "killed", processes, **often).wait_for(step).signal(signal.SIGKILL)
    assert set(killed.ended()) == {-signal.SIGKILL}, step
    assert set(Run(tmp_path / "killed", processes, **often).ended()) == {0}, step
    assert set(whole.ended()) == {0}
    for name in ("final", "final_ema"):
        assert same(weights(tmp_path / "whole", name), weights(tmp_path / "killed", name)), step
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed"), step
    assert measurements(tmp_path / "whole")[-1]["model_images"] == 3  # over all processes


@pytest.mark.parametrize("which", [pytest.param(1, marks=pytest.mark.slow), 2])
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
    assert [(entry["step"], entry["epoch"]) for entry in measurements(tmp_path)] == [(4, 1), (5, 2)]
    assert measurements(tmp_path)[-1]["model_mean_iou"] == measurements(learned)[-1]["model_mean_iou"]


@pytest.mark.slow
def test_a_trial_that_goes_on_is_the_whole_run(tmp_path, scenes, learned):
    assert run(tmp_path, scenes, max_steps=3, **RANDOM) == 0
    assert [entry["step"] for entry in measurements(tmp_path)] == [3]
    assert run(tmp_path, scenes, **RANDOM) == 0
    assert same(weights(tmp_path), weights(learned))


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, scenes, monkeypatch):
    loss, steps = Segmentation.loss, []

    def breaks_at_the_second(task, model, batch):
        steps.append(1)
        return loss(task, model, batch) * (float("nan") if len(steps) == 2 else 1)

    monkeypatch.setattr(Segmentation, "loss", breaks_at_the_second)
    with pytest.raises(Diverged, match=r"the loss of step 1 .*every layer is finite.*--schedule.warmup_steps"):
        run(tmp_path, scenes)
    report = json.loads((tmp_path / "diverged.json").read_text())
    assert report["step"] == 1
    assert len(report["images"]) == 4
    assert all(name.startswith("images/train/") for name in report["images"])


def test_scenes_that_cannot_be_read_are_named_and_others_stand_in(tmp_path):
    data = write_scenes(tmp_path / "data", train=4, test=2)
    (data / "masks" / "train" / "train_00.png").write_bytes(b"no mask")
    unknown = data / "masks" / "train" / "train_01.png"
    Image.fromarray(np.full((48, 64), 7, np.uint8)).save(unknown)
    (data / "images" / "val" / "val_00.png").write_bytes(b"no picture")
    assert run(tmp_path / "run", data, schedule__steps=1) == 0
    told = {entry["instead"]: entry["images"] for entry in log(tmp_path / "run") if entry["kind"] == "unreadable"}
    first, second = told["another stands in for it"]
    assert first.startswith("images/train/train_00.png: ValueError: ")
    assert "train_00.png is not an image that Pillow knows" in first
    assert "train_01.png has the value 7, which no class has: needs 0 to 2, or 255 for what is ignored" in second
    (left_out,) = told["it is not measured on"]
    assert "val_00.png" in left_out
    assert measurements(tmp_path / "run")[0]["model_images"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (255, "none of the images to measure on has a labelled pixel"),
        (7, "none of the images to measure on could be read"),
    ],
)
def test_nothing_to_measure_on_is_told(tmp_path, mask, told):
    data = write_scenes(tmp_path / "data", train=4, test=1)
    Image.fromarray(np.full((48, 64), mask, np.uint8)).save(data / "masks" / "val" / "val_00.png")
    with pytest.raises(ValueError, match=told):
        run(tmp_path / "run", data, schedule__steps=1)


# what a run starts from


def test_a_network_of_another_run_goes_on(learned, scenes):
    again = network(scenes, model__start_from=learned / "final", model__drop_path_rate=0.25)
    assert again.training
    assert again.adaptive
    assert same(again.state_dict(), weights(learned))
    assert again.encoder.config.drop_path_rate == 0.25  # what is said beside the name counts here too
    dropped = network(scenes, model__start_from=learned / "final", segmentation__decoder="{drop_rate: 0.3}")
    assert dropped.drop.p == 0.3


def test_an_ordinary_network_is_adapted_with_its_decoder(tmp_path, scenes):
    ordinary = network(scenes, model__name="swin_mini")
    folder = ordinary.save_pretrained(tmp_path / "ordinary")
    adapted = network(scenes, model__start_from=folder, model__drop_path_rate=0.25)
    assert adapted.adaptive
    assert not ordinary.adaptive
    assert same(adapted.state_dict(), ordinary.state_dict())
    assert adapted.encoder.config.drop_path_rate == 0.25
    images = torch.rand(1, 3, 32, 32)
    adapted.eval()
    with torch.inference_mode():
        assert torch.equal(adapted(images.roll((3, 5), (2, 3))), adapted(images).roll((3, 5), (2, 3)))


@pytest.mark.parametrize("name", ["swin_mini", "a_swin_mini"])
def test_a_backbone_of_another_run_gets_a_new_decoder(tmp_path, scenes, name):
    small = {"embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}
    backbone = trueshift.create_model(name, num_classes=10, **small)
    model = network(scenes, model__start_from=backbone.save_pretrained(tmp_path))
    assert model.adaptive
    assert model.num_classes == 3
    for key, value in model.encoder.state_dict().items():
        assert torch.equal(value, backbone.state_dict()[key]), key


def test_what_cannot_be_started_from_is_refused(tmp_path, learned, scenes):
    final = learned / "final"
    for changes, told in (
        ({"model__name": "swin_mini"}, r"holds a a_\S+: needs swin_mini\S*, or the ordinary network to adapt"),
        ({"model__name": "swinv2_mini", "model__arguments": "{}"}, "needs swinv2_mini"),
        ({"segmentation__decoder": "{channels: 4}"}, "do not fit|not fit"),
        ({"model__start_from": tmp_path / "nowhere" / "at" / "all"}, "nowhere"),
    ):
        with pytest.raises((ValueError, OSError), match=told):
            network(scenes, **{"model__start_from": final, **changes})
    with pytest.raises(ValueError, match="knows 3 classes: needs the 4 of the data"):
        build_segmenter(tiny(tmp_path, task="segmentation", model__start_from=final), 4)


# what cannot work


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data__path": "nowhere"}, "there is no data at nowhere: name where it is with --data.path"),
        ({"data__train_split": "training"}, "split 'training': needs one of train, val, test"),
        ({"data__train_split": "val"}, "the same images to learn from and to measure on"),
        ({"data__kind": "camvid"}, "has 3 classes: this recipe is for camvid, which has 11"),
        ({"batch_size": 17}, "fewer than a batch of 17"),
        ({"batch_size": 4, "accumulate": 4}, "batch_size 4 in 4 parts: .* 2 images in each, e.g. --batch_size 8"),
        ({"segmentation__augment__crop": "[40, 32]"}, r"augment.crop, height 40: needs a multiple of 16.*or .*fit pad"),
        ({"segmentation__scale": "[32, 64]"}, r"scale \(32, 64\).*needs the longest side first"),
        ({"segmentation__decoder": "{channel: 8}"}, "segmentation.decoder has channel: needs some of channels, bins"),
        ({"segmentation__decoder": "{num_classes: 8}"}, "segmentation.decoder has num_classes: needs"),
        ({"model__name": "resnet10t"}, "resnet10t is timm's own: UperNet needs a network of ours"),
        ({"model__name": "a_swin_minni"}, "no model is called 'a_swin_minni': did you mean"),
        ({"evaluate__protocols": "[ade20k, circular]"}, "protocols circular: segmentation needs those for pixels"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_before_the_first_step(tmp_path, scenes, changes, told):
    with pytest.raises((ValueError, OSError), match=told):
        run(tmp_path / "run", scenes, **changes)
    assert not (tmp_path / "run").exists()


def test_protocols_for_pixels_are_not_for_pictures(tmp_path):
    with pytest.raises(ValueError, match="protocols ade20k-circular: classification needs those for whole images"):
        run_here(tmp_path, evaluate__protocols="[ade20k-circular]")


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


def test_padded_crops_and_pictures_are_learned_from_too(tmp_path, scenes, capsys):
    changes = {"segmentation__fit": "pad", "segmentation__augment__crop": "[40, 24]", "schedule__steps": 1}
    asked = tiny(tmp_path, task="segmentation", data__path=scenes, **changes)
    assert train(asked, Console(width=500)) == 0
    assert "images of 40 x 24 padded to 48 x 32 (0 workers)" in capsys.readouterr().out
    assert load_eval_model(str(tmp_path / "final")).preparation.fit == "pad"
