"""The benchmark of fields: runs that differ as their names say, and a table of what is there."""

import json
import sys

import pytest

from benchmarks.accuracy import fields
from benchmarks.common import record
from trueshift.train import parse_arguments


@pytest.fixture
def results(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def write(results, run, seed, error, apart):
    lengths = [str(count) for count in fields.LENGTHS]
    result = {"relative_l2": dict.fromkeys(lengths, error), "shift_error": dict.fromkeys(lengths, apart)}
    result |= {"harmonics": {"error": {"2": 0.0, "8": 0.125}}, "patches": [2, 8], "steps": 20000}
    about = {"machine": {"gpu": "GPU", "processor": "CPU", "threads": 1}, "versions": {"torch": "2"}}
    (results / f"{fields.NAME}_{run}_seed{seed}.json").write_text(json.dumps({**about, "result": result}))


def test_a_table_without_results(results):
    assert fields.table().count("not run yet") == len(fields.RUNS)


def test_a_table_of_what_is_there(results):
    write(results, "adaptive", 0, 0.1, 0.0)
    write(results, "adaptive", 1, 0.3, 0.0)
    write(results, "ordinary", 0, 0.5, 0.25)
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in fields.table().splitlines()}
    assert rows["A-SwinV2-mini"][0] == "20.00 ± 14.14"
    assert rows["A-SwinV2-mini"][3:] == ["0", "12.50 ± 0.00", "20,000", "2 |"]
    assert rows["SwinV2-mini"][2:4] == ["50.00", "2.5e-01"]
    assert rows["A-SwinV2-mini, random grids"][0] == "not run yet"


def test_runs_are_what_their_names_say():
    found = {
        name: parse_arguments(["--config", f"fields/navier_stokes_{recipe}", *words]).config
        for name, (_, recipe, words) in fields.RUNS.items()
    }
    assert {name for name, config in found.items() if config.model.name.startswith("a_")} == {
        "adaptive", "adaptive_random_grids",
    }  # fmt: skip
    assert [name for name, config in found.items() if config.fields.random_rolls] == ["ordinary_rolls"]
    assert [name for name, config in found.items() if config.model.grid_drop_rate] == ["adaptive_random_grids"]
    assert len({config.schedule for config in found.values()}) == 1


@pytest.mark.slow
def test_the_whole_program(results, tmp_path, monkeypatch):
    made = "--train 40 --test 2 --times 4 --size 32 --solve-at 64"
    words = ["--runs", "ordinary", "adaptive", "--steps", "3", "--jobs", "1", "--device", "cpu", "--make", made]
    words += ["--data", str(tmp_path / "data"), "--work", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", [str(record.ROOT / "benchmarks/accuracy/fields.py"), *words])
    monkeypatch.setattr(fields, "LENGTHS", (1, 3))
    assert fields.main(words) == 0
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    assert {"command", "commit", "machine", "seed", "versions"} < found[f"{fields.NAME}_adaptive_seed0"].keys()
    apart = [found[f"{fields.NAME}_{run}_seed0"]["result"]["shift_error"]["3"] for run in ("ordinary", "adaptive")]
    assert apart[0] > apart[1] == 0
    assert fields.table().count("not run yet") == 2
    assert fields.main(words) == 0  # nothing left to do
