"""Networks for fields: known answers, the shift law of a rollout, and what ``eval`` and ``audit`` write and refuse."""

import json

import numpy as np
import pytest
import torch
from known_models import save_field_net
from PIL import Image

from trueshift import FieldNet
from trueshift.cli import main
from trueshift.data import FieldPairs, FieldStatistics, open_fields
from trueshift.eval import (
    EvalOptions,
    harmonic_share,
    measure_fields,
    relative_l2,
    run_field_evaluation,
    spectrum,
)
from trueshift.eval.fields import example_rollouts

PLAIN = FieldStatistics((0.0,), (1.0,))
MEAN, STD = [3.0, -1.0], [0.7, 2.0]


@pytest.fixture
def moving():
    """Fields that move one column to the right in each step."""
    start = np.random.default_rng(0).standard_normal((3, 1, 32, 32)).astype(np.float32)
    return FieldPairs(np.stack([np.roll(start, time, 3) for time in range(6)], 1), "moving")


def test_relative_error():
    true = torch.tensor([[3.0, 4.0], [0.0, 2.0]]).view(2, 1, 1, 2)
    assert relative_l2(torch.zeros_like(true), true).tolist() == [1, 1]
    assert relative_l2(true + torch.tensor([0.0, 1.0]), true).tolist() == pytest.approx([0.2, 0.5])


@pytest.mark.parametrize("size", [(16, 16), (16, 24)])
def test_patterns_of_the_patches(size):
    tile = torch.randn(2, 3, 4, 4)
    tiles = tile.repeat(1, 1, size[0] // 4, size[1] // 4)
    assert harmonic_share(tiles, 4) == pytest.approx(1)
    assert harmonic_share(tiles, 2) < 0.9
    smooth = torch.sin(2 * torch.pi * torch.arange(size[1]) / size[1]).expand(1, 1, *size)
    assert harmonic_share(smooth + 5, 4) == pytest.approx(0, abs=1e-9)
    noise = torch.randn(64, 1, *size)
    assert harmonic_share(noise, 4) == pytest.approx(15 / (size[0] * size[1] - 1), rel=0.3)
    assert harmonic_share(noise.roll((1, 3), (2, 3)), 4) == pytest.approx(harmonic_share(noise, 4))


@pytest.mark.parametrize(
    ("size", "waves", "number"),
    [
        ((16, 16), (2, 3), 4),  # 3.6
        ((16, 32), (3, 8), 5),  # 8 waves along the longer side are as long as 4 along the shorter
        ((16, 32), (0, 1), 1),  # 0.5: not with the mean
        ((32, 16), (8, 3), 5),
    ],
)
def test_energy_of_a_wave(size, waves, number):
    rows, columns = (2 * torch.pi * torch.arange(side, dtype=torch.float64) / side for side in size)
    found = spectrum(2 + torch.sin(waves[0] * rows[:, None] + waves[1] * columns).expand(2, 3, *size))
    expected = torch.zeros_like(found)
    expected[0], expected[number] = 4, 0.5
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [(16, 16), (9, 15), (64, 4)])
def test_spectra(size):
    """All energy is counted, and it does not depend on directions, on shifts or on how often a field is repeated."""
    noise = torch.randn(2, 3, *size, dtype=torch.float64)
    found = spectrum(noise)
    assert found.sum().item() == pytest.approx(noise.square().mean().item())
    assert found[0].item() == pytest.approx(noise.mean((2, 3)).square().mean().item())
    for same in (noise.mT, noise.flip(2), noise.roll((3, 5), (2, 3)), noise.repeat_interleave(2, 1)):
        torch.testing.assert_close(spectrum(same), found)
    longer = 3 if size[1] >= size[0] else 2
    torch.testing.assert_close(spectrum(torch.cat([noise, noise], longer)), found)


def test_a_network_that_knows_the_answer_and_one_that_does_nothing(moving):
    right = measure_fields(lambda x: x.roll(1, 3), moving, PLAIN, (2, 4), steps=(1, 3, 5, 50))
    assert right["relative_l2"] == {"1": 0, "3": 0, "5": 0}
    assert right["shift_error"] == {"1": 0, "3": 0, "5": 0}
    assert (right["one_step_l2"], right["trajectories"]) == (0, 3)
    still = measure_fields(lambda x: x, moving, PLAIN, (2, 4), steps=(1,), batch_size=2)
    assert still["one_step_l2"] == still["persistence_l2"] == pytest.approx(right["persistence_l2"])
    assert still["persistence_l2"] > 1
    energies = still["spectrum"]["1"]
    assert sum(energies["predicted"]) == pytest.approx(float(np.square(moving.states[:, 0]).mean()))
    assert energies["true"] == pytest.approx(energies["predicted"])  # a moved state has the same
    assert still["harmonics"]["predicted_change"] == {"2": 0, "4": 0}
    assert still["harmonics"]["error"] == pytest.approx(still["harmonics"]["true_change"])
    assert 0 < still["harmonics"]["error"]["2"] < still["harmonics"]["error"]["4"] < 1  # every second is a fourth


