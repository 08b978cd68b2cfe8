"""The flows of `examples/navier_stokes.py` and `shallow_water.py` move with their start, and known ones are found."""

import json
import math
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from examples import navier_stokes, shallow_water

needs_harmonics = pytest.mark.skipif(find_spec("torch_harmonics") is None, reason="needs torch-harmonics")


def flow(vorticity, times=3, dt=0.02, viscosity=1e-3, **more):
    return navier_stokes.simulate(vorticity, times, 0.2, viscosity, dt, **more)


def test_flows_on_a_torus_move_with_their_start():
    start = navier_stokes.random_vorticity(3, 32, torch.Generator().manual_seed(0))
    moved = flow(start.roll((13, 27), (1, 2)))
    torch.testing.assert_close(moved, flow(start).roll((13, 27), (2, 3)), rtol=0, atol=1e-11)
    # a forcing at one place would break that
    forcing = 0.1 * torch.linspace(0, 2 * math.pi, 33)[:32, None].sin()
    forced, moved = (flow(x + forcing) for x in (start, start.roll(8, 1)))
    assert (moved - forced.roll(8, 2)).abs().max() > 0.01


def test_known_flows_on_a_torus():
    """Taylor and Green's vortices keep their form and decay; without viscosity the enstrophy of any flow stays."""
    at = 2 * math.pi * torch.arange(32, dtype=torch.float64) / 32
    vortices = (at[:, None].sin() * at.sin())[None]
    decay = torch.tensor([math.exp(-8 * math.pi**2 * 1e-3 * 0.2 * time) for time in range(3)])[:, None, None]
    torch.testing.assert_close(flow(vortices), (vortices * decay)[None], rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(flow(vortices, size=16), (vortices * decay)[None, :, ::2, ::2], rtol=1e-5, atol=1e-9)
    states = flow(navier_stokes.random_vorticity(3, 32, torch.Generator().manual_seed(0)), dt=0.0025, viscosity=0.0)
    assert (states[:, 2] - states[:, 0]).abs().max() > 0.5
    enstrophy = states.square().mean((2, 3))
    torch.testing.assert_close(enstrophy[:, 2], enstrophy[:, 0], rtol=1e-4, atol=0)


def solver(rotation=1.5, viscosity=0.0, dt=0.04):
    return shallow_water.Solver(24, rotation, viscosity, dt)


@needs_harmonics
def test_flows_on_a_sphere_turn_with_their_start():
    start = shallow_water.random_state(2, torch.Generator().manual_seed(0), solver(), 0.2, degree=5.0)
    for columns, size in ((13, None), (6, 12)):  # by whole points of the grid that is written
        states, turned = (
            shallow_water.simulate(x, 3, 0.2, solver(viscosity=10.0), size) for x in (start, start.roll(columns, 3))
        )
        step = columns if size is None else columns // 2
        torch.testing.assert_close(turned, states.roll(step, 4), rtol=0, atol=1e-12)


@needs_harmonics
def test_known_flows_on_a_sphere():
    """Small waves have their frequency; a balanced wind around the axis stays, the second of the usual test cases."""
    at, degree, time = solver(rotation=0.0, dt=0.02), 3, 0.4
    waves = torch.zeros(1, 3, at.degrees, at.degrees, dtype=torch.complex128)
    waves[0, 0, degree, 2] = 1e-6
    found = at.to_waves(shallow_water.simulate(at.on_grid(waves), 2, time, at))[0, 1, 0, degree, 2].real
    assert float(found) == pytest.approx(1e-6 * math.cos(math.sqrt(degree * (degree + 1)) * time), rel=1e-4)
    at = solver()
    sines = torch.from_numpy(np.polynomial.legendre.leggauss(24)[0]).flip(0)[:, None].expand(24, 48)
    balanced = at.balanced(at.to_waves(0.4 * sines)[None])  # of an eastward wind of 0.2 at the equator
    assert at.slope(balanced).abs().max() < 1e-12
    balanced[:, 0] *= 0.5
    assert at.slope(balanced).abs().max() > 0.1
    # rows of what is written are equally far apart, without poles
    latitudes = math.pi / 2 - (torch.arange(8, dtype=torch.float64) + 0.5) * math.pi / 8
    written = shallow_water.sampled(at.to_waves(sines), 8)
    torch.testing.assert_close(written, latitudes.sin()[:, None].expand(8, 16))


@pytest.mark.parametrize(
    ("simulation", "words", "shape"),
    [
        (navier_stokes, "--size 16 --solve-at 32 --interval 0.1", (1, 16, 16)),
        pytest.param(shallow_water, "--size 8 --solve-at 16", (3, 8, 16), marks=needs_harmonics),
    ],
)
def test_files(tmp_path, simulation, words, shape):
    words = f"--train 3 --test 1 --times 3 --batch 2 --device cpu --spin-up 0.2 {words} --folder"
    folder, again = (simulation.main([*words.split(), str(tmp_path / name)]) for name in "ab")
    train, test = (np.load(folder / f"{split}.npy", mmap_mode="r") for split in ("train", "test"))
    assert (train.shape, test.shape, train.dtype) == ((3, 3, *shape), (1, 3, *shape), np.float32)
    assert np.isfinite(train).all()
    assert not np.array_equal(train[0], test[0])
    assert np.array_equal(np.load(again / "train.npy"), train)
    assert len(json.loads((folder / "about.json").read_text())["channels"]) == shape[0]


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="divide the interval"):
        flow(torch.zeros(1, 32, 32), dt=0.3)
    for simulation in (navier_stokes, shallow_water):
        with pytest.raises(SystemExit):
            simulation.main(["--size", "64", "--solve-at", "100"])
    monkeypatch.setitem(sys.modules, "torch_harmonics", None)
    with pytest.raises(ImportError, match="pip install torch-harmonics"):
        solver()


@needs_harmonics
def test_a_step_that_is_too_long_is_refused(tmp_path):
    words = f"--folder {tmp_path} --train 1 --test 1 --size 8 --solve-at 16 --dt 1 --interval 2 --device cpu"
    with pytest.raises(ValueError, match="too long"):
        shallow_water.main(words.split())
