"""Fields that change in time, such as simulations: pairs of states one step apart, from NumPy files or by xarray."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..utils.checks import import_optional
from .arrays import DAMAGES
from .source import split_names
from .subset import spread

AXES = "[trajectory, time, channel, row, column]"
_BY_XARRAY = (".zarr", ".nc", ".nc4", ".netcdf")
_NAMED = {-3: "time|date|step|^t$", -2: "^[nr]?lat", -1: "^[nr]?lon"}  # what each axis is, where names say so
_TIMES = 64  # that are in memory together for statistics: a climate is one long trajectory
ENDINGS = (".npy", ".npz", *_BY_XARRAY)


@dataclass(frozen=True)
class FieldStatistics:
    """Mean and standard deviation of each channel over a training split.

    Shift law: elementwise, so the normalized field moves with the field, bit for bit.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalize(self, x: Float[Tensor, "*any C H W"]) -> Float[Tensor, "*any C H W"]:
        """To mean 0 and deviation 1."""
        return (x - self._per_channel(self.mean, x)) / self._per_channel(self.std, x)

    def restore(self, x: Float[Tensor, "*any C H W"]) -> Float[Tensor, "*any C H W"]:
        """The inverse, to rounding."""
        return x * self._per_channel(self.std, x) + self._per_channel(self.mean, x)

    @staticmethod
    def _per_channel(values: tuple[float, ...], x: Tensor) -> Tensor:
        return torch.tensor(values, dtype=x.dtype, device=x.device)[:, None, None]