def test_batches_of_unequal_size_change_no_number(moving):
    """But for the shifts that are tried, which are drawn for each batch."""
    moving.states[2] *= 5  # the last trajectory is unlike the others
    moving.states[2, ..., ::4] += 20
    found = [measure_fields(lambda x: x, moving, PLAIN, (2, 4), steps=(1, 3), batch_size=size) for size in (3, 2, 1)]
    for other in found[1:]:
        for key in ("relative_l2", "one_step_l2", "persistence_l2"):
            assert other[key] == pytest.approx(found[0][key])
        for kind, shares in found[0]["harmonics"].items():
            assert other["harmonics"][kind] == pytest.approx(shares)
        for kind, energies in found[0]["spectrum"]["3"].items():
            assert other["spectrum"]["3"][kind] == pytest.approx(energies)


def test_errors_are_of_normalized_states(moving):
    shifted = FieldPairs(moving.states * 10 + 1000, "shifted")
    found = measure_fields(lambda x: 0 * x, shifted, shifted.statistics(), (4,), steps=(1,))
    assert found["one_step_l2"] == pytest.approx(1)


def test_a_rollout_that_grows_without_end_has_an_error(moving):
    found = measure_fields(lambda x: 1e30 * x, moving, PLAIN, (4,), steps=(1, 5), shifts=1)
    assert 1e3 < found["relative_l2"]["5"] < 1e5
    assert found["shift_error"] == {"1": 0, "5": 0}
    lost = measure_fields(lambda x: x * float("nan"), moving, PLAIN, (4,), steps=(1,), shifts=1)
    assert 1e3 < lost["one_step_l2"] < 1e5


def test_shifts_of_columns_alone(moving):
    """For networks that know their rows."""
    rows = torch.linspace(-1, 1, 32)[:, None]
    for circular, exact in (("both", False), ("width", True)):
        found = measure_fields(lambda x: x + rows, moving, PLAIN, (4,), steps=(1,), limit=2, circular=circular)
        assert found["trajectories"] == 2
        assert (found["shift_error"]["1"] == 0) == exact


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": (50,)}, "from 1 to 5"),
        ({"steps": ()}, "from 1 to 5"),
        ({"steps": (1, 0)}, "at least 1"),
        ({"circular": "height"}, "needs 'both' or 'width'"),
        ({"patches": (5,)}, "height 32: needs a multiple of 5"),
    ],
)
def test_what_is_refused(moving, options, message):
    with pytest.raises(ValueError, match=message):
        measure_fields(lambda x: x, moving, PLAIN, **{"patches": (4,), "steps": (1,), **options})


# the commands


def fields(trajectories=2, times=3, channels=2, size=(16, 32)):
    return np.random.default_rng(0).standard_normal((trajectories, times, channels, *size)).astype(np.float32)


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Folders of an adaptive and an ordinary network, and of fields with 3 times."""
    folder = tmp_path_factory.mktemp("fields")
    np.save(folder / "test.npy", fields())
    return save_field_net(folder / "adaptive"), save_field_net(folder / "ordinary", "swin_mini"), str(folder)


def test_what_an_evaluation_writes(saved, tmp_path, capsys):
    adaptive, _, data = saved
    words = ["--data", data, "--output", str(tmp_path), "--seed", "3", "--steps", "4", "2", "1", "2"]
    assert main(["eval", adaptive, *words]) == 0
    found = json.loads((tmp_path / "eval.json").read_text())
    assert {"command", "commit", "date", "machine", "versions", "settings"} <= found.keys()
    assert (found["task"], found["seed"], found["steps"], found["steps_left_out"]) == ("fields", 3, [1, 2], [4])
    assert (found["data"]["trajectories"], found["data"]["times"], found["data"]["size"]) == (2, 3, [16, 32])
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
    folder, data = save_field_net(tmp_path, circular="width"), saved[2]
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
def test_fields_that_do_not_fit(saved, tmp_path, states, message):
    if states is not None:
        np.save(tmp_path / "test.npy", states)
    with pytest.raises((ValueError, OSError), match=message):
        run_field_evaluation([saved[0]], tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("eval FOLDER --data DATA --protocols circular", "--protocols circular: for images"),
        ("eval FOLDER --data DATA --img-size 64", "--img-size: for images"),
        ("audit FOLDER --data DATA --examples 2", "--examples: for images"),
        ("eval FOLDER --data DATA --shifts 0", "needs at least 2"),
        ("audit FOLDER --data DATA --steps 3", "steps [3]: needs some from 1 to 2"),
        ("audit FOLDER", "needs --data FIELDS"),
        ("audit FOLDER --data DATA --against adapted", "adapted holds no network for fields"),
        ("audit swin_mini --random-weights --against FOLDER", "is a network for fields"),
        ("audit swin_mini --random-weights --steps 1 2", "--steps 1 2: for a FieldNet"),
        ("eval swin_mini --data sample --steps 1", "--steps 1: for a FieldNet"),
        ("eval swin_mini --data sample", "the following arguments are required: --protocols"),
        ("eval runs/mine/final --data DATA", "there is no file or folder runs/mine/final"),
    ],
)
def test_words_that_do_not_fit(saved, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    given = {"FOLDER": saved[0], "DATA": saved[2]}
    assert main([given.get(word, word) for word in words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.rglob("*.json"))


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
        run_field_evaluation([saved[0], save_field_net(tmp_path, **changes)], saved[2])


def test_several_processes_are_refused(saved, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="needs no torchrun"):
        run_field_evaluation([saved[0]], saved[2])
