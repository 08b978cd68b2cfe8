"""The benchmark of fields: runs that differ as their names say, and a table of what is there."""

import json
import sys

import pytest

from benchmarks.accuracy import fields
from benchmarks.bench import TABLES
from benchmarks.common import record
from trueshift.train import parse_arguments

every_task = pytest.mark.parametrize("task", list(fields.TASKS))


@pytest.fixture
def results(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def write(results, task, run, seed, error, apart, lengths=None):
    lengths = [str(count) for count in lengths or fields.TASKS[task].lengths]
    result = {"relative_l2": dict.fromkeys(lengths, error), "shift_error": dict.fromkeys(lengths, apart)}
    result |= {"harmonics": {"error": {"2": 0.0, "8": 0.125}}, "patches": [2, 8], "steps": 20000}
    about = {"machine": {"gpu": "GPU", "processor": "CPU", "threads": 1}, "versions": {"torch": "2"}}
    (results / f"fields_{task}_{run}_seed{seed}.json").write_text(json.dumps({**about, "result": result}))


def table(task):
    return TABLES[f"fields_{task}"].render()


def rows(task):
    return {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in table(task).splitlines()}


@every_task
def test_a_table_without_results(results, task):
    assert all("not run yet" in rows(task)[title] for title, *_ in fields.RUNS.values())


@every_task
def test_a_table_of_what_is_there(results, task):
    write(results, task, "adaptive", 0, 0.1, 0.0)
    write(results, task, "adaptive", 1, 0.3, 0.0)
    write(results, task, "ordinary", 0, 0.5, 0.25)
    found = rows(task)
    assert found["A-SwinV2-mini"][0] == "20.00 ± 14.14"
    assert found["A-SwinV2-mini"][3:] == ["0", "12.50 ± 0.00", "20,000", "2 |"]
    assert found["SwinV2-mini"][2:4] == ["50.00", "2.5e-01"]
    assert found["A-SwinV2-mini, random grids"][0] == "not run yet"
    assert f"| {fields.TASKS[task].lengths[-1]} steps |" in table(task)


@every_task
def test_a_table_has_the_rollouts_that_all_results_have(results, task):
    write(results, task, "adaptive", 0, 0.1, 0.0, (1, 10, 12))
    write(results, task, "ordinary", 0, 0.5, 0.25, (1, 10))
    head, _, *lines = table(task).splitlines()
    assert head.startswith("| network | 1 step | 10 steps | shift error |")
    assert {line.count("|") for line in lines[:4] if "not run yet" not in line} == {head.count("|")}
    assert "a rolled rollout of 10 steps" in table(task)


@every_task
def test_runs_are_what_their_names_say(task):
    found = {name: parse_arguments(fields.options_of(task, name)).config for name in fields.RUNS}
    assert {name for name, config in found.items() if config.model.name.startswith("a_")} == {
        "adaptive", "adaptive_random_grids",
    }  # fmt: skip
    assert [name for name, config in found.items() if config.fields.random_rolls] == ["ordinary_rolls"]
    assert found["ordinary_rolls"].fields.random_rolls == {"navier_stokes": True, "shallow_water": "width"}[task]
    assert [name for name, config in found.items() if config.model.grid_drop_rate] == ["adaptive_random_grids"]
    assert len({config.schedule for config in found.values()}) == 1


@pytest.mark.slow
@every_task
def test_the_whole_program(results, tmp_path, monkeypatch, task):
    if task == "shallow_water":
        pytest.importorskip("torch_harmonics")
    made = "--train 40 --test 2 --times 4 --size 32 --solve-at 64 --spin-up 0"
    words = ["--task", task, "--runs", "ordinary", "adaptive", "--jobs", "1", "--device", "cpu", "--make", made]
    words += ["--schedule.steps", "3", "--schedule.warmup_steps", "0", "--optimizer.lr", "1e-4", "--batch_size", "8"]
    words += ["--data", str(tmp_path / "data"), "--work", str(tmp_path / "runs")]
    monkeypatch.setattr(sys, "argv", [str(record.ROOT / "benchmarks/accuracy/fields.py"), *words])
    monkeypatch.setitem(fields.TASKS, task, fields.TASKS[task]._replace(lengths=(1, 3, 50)))  # 50: left out
    assert fields.main() == 0
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    assert {"command", "commit", "machine", "seed", "versions"} < found[f"fields_{task}_adaptive_seed0"].keys()
    measured = [found[f"fields_{task}_{run}_seed0"]["result"] for run in ("ordinary", "adaptive")]
    assert [each["config"]["batch_size"] for each in measured] == [8, 8]
    assert measured[0]["shift_error"]["3"] > measured[1]["shift_error"]["3"] == 0
    assert [run for run, (title, *_) in fields.RUNS.items() if "not run yet" in rows(task)[title]] == [
        "ordinary_rolls", "adaptive_random_grids",
    ]  # fmt: skip
    assert fields.main() == 0  # nothing left to do
