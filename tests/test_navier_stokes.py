"""The flows of `examples/navier_stokes.py`: they move with their start, lose energy, and converge in the step."""

import json

import numpy as np
import pytest
import torch

from examples.navier_stokes import Solver, main, random_vorticity, sampled, simulate


@pytest.fixture
def start():
    return random_vorticity(3, 32, torch.Generator().manual_seed(0))


def flow(vorticity, times=3, dt=0.02, viscosity=1e-3, **more):
    return simulate(vorticity, times, 0.2, viscosity, dt, **more)


def test_flows_move_with_their_start(start):
    states = flow(start)
    for shift in ((1, 0), (0, 1), (13, 27)):
        torch.testing.assert_close(flow(start.roll(shift, (1, 2))), states.roll(shift, (2, 3)), rtol=0, atol=1e-11)
    coarse = flow(start, size=16)  # by whole points of the grid that is written
    torch.testing.assert_close(
        flow(start.roll((2, 6), (1, 2)), size=16), coarse.roll((1, 3), (2, 3)), rtol=0, atol=1e-11
    )


def test_a_forcing_at_one_place_would_break_that(start):
    """So that the test above can fail."""
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    forcing = torch.sin(2 * torch.pi * (rows + columns) / 32)
    forced, moved = (flow(w + 0.1 * forcing) for w in (start, start.roll(8, 1)))
    assert (moved - forced.roll(8, 2)).abs().max() > 0.01


def test_energy_and_enstrophy_decay_by_viscosity_alone(start):
    states = flow(start, times=6)
    solver = Solver(32, 0.0, 0.02, start)
    velocities = torch.stack(solver.velocity(torch.fft.rfft2(states)))
    energy, enstrophy = velocities.square().mean((0, 3, 4)), states.square().mean((2, 3))
    assert (energy.diff(dim=1) < 0).all()
    assert (enstrophy.diff(dim=1) < 0).all()
    still = flow(start, times=3, viscosity=0.0, dt=0.0025)
    torch.testing.assert_close(still.square().mean((2, 3))[:, 2], still.square().mean((2, 3))[:, 0], rtol=1e-4, atol=0)


def test_the_velocity_has_that_vorticity(start):
    solver = Solver(32, 0.0, 0.02, start)
    spectrum = torch.fft.rfft2(start) * solver.kept
    down, right = (torch.fft.rfft2(part) for part in solver.velocity(spectrum))
    curl = solver.along[0] * right - solver.along[1] * down  # x along rows, y along columns
    torch.testing.assert_close(curl, spectrum, rtol=0, atol=1e-9)
    divergence = solver.along[0] * down + solver.along[1] * right
    assert divergence.abs().max() < 1e-9


def test_half_the_step_has_a_quarter_of_the_error(start):
    true = flow(start, dt=0.00125)
    errors = [(flow(start, dt=dt) - true).norm() for dt in (0.02, 0.01)]
    assert 3 < errors[0] / errors[1] < 5


def test_a_coarser_grid_samples_the_same_field():
    """Waves that it can hold, at its own points."""
    waves = random_vorticity(1, 8, torch.Generator().manual_seed(0))
    spectrum = torch.fft.rfft2(waves)
    spectrum[:, 4], spectrum[..., 4] = 0, 0
    fine = torch.zeros(1, 32, 17, dtype=spectrum.dtype)
    fine[:, :4, :4], fine[:, -4:, :4] = spectrum[:, :4, :4], spectrum[:, -4:, :4]
    points = torch.fft.irfft2(fine, s=(32, 32))[:, ::4, ::4] * 16
    torch.testing.assert_close(sampled(fine, 8) * 16, points)


def test_files(tmp_path):
    words = f"--folder {tmp_path}/data --train 3 --test 1 --times 3 --size 16 --solve-at 32 --batch 2 --device cpu"
    folder = main(words.split())
    train, test = (np.load(folder / f"{split}.npy", mmap_mode="r") for split in ("train", "test"))
    assert (train.shape, test.shape, train.dtype) == ((3, 3, 1, 16, 16), (1, 3, 1, 16, 16), np.float32)
    assert np.isfinite(train).all()
    assert not np.array_equal(train[0], test[0])
    assert json.loads((folder / "about.json").read_text())["viscosity"] == 5e-5
    again = main(words.replace("/data", "/again").split())
    assert np.array_equal(np.load(again / "train.npy"), train)


def test_a_step_that_does_not_divide_the_interval_is_refused(start):
    with pytest.raises(ValueError, match="divide the interval"):
        simulate(start, 2, 0.5, 1e-3, 0.3)
