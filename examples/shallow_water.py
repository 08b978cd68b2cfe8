"""Training data for FieldNet: shallow water on a rotating sphere, solved by spectra, as one NumPy file per split.

    pip install torch-harmonics
    python examples/shallow_water.py --folder data/shallow_water

Vorticity w, divergence d and height h of a thin layer of depth 1 + h on the unit sphere, in units in which long waves
travel one radius in a unit of time:

    dw/dt = -div ((w + f) u),    dd/dt = curl ((w + f) u) - laplace (h + u^2 / 2),    dh/dt = -div ((1 + h) u)

f = 2 rotation sin(latitude) is all that distinguishes places: there are no mountains and no forcing, so the true
solution commutes with rotation about the axis, and so do its samples on the grid. The classical Runge-Kutta method,
products on a Gaussian grid that holds them without aliases, and hyperviscosity.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

CHANNELS = ("height", "vorticity", "divergence")


def harmonics() -> Any:
    """The package of spherical harmonic transforms."""
    try:
        import torch_harmonics
    except ImportError as error:
        raise ImportError("shallow water is solved by spherical harmonics: pip install torch-harmonics") from error
    return torch_harmonics


def mean_square(spectrum: torch.Tensor) -> torch.Tensor:
    """Over the sphere, from coefficients ``[..., degree, order]`` of orders from 0 on."""
    squares = spectrum.abs().square()
    return (2 * squares.sum((-2, -1)) - squares[..., 0].sum(-1)) / (4 * math.pi)


class Solver:
    """Steps in time of a batch of flows, held as coefficients ``[count, 3, degree, order]`` of their channels.

    Args:
        size: rows of the Gaussian grid; it has twice as many columns.
        viscosity: rate at which the smallest waves decay; others by the fourth power of their degree.
    """

    def __init__(self, size: int, rotation: float, viscosity: float, dt: float, device: str = "cpu") -> None:
        kinds, self.degrees = harmonics(), 2 * size // 3
        grid = {"nlat": size, "nlon": 2 * size, "lmax": self.degrees, "mmax": self.degrees, "grid": "legendre-gauss"}
        names = ("RealSHT", "InverseRealSHT", "RealVectorSHT", "InverseRealVectorSHT")
        self.to_waves, self.on_grid, to_potentials, from_potentials = (
            getattr(kinds, name)(**grid).to(device, torch.float64) for name in names
        )
        degree = torch.arange(self.degrees, device=device, dtype=torch.float64)[:, None]
        self.laplace = -degree * (degree + 1)
        self.inverse = torch.where(degree > 0, 1 / self.laplace.clamp_max(-1), 0)
        self.curl_and_divergence = lambda wind: self.laplace * to_potentials(wind)
        self.wind = lambda curl_and_divergence: from_potentials(self.inverse * curl_and_divergence)  # east, north
        sines, _ = np.polynomial.legendre.leggauss(size)
        self.coriolis = 2 * rotation * torch.from_numpy(sines).flip(0).to(self.laplace)[:, None]
        self.damping = torch.exp(-dt * viscosity * (self.laplace / self.laplace[-1]) ** 2)
        self.dt = dt

    def slope(self, state: torch.Tensor) -> torch.Tensor:
        """How fast a state changes, without viscosity."""
        height, vorticity = self.on_grid(state[:, :2]).unbind(1)
        wind = self.wind(state[:, 1:])
        curl, divergence = self.curl_and_divergence(wind * (vorticity + self.coriolis)[:, None]).unbind(1)
        outflow = self.curl_and_divergence(wind * (1 + height)[:, None])[:, 1]
        pressure = self.to_waves(height + wind.square().sum(1) / 2)
        return torch.stack([-outflow, -divergence, curl - self.laplace * pressure], 1)

    def step(self, state: torch.Tensor) -> torch.Tensor:
        """The state after ``dt``."""
        first = self.slope(state)
        second = self.slope(state + self.dt / 2 * first)
        third = self.slope(state + self.dt / 2 * second)
        fourth = self.slope(state + self.dt * third)
        return (state + self.dt / 6 * (first + 2 * second + 2 * third + fourth)) * self.damping

    def balanced(self, vorticity: torch.Tensor) -> torch.Tensor:
        """The state of some vorticity without divergence, whose height lets none arise at once."""
        nothing = torch.zeros_like(vorticity)
        wanted = self.slope(torch.stack([nothing, vorticity, nothing], 1))[:, 2]
        return torch.stack([self.inverse * wanted, vorticity, nothing], 1)


def random_state(count: int, generator: torch.Generator, solver: Solver, speed: float, degree: float = 8.0):
    """Balanced states on the grid from Gaussian random vorticity around a degree, alike at all longitudes."""
    shape, degrees = (2, count, solver.degrees, solver.degrees), torch.arange(solver.degrees, dtype=torch.float64)
    noise = torch.complex(*torch.randn(shape, generator=generator, dtype=torch.float64)).tril()
    noise[..., 0] = noise[..., 0].real * math.sqrt(2)
    noise = (noise * torch.exp(-((degrees - degree) ** 2) / degree)[:, None]).to(solver.laplace.device)
    noise[:, 0] = 0
    wind = mean_square(noise * (-solver.inverse).sqrt()).sqrt()
    return solver.on_grid(solver.balanced(noise * (speed / wind)[:, None, None]))


def sampled(waves: torch.Tensor, size: int) -> torch.Tensor:
    """The fields on a grid of ``size`` rows, without the waves that this cannot hold."""
    with_poles = harmonics().InverseRealSHT(2 * size + 1, 2 * size, size, size).to(waves.device, torch.float64)
    return with_poles(waves[..., :size, :size])[..., 1::2, :]


def simulate(state: torch.Tensor, times: int, interval: float, solver: Solver, size: int | None = None) -> torch.Tensor:
    """States ``[count, times, 3, size, 2 size]``, ``interval`` apart, from ``[count, 3, n, 2 n]`` on.

    Given on the Gaussian grid of the solver, written on one whose rows are equally far apart, the first half a row from
    the pole; without ``size`` on the solver's.

    Shift law: ``simulate(S x) == S simulate(x)`` to rounding, for rolls of columns by whole points of the grid that is
    written.
    """
    steps = round(interval / solver.dt)
    if steps < 1 or not math.isclose(steps * solver.dt, interval):
        raise ValueError(f"dt {solver.dt}: needs to divide the interval {interval}, e.g. {interval / max(steps, 1)}")
    spectra = [solver.to_waves(state)]
    for _ in range(times - 1):
        following = spectra[-1]
        for _ in range(steps):
            following = solver.step(following)
        spectra.append(following)
    waves = torch.stack(spectra, 1)
    return solver.on_grid(waves) if size is None else sampled(waves, size)


def write_split(path: Path, count: int, seed: int, options: argparse.Namespace) -> None:
    """One file ``[trajectories, times, 3, size, 2 size]``, written in parts."""
    size, generator = options.size, torch.Generator().manual_seed(seed)
    array = np.lib.format.open_memmap(path, "w+", options.dtype, (count, options.times, len(CHANNELS), size, 2 * size))
    solver = Solver(options.solve_at, options.rotation, options.viscosity, options.dt, options.device)
    for first in range(0, count, options.batch):
        part = min(options.batch, count - first)
        start = random_state(part, generator, solver, options.speed)
        if options.spin_up:
            start = simulate(start, 2, options.spin_up, solver)[:, 1]
        states = simulate(start, options.times, options.interval, solver, size)
        if not states.isfinite().all():
            raise ValueError(f"dt {options.dt}: too long for waves of this size; needs e.g. {options.dt / 2}")
        array[first : first + part] = states.cpu().numpy()
        print(f"{path.name}: {first + part} of {count} trajectories", flush=True)
    array.flush()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("data/shallow_water"))
    parser.add_argument("--train", type=int, default=100, help="trajectories to learn from")
    parser.add_argument("--test", type=int, default=12, help="trajectories to measure on")
    parser.add_argument("--times", type=int, default=31, help="states of each, the first included")
    parser.add_argument("--interval", type=float, default=0.2, help="time between them")
    parser.add_argument("--spin-up", type=float, default=2.0, help="time before the first, for eddies to form")
    parser.add_argument("--size", type=int, default=32, help="rows of the grid that is written, half its columns")
    parser.add_argument("--solve-at", type=int, default=64, help="rows of the grid to solve on, a multiple of it")
    parser.add_argument("--rotation", type=float, default=1.5, help="of the sphere, in radians in a unit of time")
    parser.add_argument("--speed", type=float, default=0.2, help="of the first wind, root mean square")
    parser.add_argument("--viscosity", type=float, default=10.0, help="rate at which the smallest waves decay")
    parser.add_argument("--dt", type=float, default=0.04)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=50, help="trajectories solved at once")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="of the files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    if options.solve_at % options.size or options.solve_at < 1.5 * options.size:
        parser.error(f"--solve-at {options.solve_at}: needs a multiple of --size {options.size}, twice it or more")
    return options


def main(arguments: list[str] | None = None) -> Path:
    """Write ``train.npy``, ``test.npy`` and ``about.json``."""
    options = parse(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    about = {key: value for key, value in vars(options).items() if key not in ("folder", "device", "batch")}
    about |= {"channels": CHANNELS, "axes": ["trajectory", "time", "channel", "latitude", "longitude"]}
    for number, split in enumerate(("train", "test")):
        write_split(options.folder / f"{split}.npy", getattr(options, split), 2 * options.seed + number, options)
    (options.folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    return options.folder


if __name__ == "__main__":
    print(f"written to {main()}")