class FieldPairs:
    """A sample is a state and the next one, each ``[C, H, W]`` of float32.

    Args:
        states: ``[trajectory, time, channel, row, column]``, numbers of floating point; may be memory-mapped.
        title: what messages call it.
        indices: of the samples to take, in the order of trajectories and times; all by default.
        variables: names of the channels, where the file has them.
    """

    def __init__(
        self, states: np.ndarray, title: str, indices: np.ndarray | None = None, variables: Sequence[str] = ()
    ) -> None:
        if states.ndim != 5:
            raise ValueError(f"{title} has the shape {states.shape}: needs the axes {AXES}")
        if not np.issubdtype(states.dtype, np.floating):
            raise ValueError(f"{title} holds {states.dtype}: needs float32, or another floating-point type")
        if not states.size or states.shape[1] < 2:
            raise ValueError(f"{title} has the shape {states.shape}: needs a trajectory of at least 2 times")
        self.states, self.title, self.variables = states, title, list(variables)
        self.indices = np.arange(states.shape[0] * (states.shape[1] - 1)) if indices is None else indices

    @property
    def channels(self) -> int:
        """Of each state."""
        return self.states.shape[2]

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.states.shape[3], self.states.shape[4]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        now, following = self.batch(np.array([index]))
        return now[0], following[0]

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The states of some samples, and the next ones, each ``[B, C, H, W]``."""
        trajectory, time = np.divmod(self.indices[indices], self.states.shape[1] - 1)
        now, following = self.states[trajectory, time], self.states[trajectory, time + 1]
        return now.astype(np.float32, copy=False), following.astype(np.float32, copy=False)

    def name(self, index: int) -> str:
        """Trajectory and time."""
        trajectory, time = divmod(int(self.indices[index]), self.states.shape[1] - 1)
        return f"trajectory {trajectory}, time {time}"

    def take(self, trajectories: slice) -> "FieldPairs":
        """Some of the trajectories."""
        return FieldPairs(self.states[trajectories], f"part of {self.title}", variables=self.variables)

    def limited(self, limit: int) -> "FieldPairs":
        """At most ``limit`` samples, spread over all; 0 for all."""
        if not limit:
            return self
        return FieldPairs(self.states, self.title, self.indices[spread(len(self), limit)], self.variables)

    def check_variables(self, other: str, variables: Sequence[str]) -> None:
        """Refuse those of another file or network if both are known and differ."""
        if self.variables and variables and self.variables != list(variables):
            ours, theirs = ", ".join(self.variables), ", ".join(variables)
            raise ValueError(f"{self.title} has the variables {ours}, {other} {theirs}: needs the same names")

    def statistics(self) -> FieldStatistics:
        """Of each channel over all states; what is not finite is refused."""
        count, total, squares = 0, np.zeros(self.channels), np.zeros(self.channels)
        for number, first in np.ndindex(self.states.shape[0], -(-self.states.shape[1] // _TIMES)):
            with np.errstate(over="ignore", invalid="ignore"):
                states = self.states[number, first * _TIMES : (first + 1) * _TIMES].astype(np.float64)
                total += states.sum((0, 2, 3))
                squares += np.square(states).sum((0, 2, 3))
            count += states.size // self.channels
            if not np.isfinite(squares).all():
                raise ValueError(f"trajectory {number} of {self.title} holds NaN, infinite or huge values: remove it")
        mean = total / count
        std = np.sqrt(np.maximum(squares / count - mean**2, 0))
        if (flat := np.flatnonzero(std <= 1e-7 * np.abs(mean))).size:
            raise ValueError(f"channel {flat[0]} of {self.title} is constant: leave it out")
        return FieldStatistics(tuple(mean.tolist()), tuple(std.tolist()))


def open_fields(where: str | Path, split: str = "train") -> FieldPairs:
    """Open fields by a path.

    Args:
        where: a file, or a folder with one per split, such as ``train.npy`` and ``test.npy``. ``.npy`` is
            memory-mapped; an ``.npz`` has one array, or one per split; ``.zarr`` and ``.nc`` are read into memory by
            xarray, their variables as channels in the order of their names, each [time, row, column] or
            [trajectory, time, row, column]; other orders are refused where the axes' names show them.
        split: ``"train"``, ``"val"`` or ``"test"``; ignored for a file with one array.
    """
    words = split_names(split)
    path = Path(where)
    if not path.exists():
        raise FileNotFoundError(f"there are no fields at {path}: needs a file ({', '.join(ENDINGS)}) or a folder")
    if path.is_dir() and path.suffix != ".zarr":
        names = [f"{word}{ending}" for word in words for ending in ENDINGS]
        found = [path / name for name in names if (path / name).exists()]
        if not found:
            raise FileNotFoundError(
                f"{path} has no fields for {split}: needs {words[0]}.npy, or {words[0]} and another ending"
            )
        path = found[0]
    if path.suffix not in ENDINGS:
        raise ValueError(f"{path} is no file of fields: needs one of {', '.join(ENDINGS)}")
    if path.suffix in _BY_XARRAY:
        states, variables = _read_by_xarray(path)
        return FieldPairs(states, path.name, variables=variables)
    return FieldPairs(_read(path, words), path.name)


def _read(path: Path, words: Sequence[str]) -> np.ndarray:
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r")
        with path.open("rb") as file, np.load(file) as archive:
            names = archive.files
            name = names[0] if len(names) == 1 else next((word for word in words if word in names), None)
            if name is not None:
                return archive[name]
    except DAMAGES as error:
        raise ValueError(f"{path} is not a whole {path.suffix} file of numbers: write or copy it again") from error
    raise ValueError(f"{path} holds {', '.join(names) or 'nothing'}: needs one array, or one called {words[0]}")


def _read_by_xarray(path: Path) -> tuple[np.ndarray, list[str]]:
    """States, and the names of their channels."""
    xarray = import_optional("xarray", f"{path.name} is read by xarray: pip install 'trueshift[fields]'")
    try:
        # what only describes the grid, such as bounds of cells, becomes a coordinate
        engine = "zarr" if path.suffix == ".zarr" else None
        data = xarray.open_dataset(path, engine=engine, decode_coords="all")
    except Exception as error:  # its engines raise many kinds, also where one of them is not installed
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} cannot be read by xarray ({reason}): needs a whole file, and zarr or netCDF4"
        ) from error
    with data:
        # a store has no order of its own, and two splits must have the same
        names = sorted(map(str, data.data_vars))
        _check_axes(path, {name: [str(axis) for axis in data[name].dims] for name in names})
        states = np.stack([np.asarray(data[name].values) for name in names], -3)
    return states if states.ndim == 5 else states[None], names


def _check_axes(path: Path, axes: dict[str, list[str]]) -> None:
    """Refuse variables on different axes, and axes whose names say that they are in another order."""
    first = next(iter(axes.values()), [])
    named = [[bool(re.search(name, axis.lower())) for axis in first] for name in _NAMED.values()]
    alike = len(first) in (3, 4) and all(other == first for other in axes.values())
    if not alike or any(any(found) and not found[place] for place, found in zip(_NAMED, named, strict=True)):
        given = ", ".join(f"{name} ({', '.join(each)})" for name, each in axes.items()) or "none"
        raise ValueError(
            f"the variables of {path} have the axes {given}: needs variables of [time, row, column] or of [trajectory, "
            "time, row, column], latitudes as rows, longitudes as columns and each level a variable of its own"
        )
