"""Whole runs: what is learned does not depend on how often a run was killed, nor on how many processes share it."""

import errno
import json
import os
import shutil
import signal
from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from itertools import count
from random import Random
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console
from safetensors import SafetensorError
from training_runs import RANDOM, TRANSFORMERS, Run, learn, log, losses, run_here, same, tiny, tiny_words, weights

from trueshift import from_pretrained
from trueshift.cli import DIVERGED, main
from trueshift.criteria import LearnedScore
from trueshift.eval.models.load import load_eval_model
from trueshift.models import hub
from trueshift.train import Diverged, checkpoint, task, train
from trueshift.train import trainer as loop
from trueshift.train.checkpoint import CheckpointFolder
from trueshift.train.dry_run import write_images
from trueshift.train.preemption import PREEMPTED
from trueshift.train.task import Classification, Segmentation
from trueshift.utils.locks import sole_writer

IMAGES, PIXELS, FIELDS = "classification", "segmentation", "fields"
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("task", "processes"),
    [(IMAGES, 1), (IMAGES, 2), pytest.param(PIXELS, 1, marks=slow), pytest.param(PIXELS, 2, marks=slow)],
)
def test_a_killed_run_ends_with_the_same_bits(tmp_path, scenes, task, processes):
    often = {"task": task, "checkpoint__every_steps": 3, "evaluate__every_epochs": 2, "ema_decay": 0.9}
    often |= RANDOM if task == IMAGES else {"data__path": scenes, "schedule__steps": 12, "model__drop_path_rate": 0.3}
    whole = Run(tmp_path / "whole", processes, **often)
    step = Random(torch.seed()).randrange(2, 10)
    killed = Run(tmp_path / "killed", processes, **often).wait_for(step).signal(signal.SIGKILL)
    assert set(killed.ended()) == {-signal.SIGKILL}, step
    stopped = Run(tmp_path / "killed", processes, **often).wait_for(min(step + 1, 11)).signal(signal.SIGTERM)
    assert set(stopped.ended()) <= {PREEMPTED, 0}, step
    assert set(Run(tmp_path / "killed", processes, **often).ended()) == {0}, step
    assert set(whole.ended()) == {0}
    for name in ("final", "final_ema"):
        assert same(weights(tmp_path / "whole", name), weights(tmp_path / "killed", name)), step
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed"), step
    assert len(losses(tmp_path / "whole")) == 12
    assert log(tmp_path / "whole", "test")[-1]["model_images"] == (16 if task == IMAGES else 3)  # over all processes


def test_any_number_of_processes_learns_the_same(tmp_path):
    same_work = {"augment__auto_augment": "rand-m9-mstd0.5-inc1", "augment__erasing": 0.5}
    same_work |= {"model__drop_path_rate": 0, "optimizer__lr": 0.01, "schedule__epochs": 1}
    two = Run(tmp_path / "two", 2, **same_work)
    one = losses(learn(tmp_path / "one", **same_work))
    accumulated = learn(tmp_path / "accumulated", accumulate=2, **same_work)
    assert set(two.ended()) == {0}
    for other in (two.output, accumulated):
        assert losses(other) == pytest.approx(one, rel=2e-5), other
    assert losses(learn(tmp_path / "other_seed", seed=1, **same_work)) != pytest.approx(one, rel=1e-3)


def test_what_many_processes_measure_is_what_they_write(tmp_path):
    small = "{embed_dim: [8, 8, 8], depths: [1, 1, 1], num_heads: [1, 1, 1]}"
    norms = {"model__name": "cvt_mini", "model__arguments": small, "batch_size": 8, "data__limit": 16}
    norms |= {"optimizer__lr": 2, "schedule__epochs": 4}  # far enough that the statistics matter
    assert set(Run(tmp_path, 2, ema_decay=0.5, **norms).ended()) == {0}
    task = Classification(tiny(tmp_path, **norms))
    task.build_network()

    def measured(folder):
        return task.measure(from_pretrained(folder), nullcontext, lambda: False, set()).values["loss"]

    *_, last = log(tmp_path, "test")
    best = json.loads((tmp_path / "best" / "measured.json").read_text())
    for name, logged in (("final", last["model_loss"]), ("final_ema", last["ema_loss"]), ("best", best["loss"])):
        assert measured(tmp_path / name) == pytest.approx(logged, rel=1e-6)


