"""The log of a run: a line of JSON for each entry, as if the run had never stopped."""

import json
import sys
from io import StringIO
from unittest.mock import Mock, call

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trueshift.train.config import LogConfig
from trueshift.train.log import RunLog, RunReport

PLAIN = LogConfig(tensorboard=False)


def written(folder, steps, config=PLAIN, step=0, **more):
    """A run that goes on from a step, and what it then logs."""
    log = RunLog(folder, config, {"seed": 3}, step)
    for each in steps:
        log.write("train", each, {"loss": 1 / each, "note": "words", **more})
    log.close()


def entries(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def steps(folder):
    return [entry["step"] for entry in entries(folder)]


def test_an_entry_is_a_line_before_the_next_is_written(tmp_path):
    log = RunLog(tmp_path, PLAIN, {})
    log.write("test", 7, {"top1": 0.5, "note": "words"})
    assert entries(tmp_path) == [{"kind": "test", "step": 7, "top1": 0.5, "note": "words"}]
    log.write("train", 8, {"loss": float("nan"), "grad_norm": float("inf"), "lr": 1e-8})
    log.close()
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1], parse_constant=pytest.fail)
    assert last == {"kind": "train", "step": 8, "loss": None, "grad_norm": None, "lr": 1e-8}
    assert [file.name for file in tmp_path.iterdir()] == ["log.jsonl"]  # nothing that was not asked for


def test_steps_that_are_made_again_are_logged_once(tmp_path):
    written(tmp_path, [1, 2, 3, 4])
    written(tmp_path, [3, 4, 5], step=2, again=True)
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    assert ["again" in entry for entry in entries(tmp_path)] == [False, False, True, True, True]
    written(tmp_path, [1])  # a new run
    assert steps(tmp_path) == [1]


@pytest.mark.parametrize("half", ['{"kind": "train", "st', '{"kind": "train"}', "[1, 2]"])
def test_a_line_that_was_not_finished_is_forgotten(tmp_path, half):
    written(tmp_path, [1, 2])
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(half)
    written(tmp_path, [3], step=2)
    assert steps(tmp_path) == [1, 2, 3]


def curve(folder, name):
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    assert name in board.Tags()["scalars"]
    return [(event.step, event.value) for event in board.Scalars(name)]


def test_tensorboard_has_the_same_numbers_without_steps_that_are_made_again(tmp_path):
    written(tmp_path, [1, 2, 4, 8], LogConfig(), grad_norm=float("inf"))
    assert curve(tmp_path, "train/loss") == [(1, 1.0), (2, 0.5), (4, 0.25), (8, 0.125)]
    written(tmp_path, [3, 4], LogConfig(), step=2)
    assert curve(tmp_path, "train/loss") == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3)), (4, 0.25)]


@pytest.mark.parametrize(
    ("module", "config", "message"),
    [
        ("wandb", LogConfig(tensorboard=False, wandb="project"), "pip install wandb, or leave out --log.wandb"),
        ("torch.utils.tensorboard", LogConfig(), "pip install tensorboard, or --log.tensorboard false"),
    ],
)
def test_what_is_missing_is_reported_with_a_way_out(tmp_path, monkeypatch, module, config, message):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delattr("torch.utils.tensorboard", raising=False)
    with pytest.raises(ImportError, match=message):
        RunLog(tmp_path, config, {})


def test_the_time_left_may_be_days(tmp_path):
    screen = Console(file=StringIO(), width=200)
    with RunReport(screen, None, total=10) as report:
        report.progress(0, 1.5, 1e-3, 20.0, seconds_left=30.5 * 3600)
    assert screen.file.getvalue().endswith("1 day, 6:30:00 left\n")


def test_weights_and_biases_has_the_same_numbers_and_a_resumed_run_its_name(tmp_path, monkeypatch):
    wandb = Mock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    folders = [tmp_path / data / "swin_tiny_circular" for data in ("cifar10", "cifar100")]
    for folder in [*folders, folders[0]]:
        folder.mkdir(parents=True, exist_ok=True)
        written(folder, [1, 2], LogConfig(tensorboard=False, wandb="project"))
    first, second, again = (each.kwargs for each in wandb.init.call_args_list)
    assert first["id"] == again["id"] != second["id"]
    assert (first["project"], first["config"], first["resume"]) == ("project", {"seed": 3}, "allow")
    run = wandb.init.return_value
    assert run.log.call_args_list[:2] == [call({"train/loss": 1 / step}, step=step) for step in (1, 2)]
    assert run.finish.call_count == 3
