"""``trueshift eval`` and ``audit`` of networks for fields: what they write, show and refuse."""

import json

import numpy as np
import pytest
import torch
from model_checks import perturb_norms
from PIL import Image

from trueshift import FieldNet
from trueshift.cli import main
from trueshift.data import FieldStatistics, open_fields
from trueshift.eval import EvalOptions, measure_fields, run_field_evaluation
from trueshift.eval.fields import example_rollouts, is_field_net

MEAN, STD = [3.0, -1.0], [0.7, 2.0]
SMALL = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1), "decoder_depth": 1, "kernel_size": 3, "residual": True}


def save(folder, name="a_swin_mini", in_chans=2, *more, known=(MEAN, STD), **changes):
    torch.manual_seed(0)
    net = perturb_norms(FieldNet(name, in_chans, *more, **{**SMALL, **changes}))
    if known:
        net.pretrained_cfg |= dict(zip(("mean", "std"), known, strict=True))
    return str(net.save_pretrained(folder))


def fields(trajectories=2, times=3, channels=2, size=(16, 32)):
    return np.random.default_rng(0).standard_normal((trajectories, times, channels, *size)).astype(np.float32)


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Folders of an adaptive and an ordinary network, and of fields with 3 times."""
    folder = tmp_path_factory.mktemp("fields")
    np.save(folder / "test.npy", fields())
    return save(folder / "adaptive"), save(folder / "ordinary", "swin_mini"), str(folder)


def test_what_an_evaluation_writes(saved, tmp_path, capsys):
    adaptive, _, data = saved
    words = ["--data", data, "--output", str(tmp_path), "--seed", "3", "--steps", "4", "2", "1", "2"]
    assert main(["eval", adaptive, *words]) == 0
    found = json.loads((tmp_path / "eval.json").read_text())
    assert {"command", "commit", "date", "machine", "versions"} <= found.keys()
    assert (found["schema"], found["task"], found["seed"]) == (1, "fields", 3)
    assert (found["steps"], found["steps_left_out"]) == ([1, 2], [4])
    assert found["data"] == {
        "title": "test.npy", "split": "test", "trajectories": 2, "times": 3, "channels": 2, "size": [16, 32],
    }  # fmt: skip
    assert (found["settings"]["batch_size"], found["settings"]["circular"]) == (32, "both")
    assert (found["model"]["name"], found["model"]["mean"], found["model"]["patches"]) == (adaptive, MEAN, [2, 4])
    net, known = FieldNet.from_pretrained(adaptive), FieldStatistics(tuple(MEAN), tuple(STD))  # not those of the data
    direct = measure_fields(net, open_fields(data, "test"), known, (2, 4), (1, 2), shifts=2, seed=3)
    assert found["measured"] == direct
    assert direct["shift_error"] == {"1": 0, "2": 0}
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{100 * direct['relative_l2']['2']:.2f}" in shown
    assert "rollouts of 1, 2 steps were measured, not those of 4" in shown


def test_an_audit_of_two_networks(saved, tmp_path, capsys):
    adaptive, ordinary, data = saved
    words = ["--data", data, "--output", str(tmp_path), "--shifts", "2", "--steps", "2"]
    assert main(["audit", adaptive, "--against", ordinary, *words]) == 0
    assert f"Report: {tmp_path / 'report.html'}" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "bit for bit" in page
    assert "after 2 steps" in page
    assert "after 1 step" not in page
    found = json.loads((tmp_path / "audit.json").read_text())
    assert [model["name"] for model in found["models"]] == [adaptive, ordinary]
    exact, other = (model["measured"]["shift_error"]["2"] for model in found["models"])
    assert exact == 0 < other
    for name in ("spectrum.png", "maps.png"):
        with Image.open(tmp_path / "figures" / name) as figure:
            assert min(figure.size) > 300
    with Image.open(tmp_path / "figures" / "rollout.gif") as animation:
        assert (animation.n_frames, animation.size) == (3, (3 * 192 + 2 * 8, 96))


def test_maps_of_a_rollout(saved):
    *folders, data = saved
    rollouts = example_rollouts(run_field_evaluation(folders, data, steps=(1, 2)), folders, data)
    exact, other = rollouts["models"]
    known, true = FieldStatistics(tuple(MEAN), tuple(STD)), rollouts["true"]
    np.testing.assert_array_equal(true, known.normalize(torch.from_numpy(fields()[0])).numpy())
    for made in (exact, other):
        np.testing.assert_array_equal(made["predicted"][0], true[0])
        assert not made["apart"][0].any()
    net = FieldNet.from_pretrained(folders[0])
    with torch.no_grad():
        np.testing.assert_array_equal(exact["predicted"][1], net(torch.from_numpy(true[:1]))[0].numpy())
    assert not exact["apart"].any()
    assert other["apart"][1:].any((1, 2, 3)).all()


def test_networks_that_know_their_rows_are_shifted_along_columns(saved, tmp_path):
    folder, data = save(tmp_path, circular="width"), saved[2]
    found = run_field_evaluation([folder], data)
    assert found["settings"]["circular"] == "width"
    assert found["models"][0]["measured"]["shift_error"] == {"1": 0}
    assert not example_rollouts(found, [folder], data)["models"][0]["apart"].any()


def test_bf16_and_some_of_the_trajectories(saved):
    adaptive, _, data = saved
    whole, part = (run_field_evaluation([adaptive], data, options=EvalOptions(limit=limit)) for limit in (5, 1))
    assert (whole["data"]["trajectories"], part["data"]["trajectories"]) == (2, 1)
    assert (whole["steps"], whole["steps_left_out"]) == ([1], [10, 50])
    (rounded,) = run_field_evaluation([adaptive], data, options=EvalOptions(limit=1, precision="bf16"))["models"]
    assert rounded["measured"]["shift_error"] == {"1": 0}
    full = part["models"][0]["measured"]["one_step_l2"]
    assert full != rounded["measured"]["one_step_l2"] == pytest.approx(full, rel=0.05)


def test_which_folders_hold_a_network_for_fields(saved, tmp_path):
    assert is_field_net(saved[0])
    assert not is_field_net("swin_mini")
    for text in ("[]", "{", '{"architecture": "swin_mini"}'):
        (tmp_path / "config.json").write_text(text)
        assert not is_field_net(str(tmp_path))


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (fields(channels=3), "test.npy has 3 channels: needs the 2 of"),
        (fields(size=(18, 32)), "height 18: needs a multiple of"),
        (fields(times=1), "needs a trajectory of at least 2 times"),
        (np.full((1, 2, 2, 16, 32), np.nan, np.float32), "holds NaN, infinite or huge values"),
        (None, "has no fields for test"),
    ],
)
def test_fields_that_do_not_fit(saved, tmp_path, capsys, states, message):
    if states is not None:
        np.save(tmp_path / "test.npy", states)
    assert main(["eval", saved[0], "--data", str(tmp_path), "--output", str(tmp_path / "eval")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "eval" / "eval.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "FOLDER", "--data", "DATA", "--protocols", "circular"], "--protocols circular: for images"),
        (["eval", "FOLDER", "--data", "DATA", "--img-size", "64"], "--img-size: for images"),
        (["eval", "FOLDER", "--data", "DATA", "--shifts", "0"], "needs at least 2"),
        (["eval", "FOLDER", "--data", "DATA", "--steps", "0", "1"], "steps [0, 1]: needs lengths of at least 1"),
        (["audit", "FOLDER", "--data", "DATA", "--steps", "3"], "steps [3]: needs some from 1 to 2"),
        (["eval", "swin_mini", "--data", "sample", "--steps", "1"], "--steps 1: for a FieldNet"),
        (["audit", "swin_mini", "--random-weights", "--steps", "1", "2"], "--steps 1 2: for a FieldNet"),
        (["eval", "swin_mini", "--data", "sample"], "the following arguments are required: --protocols"),
        (["audit", "FOLDER"], "needs --data FIELDS"),
        (["audit", "FOLDER", "--data", "DATA", "--against", "adapted"], "adapted holds no network for fields"),
        (["audit", "FOLDER", "--data", "DATA", "--examples", "2"], "--examples: for images"),
        (["audit", "swin_mini", "--random-weights", "--against", "FOLDER"], "is a network for fields"),
    ],
)
def test_words_that_do_not_fit(saved, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    given = {"FOLDER": saved[0], "DATA": saved[2]}
    assert main([given.get(word, word) for word in words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"known": None}, "needs mean and std of each over the training split"),
        ({"known": (MEAN[:1], STD[:1])}, "does not say how to normalize its 2 channels"),
        ({"known": (MEAN, [1.0, 0.0])}, "does not say how to normalize its 2 channels"),
        ({"known": (MEAN, [0.7, 2.1])}, "needs the same training split"),
        ({"out_chans": 3, "residual": False}, "2 channels in and 3 out"),
    ],
)
def test_networks_that_do_not_fit(saved, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        run_field_evaluation([saved[0], save(tmp_path, **changes)], saved[2])


def test_one_process_alone(saved, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="needs no torchrun"):
        run_field_evaluation([saved[0]], saved[2])