def test_what_a_run_leaves_behind(tmp_path):
    changes = {"ema_decay": 0.9, "evaluate__protocols": "[circular]", "log__tensorboard": "true"}
    changes |= {"checkpoint__every_steps": 5, "checkpoint__keep": 5}
    assert run_here(tmp_path, **changes) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        *("best", "final", "final_ema", "checkpoints", "tensorboard"),
        *("config.json", "log.jsonl", "summary.json", "eval.json"),
    }
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {"command", "commit", "machine", "versions", "seed", "config", "steps", "seconds"} <= summary.keys()
    circular = summary["evaluation"]["circular"]
    assert circular["consistency"]["rate"] == 1
    assert circular["bit_exact"]["rate"] == 1
    saved = CheckpointFolder(tmp_path / "checkpoints").all()
    assert [int(folder.name[5:]) for folder in saved] == [5, 6, 10, 12]  # when they are due, and when it is measured
    assert from_pretrained(tmp_path / "final").config.embed_dim == 8
    subject = load_eval_model(str(tmp_path / "best"))
    assert (subject.classes[3], subject.assumed) == ("cat", False)
    measured = log(tmp_path, "test")
    assert [entry["epoch"] for entry in measured] == [0, 1]
    best = max(max(entry["model_top1"], entry["ema_top1"]) for entry in measured)
    assert json.loads((tmp_path / "best" / "measured.json").read_text())["top1"] == best
    # a finished run that is started again changes nothing
    before = weights(tmp_path), losses(tmp_path)
    assert run_here(tmp_path, **changes) == 0
    assert same(weights(tmp_path), before[0])
    assert losses(tmp_path) == before[1]


# within a run for pixels also at its end, which is within an epoch
@pytest.mark.parametrize(("kind", "which"), [(IMAGES, 1), (PIXELS, 1), (PIXELS, 2)])
def test_told_to_stop_while_it_measures_a_run_goes_on(tmp_path, data, whole, learned, monkeypatch, kind, which):
    reader = "read_ahead" if kind == IMAGES else "read_scenes"
    read, calls, expected = getattr(task, reader), [], whole if kind == IMAGES else learned
    given = data[kind] | ({"model__drop_path_rate": 0.3} if kind == PIXELS else {})

    def interrupted(*arguments, **more):
        calls.append(1)
        if len(calls) == which:
            signal.raise_signal(signal.SIGTERM)
        yield from read(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(task, reader, interrupted)
        assert run_here(tmp_path, **given) == PREEMPTED
    assert len(log(tmp_path, "test")) == which - 1
    assert run_here(tmp_path, **given) == 0
    assert same(weights(tmp_path), weights(expected))
    assert losses(tmp_path) == losses(expected)
    found, wanted = log(tmp_path, "test"), log(expected, "test")
    assert [(entry["step"], entry["epoch"]) for entry in found] == [(entry["step"], entry["epoch"]) for entry in wanted]
    key = "model_top1" if kind == IMAGES else "model_mean_iou"
    assert found[-1][key] == wanted[-1][key]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param(PIXELS, {"model__drop_path_rate": 0.3}, marks=slow),
        (FIELDS, {"fields__random_rolls": True, "model__grid_drop_rate": 0.5}),
        pytest.param(FIELDS, TRANSFORMERS, marks=slow),
    ],
)
def test_a_trial_that_goes_on_is_the_whole_run(tmp_path, data, kind, changes):
    """Stopped within the second epoch."""
    whole = learn(tmp_path / "whole", **data[kind], **changes)
    for steps in (3 if kind == PIXELS else 4, 0):
        parts = learn(tmp_path / "parts", max_steps=steps, **data[kind], **changes)
    assert losses(whole) == losses(parts)
    assert same(weights(whole), weights(parts))


def test_a_full_disk_and_a_damaged_checkpoint_cost_nothing_but_time(tmp_path, whole, monkeypatch, capsys):
    config, write, calls = tiny(tmp_path, checkpoint__every_steps=3), checkpoint.write_whole, []

    def disk_fills_up(*arguments, **more):
        calls.append(1)
        if len(calls) > 2 * 3:  # three files of two checkpoints
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write_whole", disk_fills_up)
        with pytest.raises(OSError, match=r"step 9 .*No space left.*step_00000006: free about"):
            train(config)
    saved = sorted((tmp_path / "checkpoints").iterdir())
    assert [path.name for path in saved] == ["step_00000003", "step_00000006"]
    (saved[-1] / "model.safetensors").write_bytes(b"cut off")
    assert train(config) == 0
    assert "not a whole checkpoint" in capsys.readouterr().out
    assert same(weights(whole), weights(tmp_path))


