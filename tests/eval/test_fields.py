"""Measures of fields in time: known answers, and what the shift law does to a rollout."""

import numpy as np
import pytest
import torch
from model_checks import narrow, perturb_norms

from trueshift import FieldNet
from trueshift.data import FieldPairs, FieldStatistics
from trueshift.eval import harmonic_share, load_eval_model, measure_fields, relative_l2, rollout, spectrum

PLAIN = FieldStatistics((0.0,), (1.0,))


@pytest.fixture
def moving():
    """Fields that move one column to the right in each step."""
    start = np.random.default_rng(0).standard_normal((3, 1, 32, 32)).astype(np.float32)
    return FieldPairs(np.stack([np.roll(start, time, 3) for time in range(6)], 1), "moving")


def small(name):
    return perturb_norms(FieldNet(name, 1, **narrow(name), decoder_depth=1, residual=True)).eval()


def test_relative_error():
    true = torch.tensor([[3.0, 4.0], [0.0, 2.0]]).view(2, 1, 1, 2)
    assert relative_l2(true, true).tolist() == [0, 0]
    assert relative_l2(torch.zeros_like(true), true).tolist() == [1, 1]
    assert relative_l2(true + torch.tensor([0.0, 1.0]), true).tolist() == pytest.approx([0.2, 0.5])


def test_a_rollout_feeds_on_itself():
    states = list(rollout(lambda state: 2 * state, torch.ones(1, 1, 2, 2), 3))
    assert [state.max().item() for state in states] == [2, 4, 8]


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
        ((16, 16), (3, 4), 5),
        ((16, 16), (0, 1), 1),
        ((16, 16), (2, 3), 4),  # 3.6
        ((16, 32), (3, 8), 5),  # 8 waves along the longer side are as long as 4 along the shorter
        ((16, 32), (0, 6), 3),
        ((16, 32), (4, 0), 4),
        ((16, 32), (0, 1), 1),  # 0.5: not with the mean
        ((32, 16), (8, 3), 5),
        ((8, 32), (0, 1), 1),  # 0.25
        ((8, 12), (2, 3), 3),  # 2.8
    ],
)
def test_energy_of_a_wave(size, waves, number):
    rows, columns = (2 * torch.pi * torch.arange(side, dtype=torch.float64) / side for side in size)
    found = spectrum(2 + torch.sin(waves[0] * rows[:, None] + waves[1] * columns).expand(2, 3, *size))
    expected = torch.zeros_like(found)
    expected[0], expected[number] = 4, 0.5
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [(16, 16), (16, 32), (12, 8), (9, 15), (4, 64)])
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


@pytest.mark.parametrize("size", [(32, 32), (32, 64), (32, 128)])
def test_the_spectrum_of_a_point_grows_as_its_rings(size):
    """A point has every wave; no number lacks those that one side has and the other has not."""
    point = torch.zeros(1, 1, *size)
    point[..., 3, 7] = (size[0] * size[1]) ** 0.5
    found = spectrum(point)[1:17]
    expected = 2 * torch.pi * torch.arange(1, 17) / 32**2  # a ring's share of all waves
    assert (found / expected - 1).abs().max() < 0.4  # few waves are short of a circle
    assert (found[1:] > 0.8 * found[:-1]).all()


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


def test_errors_are_of_normalized_states(moving):
    shifted = FieldPairs(moving.states * 10 + 1000, "shifted")
    known = measure_fields(lambda x: 0 * x, shifted, shifted.statistics(), (4,), steps=(1,))
    assert known["one_step_l2"] == pytest.approx(1)


@pytest.mark.parametrize(("name", "exact"), [("a_swinv2_mini", True), ("swinv2_mini", False)])
def test_rollouts_of_networks(moving, name, exact):
    found = measure_fields(small(name), moving, PLAIN, (2, 8), steps=(1, 4), shifts=2, limit=2)
    assert (max(found["shift_error"].values()) == 0) == exact
    assert found["trajectories"] == 2
    assert found["shift_error"]["4"] == 0 or found["shift_error"]["1"] > 1e-3


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
        found = measure_fields(lambda x: x + rows, moving, PLAIN, (4,), steps=(1,), circular=circular)
        assert (found["shift_error"]["1"] == 0) == exact


def test_what_is_refused(moving, tmp_path):
    for steps, message in (((50,), "from 1 to 5"), ((), "from 1 to 5"), ((1, 0), "at least 1"), ((-2,), "at least 1")):
        with pytest.raises(ValueError, match=message):
            measure_fields(lambda x: x, moving, PLAIN, (2, 4), steps=steps)
    with pytest.raises(ValueError, match="needs 'both' or 'width'"):
        measure_fields(lambda x: x, moving, PLAIN, (4,), circular="height")
    with pytest.raises(ValueError, match="height 32: needs a multiple of 5"):
        measure_fields(lambda x: x, moving, PLAIN, (5,), steps=(1,))
    folder = small("a_swinv2_mini").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="network for fields"):
        load_eval_model(str(folder))
