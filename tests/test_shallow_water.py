"""The flows of `examples/shallow_water.py`: they turn with their start, keep what is kept, and converge in the step."""

import json
import math
import sys

import numpy as np
import pytest
import torch

from examples.shallow_water import Solver, main, mean_square, random_state, sampled, simulate

pytest.importorskip("torch_harmonics")


def solver(rotation=1.5, viscosity=0.0, dt=0.04, size=24):
    return Solver(size, rotation, viscosity, dt)


@pytest.fixture
def start():
    return random_state(2, torch.Generator().manual_seed(0), solver(), 0.2, degree=5.0)


def test_flows_turn_with_their_start(start):
    states = simulate(start, 3, 0.2, solver(viscosity=10.0))
    for columns in (1, 13, 24):
        turned = simulate(start.roll(columns, 3), 3, 0.2, solver(viscosity=10.0))
        torch.testing.assert_close(turned, states.roll(columns, 4), rtol=0, atol=1e-12)
    coarse = simulate(start, 2, 0.2, solver(), size=12)  # by whole points of the grid that is written
    turned = simulate(start.roll(6, 3), 2, 0.2, solver(), size=12)
    torch.testing.assert_close(turned, coarse.roll(3, 4), rtol=0, atol=1e-12)


def test_a_mountain_would_break_that(start):
    """So that the test above can fail."""
    mountain = torch.zeros_like(start)
    mountain[:, 0, 8:12, 8:12] = 0.1
    plain, turned = (simulate(x + mountain, 2, 0.2, solver()) for x in (start, start.roll(24, 3)))
    assert (turned - plain.roll(24, 4)).abs().max() > 0.01


def test_a_balanced_wind_around_the_axis_stays():
    """The second of the usual test cases on the sphere, with a bar that an unbalanced height does not pass."""
    at = solver()
    sines = torch.from_numpy(np.polynomial.legendre.leggauss(24)[0]).flip(0)[:, None].expand(24, 48)
    vorticity = at.to_waves(0.4 * sines)[None]  # of an eastward wind of 0.2 at the equator
    wind = at.wind(torch.stack([vorticity, torch.zeros_like(vorticity)], 1))[0]
    torch.testing.assert_close(wind[0], 0.2 * (1 - sines**2).sqrt(), rtol=0, atol=1e-12)
    torch.testing.assert_close(wind[1], torch.zeros_like(sines), rtol=0, atol=1e-12)
    balanced = at.balanced(vorticity)
    assert at.slope(balanced).abs().max() < 1e-12
    balanced[:, 0] *= 0.5
    assert at.slope(balanced).abs().max() > 0.1


def test_mass_and_energy_are_kept(start):
    at = solver(dt=0.01)
    waves = at.to_waves(simulate(start, 3, 0.2, at))[:, [0, 2]]
    mass = waves[..., 0, 0, 0].real
    torch.testing.assert_close(mass[:, 1], mass[:, 0], rtol=1e-12, atol=1e-14)
    energies = []
    for state in waves.unbind(1):
        height, wind = at.on_grid(state[:, 0]), at.wind(state[:, 1:])
        density = (1 + height) * wind.square().sum(1) / 2 + height.square() / 2
        energies.append(at.to_waves(density)[:, 0, 0].real)
    assert (energies[1] / energies[0] - 1).abs().max() < 1e-5
    damped = at.to_waves(simulate(start, 2, 0.2, solver(viscosity=50.0)))
    assert (mean_square(damped[:, 1, 1]) < mean_square(damped[:, 0, 1])).all()


def test_small_waves_have_their_frequency():
    at, degree, time = solver(rotation=0.0, dt=0.02), 3, 0.4
    waves = torch.zeros(1, 3, at.degrees, at.degrees, dtype=torch.complex128)
    waves[0, 0, degree, 2] = 1e-6
    found = at.to_waves(simulate(at.on_grid(waves), 2, time, at))[0, 1, 0, degree, 2].real
    assert float(found) == pytest.approx(1e-6 * math.cos(math.sqrt(degree * (degree + 1)) * time), rel=1e-4)


def test_half_the_step_has_a_sixteenth_of_the_error(start):
    true = simulate(start, 2, 0.4, solver(dt=0.0125))
    errors = [(simulate(start, 2, 0.4, solver(dt=dt)) - true).norm() for dt in (0.1, 0.05)]
    assert 12 < errors[0] / errors[1] < 20


def test_rows_are_equally_far_apart_without_poles():
    """A field that is the sine of the latitude, and one that is the same wave at each."""
    at = solver()
    sines = torch.from_numpy(np.polynomial.legendre.leggauss(24)[0]).flip(0)[:, None].expand(24, 48)
    latitudes = math.pi / 2 - (torch.arange(8, dtype=torch.float64) + 0.5) * math.pi / 8
    torch.testing.assert_close(sampled(at.to_waves(sines), 8), latitudes.sin()[:, None].expand(8, 16))


def test_random_states_have_no_favourite_longitude():
    at, generator = solver(), torch.Generator().manual_seed(0)
    vorticity = random_state(400, generator, at, 0.2, degree=5.0)[:, 1]
    power = vorticity.square().mean(0)
    assert power.mean(0).std() < 0.1 * power.mean()
    waves = at.to_waves(vorticity)
    torch.testing.assert_close(
        mean_square(waves * (-at.inverse).sqrt()).sqrt(), torch.full((400,), 0.2, dtype=torch.float64)
    )


def test_files(tmp_path):
    words = f"--folder {tmp_path}/data --train 3 --test 1 --times 3 --size 8 --solve-at 16 --batch 2 --device cpu"
    words += " --spin-up 0.2"
    folder = main(words.split())
    train, test = (np.load(folder / f"{split}.npy", mmap_mode="r") for split in ("train", "test"))
    assert (train.shape, test.shape, train.dtype) == ((3, 3, 3, 8, 16), (1, 3, 3, 8, 16), np.float32)
    assert np.isfinite(train).all()
    assert not np.array_equal(train[0], test[0])
    assert json.loads((folder / "about.json").read_text())["channels"] == ["height", "vorticity", "divergence"]
    again = main([*words.replace("/data", "/again").split(), "--dtype", "float16"])
    assert np.array_equal(np.load(again / "train.npy"), train.astype(np.float16))


def test_what_does_not_fit_is_refused(start, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="divide the interval"):
        simulate(start, 2, 0.5, solver(dt=0.3))
    with pytest.raises(SystemExit):
        main(["--solve-at", "32"])
    words = f"--folder {tmp_path} --train 1 --test 1 --size 8 --solve-at 16 --dt 1 --interval 2 --device cpu"
    with pytest.raises(ValueError, match="too long"):
        main(words.split())
    monkeypatch.setitem(sys.modules, "torch_harmonics", None)
    with pytest.raises(ImportError, match="pip install torch-harmonics"):
        solver()