def test_a_disk_that_is_full_for_weights_is_reported_as_for_checkpoints(tmp_path, whole, monkeypatch):
    full = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    with monkeypatch.context() as patched:
        patched.setattr(hub, "save_file", Mock(side_effect=full))
        message = "weights of best could not be .*No space left.*there is no checkpoint yet.*: free"
        with pytest.raises(OSError, match=message) as caught:
            train(tiny(tmp_path))
    assert caught.value.errno == errno.ENOSPC
    assert train(tiny(tmp_path)) == 0
    assert same(weights(whole), weights(tmp_path))


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path, flows):
    run_here(tmp_path, max_steps=2)
    with pytest.raises(ValueError, match="task: classification before, now fields"):
        run_here(tmp_path, task=FIELDS, data__path=flows)
    with pytest.raises(ValueError, match=r"another configuration: .*optimizer.lr: 0.05 before, now 0.01"):
        run_here(tmp_path, optimizer__lr=0.01)
    with pytest.raises(ValueError, match="data: 48 images before, now 40"):
        run_here(tmp_path, data__limit=40)
    with pytest.raises(ValueError, match="another --output, or --resume auto"):
        run_here(tmp_path, resume="never")
    with pytest.raises(ValueError, match="is at step 2: needs max_steps of that at least"):
        run_here(tmp_path, max_steps=1)
    # nothing that is learned depends on these
    assert run_here(tmp_path, data__workers=1, evaluate__batch_size=4, max_steps=3) == 0


def test_a_learned_criterion_follows_the_run_and_a_resumed_one(tmp_path, monkeypatch):
    choose, seen = LearnedScore.forward, []

    def noted(self, candidates):
        if self.training:
            seen.append(round(float(self.progress) * 12, 3))
        return choose(self, candidates)

    monkeypatch.setattr(LearnedScore, "forward", noted)
    cooling = "{tokenize: {name: learned, final_temperature: 0.01}}"
    learned = {"model__arguments": f"{{embed_dim: 8, depths: [1], num_heads: [1], criterion: {cooling}}}"}
    for steps in (2, 3):
        run_here(tmp_path, max_steps=steps, evaluate__limit=4, **learned)
    assert seen == [0, 1, 2]


def test_the_same_command_goes_on_from_where_it_stopped_not_from_where_it_began(tmp_path, monkeypatch, capsys):
    often = {"checkpoint__every_steps": 2, "evaluate__limit": 4}
    run_here(tmp_path / "first", max_steps=4, **often)
    start = CheckpointFolder(tmp_path / "first" / "checkpoints").all()[0]
    command = tiny(tmp_path / "second", resume=start, **often)
    update, made = loop.Trainer._update, []

    def stops_after_the_eighth(trainer, batches):
        made.append(trainer.step)
        update(trainer, batches)
        if trainer.step == 8:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop.Trainer, "_update", stops_after_the_eighth)
    assert train(command) == PREEMPTED
    assert "newer checkpoint" not in capsys.readouterr().out
    assert train(replace(command, max_steps=10)) == 0
    assert "newer checkpoint than --resume" in capsys.readouterr().out
    shutil.rmtree(start)  # as a run in the same folder does when it has newer ones
    assert train(command) == 0
    assert made == list(range(2, 12))
    with pytest.raises(ValueError, match="is not a whole checkpoint"):
        run_here(tmp_path / "third", resume=start)


@pytest.mark.parametrize(("task", "broken"), [(IMAGES, 7), (PIXELS, 1)])
def test_a_loss_that_is_no_number_stops_the_run_before_weights_are_lost(tmp_path, scenes, monkeypatch, task, broken):
    kind, steps = Classification if task == IMAGES else Segmentation, []
    loss = kind.loss

    def breaks(task, model, batch):
        steps.append(1)
        return loss(task, model, batch) * (float("nan") if len(steps) == broken + 1 else 1)

    monkeypatch.setattr(kind, "loss", breaks)
    warmup = "warmup_epochs" if task == IMAGES else "warmup_steps"
    message = rf"the loss of step {broken} \(epoch {1 + (broken > 6)}.*every layer is finite.*--schedule.{warmup}"
    with pytest.raises(Diverged, match=message) as caught:
        run_here(tmp_path, task=task, data__path="sample" if task == IMAGES else scenes)
    report = json.loads((tmp_path / "diverged.json").read_text())
    assert report["step"] == broken
    assert len(report["images"]) == (8 if task == IMAGES else 4)
    assert [entry["step"] for entry in report["losses"]] == list(range(broken + 1))
    assert caught.value.report["where"] == report["where"]
    if task == PIXELS:
        assert all(name.startswith("images/train/") for name in report["images"])
        return
    assert report["last_checkpoint"] == "step_00000006"
    snapshot, _ = CheckpointFolder(tmp_path / "checkpoints").newest()
    assert all(value.isfinite().all() for value in snapshot.weights.values())


