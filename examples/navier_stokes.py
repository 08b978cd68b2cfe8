"""Training data for FieldNet: decaying turbulence in a periodic box, solved by spectra, as one NumPy file per split.

    python examples/navier_stokes.py --folder data/navier_stokes

The vorticity w of a flow on the unit torus, x along rows and y along columns, as in the literature on neural operators:

    dw/dt + u . grad w = viscosity * laplace w,    u = (d psi / dy, -d psi / dx),    -laplace psi = w

Crank-Nicolson for the viscosity, Heun's method for the advection, modes above 2/3 of the highest removed. There is no
forcing: one that depends on the place, such as the usual sin(2 pi (x + y)), would break the symmetry, and the true
solution would not commute with shifts. Here it does, and so do its samples on the grid.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch


def wavenumbers(size: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole waves along rows and columns, for ``torch.fft.rfft2``."""
    rows = torch.fft.fftfreq(size, 1 / size, device=like.device, dtype=torch.float64)
    columns = torch.fft.rfftfreq(size, 1 / size, device=like.device, dtype=torch.float64)
    return rows[:, None], columns[None, :]


def random_vorticity(count: int, size: int, generator: torch.Generator, tau: float = 40.0, alpha: float = 2.5):
    """Gaussian random fields ``[count, size, size]`` with the spectrum (k^2 + tau^2)^-alpha, mean 0, mean square 1."""
    noise = torch.fft.rfft2(torch.randn(count, size, size, generator=generator, dtype=torch.float64))
    rows, columns = wavenumbers(size, noise)
    envelope = (4 * math.pi**2 * (rows**2 + columns**2) + tau**2) ** (-alpha / 2)
    envelope[0, 0] = 0
    field = torch.fft.irfft2(noise * envelope, s=(size, size))
    return field / field.square().mean((1, 2), keepdim=True).sqrt()


class Solver:
    """Steps in time of a batch of flows, held as spectra of their vorticity."""

    def __init__(self, size: int, viscosity: float, dt: float, like: torch.Tensor) -> None:
        self.size, self.dt = size, dt
        rows, columns = wavenumbers(size, like)
        squares = 4 * math.pi**2 * (rows**2 + columns**2)
        kept = (rows.abs() < size / 3) & (columns < size / 3)
        inverse = torch.where(squares > 0, 1 / squares.clamp_min(1), 0)
        self.along = 2j * math.pi * rows, 2j * math.pi * columns  # derivatives
        self.inverse, self.kept = inverse, kept
        self.before, self.after = 1 - dt / 2 * viscosity * squares, 1 / (1 + dt / 2 * viscosity * squares)

    def velocity(self, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Along rows and along columns, on the grid."""
        stream = w * self.inverse
        return self._on_grid(self.along[1] * stream), self._on_grid(-self.along[0] * stream)

    def advection(self, w: torch.Tensor) -> torch.Tensor:
        """-u . grad w."""
        down, right = self.velocity(w)
        product = down * self._on_grid(self.along[0] * w) + right * self._on_grid(self.along[1] * w)
        return -torch.fft.rfft2(product) * self.kept

    def step(self, w: torch.Tensor) -> torch.Tensor:
        """The spectrum after ``dt``."""
        slope = self.advection(w)
        guess = (self.before * w + self.dt * slope) * self.after
        return (self.before * w + self.dt / 2 * (slope + self.advection(guess))) * self.after

    def _on_grid(self, spectrum: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft2(spectrum, s=(self.size, self.size))


def sampled(spectrum: torch.Tensor, size: int) -> torch.Tensor:
    """The field on a grid of ``size``, without the waves that this cannot hold."""
    from_size, half = spectrum.shape[-2], size // 2
    kept = torch.cat([spectrum[..., :half, :half], spectrum[..., from_size - half :, :half]], -2)
    kept[..., half, :] = 0  # the wave of half the grid, which has no partner
    return torch.fft.irfft2(torch.nn.functional.pad(kept, (0, 1)), s=(size, size)) * (size / from_size) ** 2


def simulate(
    vorticity: torch.Tensor, times: int, interval: float, viscosity: float, dt: float, size: int | None = None
) -> torch.Tensor:
    """States ``[count, times, size, size]``, ``interval`` apart, from ``[count, n, n]`` on.

    Shift law: ``simulate(S w) == S simulate(w)`` to rounding, for shifts by whole points of the grid that is written.
    """
    steps = round(interval / dt)
    if steps < 1 or not math.isclose(steps * dt, interval):
        raise ValueError(f"dt {dt}: needs to divide the interval {interval}, e.g. {interval / max(steps, 1)}")
    solver = Solver(vorticity.shape[-1], viscosity, dt, vorticity)
    spectrum = torch.fft.rfft2(vorticity) * solver.kept
    states = [sampled(spectrum, size or vorticity.shape[-1])]
    for _ in range(times - 1):
        for _ in range(steps):
            spectrum = solver.step(spectrum)
        states.append(sampled(spectrum, size or vorticity.shape[-1]))
    return torch.stack(states, 1)


def write_split(path: Path, count: int, seed: int, options: argparse.Namespace) -> None:
    """One file ``[trajectories, times, 1, size, size]``, float32, written in parts."""
    size, generator = options.size, torch.Generator().manual_seed(seed)
    array = np.lib.format.open_memmap(path, "w+", np.float32, (count, options.times, 1, size, size))
    for first in range(0, count, options.batch):
        part = min(options.batch, count - first)
        start = random_vorticity(part, options.solve_at, generator).to(options.device)
        if options.spin_up:
            start = simulate(start, 2, options.spin_up, options.viscosity, options.dt)[:, 1]
        states = simulate(start, options.times, options.interval, options.viscosity, options.dt, size)
        array[first : first + part, :, 0] = states.float().cpu().numpy()
        print(f"{path.name}: {first + part} of {count} trajectories", flush=True)
    array.flush()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("data/navier_stokes"))
    parser.add_argument("--train", type=int, default=1000, help="trajectories to learn from")
    parser.add_argument("--test", type=int, default=100, help="trajectories to measure on")
    parser.add_argument("--times", type=int, default=51, help="states of each, the first included")
    parser.add_argument("--interval", type=float, default=0.5, help="time between them")
    parser.add_argument("--spin-up", type=float, default=2.0, help="time before the first, for eddies to form")
    parser.add_argument("--size", type=int, default=64, help="of the grid that is written")
    parser.add_argument("--solve-at", type=int, default=128, help="size of the grid to solve on, a multiple of it")
    parser.add_argument("--viscosity", type=float, default=5e-5)
    parser.add_argument("--dt", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=100, help="trajectories solved at once")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    if options.solve_at % options.size or options.size % 2:
        parser.error(f"--solve-at {options.solve_at}: needs a multiple of --size {options.size}, which is even")
    return options


def main(arguments: list[str] | None = None) -> Path:
    """Write ``train.npy``, ``test.npy`` and ``about.json``."""
    options = parse(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    about = {key: value for key, value in vars(options).items() if key not in ("folder", "device", "batch")}
    about |= {"channels": ["vorticity"], "axes": ["trajectory", "time", "channel", "row", "column"]}
    for number, split in enumerate(("train", "test")):
        write_split(options.folder / f"{split}.npy", getattr(options, split), 2 * options.seed + number, options)
    (options.folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")
    return options.folder


if __name__ == "__main__":
    print(f"written to {main()}")
