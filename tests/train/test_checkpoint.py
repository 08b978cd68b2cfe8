"""A checkpoint is whole or not there, whatever happens to the process, the disk or the file."""

import errno
import os
import shutil
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from trueshift.train import TrainConfig
from trueshift.train.checkpoint import CheckpointFolder, Snapshot, find_snapshot, read_checkpoint

FILES = ["about.json", "ema.safetensors", "model.safetensors", "training.pt"]


def snapshot(step=10, average=True):
    """Of a network with buffers of all kinds, and an optimizer that has made a step."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    model.register_buffer("index", torch.arange(6).view(2, 3).T)  # integers, not contiguous
    model.register_buffer("coarse", torch.randn(3).to(torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    weights = model.state_dict()
    return Snapshot(
        step=step,
        epoch=2,
        step_in_epoch=step % 7,
        weights=weights,
        average={key: value * 2 for key, value in weights.items()} if average else None,
        state={"optimizer": optimizer.state_dict(), "scaler": None, "best": 0.75},
        config={"optimizer": {"lr": 0.1, "arguments": {"betas": [0.9, 0.98]}}, "output": "é"},
        data={"images": 40, "classes": 2},
    )


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


@pytest.mark.parametrize("average", [True, False])
def test_what_is_saved_comes_back_bit_for_bit_and_replaces_the_same_step(folder, average):
    assert (folder.all(), folder.newest()) == ([], (None, []))
    assert find_snapshot(folder, TrainConfig(resume="never"), {}) == (None, [])
    first, saved = snapshot(), snapshot(average=average)
    folder.save(first)
    saved.epoch, saved.step_in_epoch = 3, 0
    assert folder.save(saved).name == "step_00000010"
    found, damaged = folder.newest()
    assert damaged == []
    assert same(vars(found), vars(saved))
    assert not same(vars(found), vars(first))
    assert [path.name for path in folder.path.iterdir()] == ["step_00000010"]


@pytest.mark.parametrize("keep", [1, 3])
def test_only_the_newest_stay_and_a_run_that_goes_back_gives_up_what_came_after(tmp_path, keep):
    def steps():
        assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in folder.all()]
        return [int(path.name[5:]) for path in folder.all()]

    folder = CheckpointFolder(tmp_path, keep)
    for step in (5, 10, 20, 40000):
        folder.save(snapshot(step))
    assert steps() == [5, 10, 20, 40000][-keep:]
    folder.save(snapshot(25))  # from step 20 on, as when 40000 is damaged
    assert folder.newest()[0].step == 25
    assert steps() == [10, 20, 25][-keep:]


class Killed(BaseException):
    """Nothing catches it, nor is anything put in order behind it."""


@pytest.mark.parametrize(
    ("step", "name", "number"),
    [
        *((20, "fsync", number) for number in (1, 4, 5, 6)),
        *((20, "replace", number) for number in (1, 4, 5)),  # of four files, and of their folder
        *((10, "replace", number) for number in (5, 6)),  # the same step again: the first is moved aside
        (10, "fsync", 6),
    ],
)
def test_killed_at_any_moment_there_is_a_whole_checkpoint(tmp_path, monkeypatch, step, name, number):
    """At the n-th call of a function of os; nothing is removed any more."""
    real, calls = getattr(os, name), count(1)

    def once(*arguments):
        if next(calls) == number:
            monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
            raise Killed
        return real(*arguments)

    folder = CheckpointFolder(tmp_path, keep=1)
    folder.save(snapshot(10))
    monkeypatch.setattr(os, name, once)
    with pytest.raises(Killed):
        folder.save(snapshot(step))
    found, damaged = folder.newest()
    assert found.step in (10, step)
    assert damaged == []
    monkeypatch.undo()
    folder.save(snapshot(30))
    assert not list(tmp_path.glob(".*"))
    assert [path.name for path in folder.all()][-1] == "step_00000030"
    assert len(list(tmp_path.iterdir())) == 1


def truncate(file):
    file.write_bytes(file.read_bytes()[:-2])


def flip_a_byte(file):
    data = bytearray(file.read_bytes())
    at = data.index(b"20") + 1 if file.suffix == ".json" else len(data) // 2  # "step": 20 becomes 21
    data[at] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, flip_a_byte, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(folder, name, damage):
    before = snapshot(10)
    folder.save(before)
    newest = folder.save(snapshot(20))
    assert sorted(file.name for file in newest.iterdir()) == FILES
    damage(newest / name)
    found, (message,) = folder.newest()
    assert same(vars(found), vars(before))
    assert "step_00000020 is not a whole checkpoint" in message
    if name != "about.json":
        assert name in message
    truncate(folder.all()[0] / name)
    assert (folder.newest()[0], len(folder.newest()[1])) == (None, 2)  # all are damaged, and reported
    with pytest.raises(ValueError, match=r"no checkpoint in .* is whole .*: move them away to start anew"):
        find_snapshot(folder, TrainConfig(), {})
    folder.save(snapshot(20))  # the run comes by again
    assert folder.newest()[0].step == 20


class Bomb:
    def __reduce__(self):
        return print, ("it went off",)


def test_a_checkpoint_from_elsewhere_cannot_run_code(folder, capsys):
    foreign = snapshot()
    foreign.state["optimizer"] = Bomb()
    path = folder.save(foreign)
    torch.load(path / "training.pt", weights_only=False)  # the twin: it would
    assert "it went off" in capsys.readouterr().out
    with pytest.raises(ValueError, match="not a whole checkpoint"):
        read_checkpoint(path)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize("step", [10, 20])  # again, or the next one
def test_a_full_disk_leaves_what_was_there_and_says_how_much_to_free(folder, monkeypatch, where, step):
    before = snapshot(10)
    folder.save(before)
    monkeypatch.setattr(os, where, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    big = snapshot(step)
    big.weights["big"] = torch.zeros(5 << 18)  # 5 MiB, and as much for the average and each of two moments
    with pytest.raises(OSError, match="No space left on device") as caught:
        folder.save(big)
    assert caught.value.errno == errno.ENOSPC
    assert f"the checkpoint of step {step} could not be written" in str(caught.value)
    assert "the last whole checkpoint is step_00000010: free about 20 MiB" in str(caught.value)
    assert [path.name for path in folder.path.iterdir()] == ["step_00000010"]
    assert same(vars(folder.newest()[0]), vars(before))


def test_a_folder_that_cannot_be_written_to_is_named(folder, monkeypatch):
    # a mounted folder that is read only, for root too
    monkeypatch.setattr("pathlib.Path.mkdir", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(OSError, match=r"Read-only .*no checkpoint yet: make the folder writable") as caught:
        folder.save(snapshot(20))
    assert str(folder.path) in str(caught.value)
    assert folder.all() == []