def test_a_run_that_diverges_has_an_exit_code_of_its_own(tmp_path, capsys):
    assert main(["train", *tiny_words(tmp_path, optimizer__lr=1e30)]) == DIVERGED
    assert "is not finite" in capsys.readouterr().err


def test_a_network_of_timm_trains_too(tmp_path):
    config = tiny(tmp_path, max_steps=2, data__img_size=32)
    assert train(replace(config, model=replace(config.model, name="resnet10t", arguments={}))) == 0
    assert load_eval_model(str(tmp_path / "final")).num_classes == 10


def test_an_image_that_cannot_be_read_is_reported_once(tmp_path):
    write_images(tmp_path / "data", 3)
    for split in ("train", "val"):
        (tmp_path / "data" / split / "0001" / "broken.png").write_bytes(b"no image")
    changes = {"data__path": tmp_path / "data", "data__holdout": 0, "batch_size": 2, "schedule__epochs": 3}
    screen, output = Console(file=StringIO(), width=200), tmp_path / "[/run]"  # as if it were markup of rich's
    assert train(tiny(output, **changes), screen) == 0
    reported = {entry["instead"]: entry["images"] for entry in log(output, "unreadable")}
    assert len(log(output, "unreadable")) == 2
    assert reported.keys() == {"another stands in for it", "it is not measured on"}
    assert all("broken.png" in images[0] for images in reported.values())
    assert screen.file.getvalue().count("unreadable, ") == 2
    assert f"weights in {output / 'final'}, the best in {output / 'best'}" in screen.file.getvalue()
    assert log(output, "test")[0]["model_images"] == 3


def test_the_time_of_a_run_is_that_of_all_its_parts(tmp_path, monkeypatch):
    ticks = count(0, 1000)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
        run_here(tmp_path, max_steps=8)

    def seconds():
        return json.loads((tmp_path / "summary.json").read_text())["seconds"]

    first = seconds()
    assert first >= 8000
    run_here(tmp_path, max_steps=10)
    assert first - 1000 < seconds() < first + 1000  # a tick lies between the last checkpoint and the end
    # of a run that did not keep its time it cannot be known
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    snapshot, _ = checkpoints.newest()
    del snapshot.state["seconds"]
    checkpoints.save(snapshot)
    run_here(tmp_path)
    assert seconds() is None


def test_a_folder_that_another_run_writes_to_is_refused_by_all_processes(tmp_path, capsys):
    with sole_writer(tmp_path):
        assert Run(tmp_path, processes=2).ended() == [1, 1]
        assert main(["train", *tiny_words(tmp_path)]) == 2
        assert os.listdir(tmp_path) == [".lock"]
    message = capsys.readouterr().err
    assert f"{tmp_path} is being written to by process {os.getpid()} on" in message
    assert "another --output" in message
    assert Run(tmp_path, processes=2, max_steps=1, evaluate__limit=1).ended() == [0, 0]
    assert ".lock" not in os.listdir(tmp_path)
    assert log(tmp_path, "test")[0]["model_images"] == 1  # a process beyond the images measures none


@pytest.mark.parametrize(
    ("common", "one", "other"),
    [
        (RANDOM, {"grad_checkpointing": "false"}, {"grad_checkpointing": "true"}),
        ({"augment__pad_crop": 4, "augment__consistency": 1}, {"data__on_device": "no"}, {"data__on_device": "yes"}),
    ],
    ids=["activations computed again", "two views of pixels on the device"],
)
def test_either_way_learns_the_same(tmp_path, common, one, other):
    usual = {**common, "optimizer__lr": 0.01, "max_steps": 3}
    found, expected = (losses(learn(tmp_path / name, **usual, **way)) for name, way in (("one", one), ("other", other)))
    assert len(found) == 3
    assert found == pytest.approx(expected, rel=1e-5)
