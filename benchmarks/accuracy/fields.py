"""Fields: simulations, learned by ordinary and adaptive SwinV2-mini with FieldNet, and followed in time.

    python -m benchmarks.accuracy.fields --task navier_stokes --seeds 0 1 2 --jobs 6
    python -m benchmarks.accuracy.fields --task shallow_water --seeds 0 1 2 --jobs 6    # pip install torch-harmonics
    python -m benchmarks.accuracy.fields --task shallow_water --runs ordinary adaptive --schedule.steps 4 --limit 2 \
        --make "--train 8 --test 2 --times 12" --data runs/trial --work runs/trial/runs --name trial

The data are made at --data if they are not there, by `examples/navier_stokes.py` (decaying turbulence on a torus) or
`examples/shallow_water.py` (on a sphere, which goes around along its columns alone). Each run is `trueshift train
--config fields/TASK_...` with the options that are not those of this program; its final weights are measured on the
test trajectories. One result file for each run and seed; those that are there are skipped.
"""

import json
import shlex
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

from benchmarks.accuracy.store import cell
from benchmarks.common import record
from benchmarks.common.processes import run_jobs, training
from examples import navier_stokes, shallow_water
from trueshift.eval import EvalOptions, run_field_evaluation
from trueshift.eval.options import inference_device


class Simulation(NamedTuple):
    """What makes the data, which of their axes go around, and the lengths of rollouts to measure."""

    make: Callable[[list[str]], Path]
    rolls: str
    lengths: tuple[int, ...]


TASKS = {
    "navier_stokes": Simulation(navier_stokes.main, "true", (1, 10, 50)),
    "shallow_water": Simulation(shallow_water.main, "width", (1, 10, 30)),
}
RUNS: dict[str, tuple[str, str, tuple[str, ...]]] = {  # title, recipe, further words
    "ordinary": ("SwinV2-mini", "swinv2", ()),
    "ordinary_rolls": ("SwinV2-mini, random rolls", "swinv2", ("--fields.random_rolls", "{rolls}")),
    "adaptive": ("A-SwinV2-mini", "a_swinv2", ()),
    "adaptive_random_grids": ("A-SwinV2-mini, random grids", "a_swinv2", ("--model.grid_drop_rate", "0.5")),
}


def options_of(task: str, run: str) -> list[str]:
    _, recipe, words = RUNS[run]
    return ["--config", f"fields/{task}_{recipe}", *(word.format(rolls=TASKS[task].rolls) for word in words)]


def main() -> int:
    given, more = record.options(__doc__, "trainings", "fields", task=TASKS, runs=RUNS).parse_known_args()
    task, data, name = TASKS[given.task], given.data or Path("data") / given.task, given.name or f"fields_{given.task}"
    device = inference_device(given.device)
    if not (data / "about.json").exists():  # written last
        task.make(["--folder", str(data), "--device", device, *shlex.split(given.make)])
    about = json.loads((data / "about.json").read_text())
    runs = {f"{name}_{run}_seed{seed}": (run, seed) for seed, run in product(given.seeds, given.runs)}
    words, jobs = {}, {}
    for title, (run, seed) in runs.items():
        if (record.RESULTS / f"{title}.json").exists():
            print(f"{title}: finished before", flush=True)
            continue
        own = [*options_of(given.task, run), "--seed", str(seed), "--device", device]
        words[title] = [*own, *more]
        jobs[title] = training([*own, "--data.path", str(data), "--output", str(given.work / title)], more)

    def finished(title: str) -> None:
        run, seed = runs[title]
        summary, log = record.training_run(given.work / title)
        kept = {key: summary[key] for key in ("config", "data", "steps", "seconds", "best_skill")}
        kept["curve"] = [[entry["step"], entry["model_relative_l2"]] for entry in log if entry["kind"] == "test"]
        how = EvalOptions(4, given.limit, seed=seed, device=device)
        final = run_field_evaluation([str(given.work / title / "final")], data, options=how, steps=task.lengths)
        known = {key: final["models"][0][key] for key in ("parameters", "patches")} | final["models"][0]["measured"]
        command = shlex.join(["trueshift", "train", *words[title]])
        record.write(title, {"run": run, "training": command, "made": about, **kept, **known}, seed)

    return run_jobs(jobs, given.work, given.jobs, given.limit_s, finished)


def rows(task: str) -> list[record.Recorded]:
    """Errors in percent, mean and deviation over seeds."""
    found = {run: list(record.load_all(f"fields_{task}_{run}_seed*")) for run in RUNS}
    files = [each for of_run in found.values() for each in of_run]
    where = "; ".join(sorted({record.measured_on(each) for each in files}))
    measured = [{int(count) for count in each["result"]["relative_l2"]} for each in files]
    lengths = sorted(set.intersection(*measured)) if files else TASKS[task].lengths  # those that all of them have
    rows = []
    for run, (title, _, _) in RUNS.items():
        row = {"title": title, "last": lengths[-1], "places": f"On {where}." if where else ""}
        if results := [each["result"] for each in found[run]]:
            errors = {count: [100 * each["relative_l2"][str(count)] for each in results] for count in lengths}
            row |= {
                "errors": {count: cell(each) for count, each in errors.items()},
                "apart": max(each["shift_error"][str(lengths[-1])] for each in results),
                "share": cell([100 * each["harmonics"]["error"][str(each["patches"][-1])] for each in results]),
                "steps": ", ".join(f"{count:,}" for count in sorted({each["steps"] for each in results})),
                "seeds": len(results),
            }
        rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())
