"""Fields: decaying turbulence, learned by ordinary and adaptive SwinV2-mini with FieldNet, and followed in time.

    python -m benchmarks.accuracy.fields --seeds 0 1 2 --jobs 6
    python -m benchmarks.accuracy.fields --runs ordinary adaptive --steps 4 --limit 2 --name trial \
        --make "--train 8 --test 2 --times 4 --size 32 --solve-at 64" --data runs/trial --work runs/trial/runs

The data are made at --data if they are not there, by `examples/navier_stokes.py`. Each run is `trueshift train --config
fields/navier_stokes_...` in a process of its own, with the same number of steps; its final weights are measured on the
test trajectories: relative L2 of rollouts, how far they are from moving with the state, and the share of the error in
the pattern of the patches. One result file for each run and seed; those that are there are skipped.
"""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from benchmarks.accuracy.numbers import NOT_YET, cell
from benchmarks.common import record
from benchmarks.common.package import inference_device, measure_fields, open_fields
from benchmarks.common.processes import Job, run_jobs, stop_after
from examples import navier_stokes
from trueshift import FieldNet
from trueshift.data import FieldStatistics

NAME = "fields_navier_stokes"
RUNS: dict[str, tuple[str, str, tuple[str, ...]]] = {  # title, recipe, further words
    "ordinary": ("SwinV2-mini", "swinv2", ()),
    "ordinary_rolls": ("SwinV2-mini, random rolls", "swinv2", ("--fields.random_rolls", "true")),
    "adaptive": ("A-SwinV2-mini", "a_swinv2", ()),
    "adaptive_random_grids": ("A-SwinV2-mini, random grids", "a_swinv2", ("--model.grid_drop_rate", "0.5")),
}
LENGTHS = (1, 10, 50)
WARM_UP = 500  # steps at most, as in the recipe


def measured(folder: Path, data: Path, device: str, limit: int, seed: int) -> dict[str, Any]:
    """What the final weights of a run reach on the test trajectories."""
    net = FieldNet.from_pretrained(folder).to(device)
    statistics = FieldStatistics(*(tuple(net.pretrained_cfg[key]) for key in ("mean", "std")))
    patches, pairs = [stage["reduction"] for stage in net.encoder.feature_info], open_fields(data, "test")
    found = measure_fields(net, pairs, statistics, patches, LENGTHS, limit=limit, device=device, seed=seed)
    return {"parameters": sum(weight.numel() for weight in net.parameters()), "patches": patches, **found}


def main(arguments: list[str] | None = None) -> int:
    given = record.options(
        __doc__,
        data={"default": Path("data/navier_stokes"), "type": Path},
        make={"default": "", "help": "words for examples/navier_stokes.py"},
        runs={"default": list(RUNS), "choices": list(RUNS), "nargs": "+"},
        seeds=[0],
        steps={"default": 0, "help": "of training; 0 for the recipe's"},
        jobs={"default": 4, "help": "processes at a time"},
        limit={"default": 0, "help": "trajectories to measure, for a trial; 0 for all"},
        limit_s={"default": 0.0, "help": "seconds, after which trainings save and stop; the same command resumes them"},
        device="auto",
        work={"default": record.ROOT / "runs" / "fields_table", "type": Path, "help": "folder of all runs"},
        name={"default": NAME, "help": "what the result files begin with"},
    ).parse_args(arguments)
    device = inference_device(given.device)
    if not (given.data / "about.json").exists():  # written last
        navier_stokes.main(["--folder", str(given.data), "--device", device, *shlex.split(given.make)])
    about = json.loads((given.data / "about.json").read_text())
    more = ["--device", device]
    if given.steps:
        more += ["--schedule.steps", str(given.steps), "--schedule.warmup_steps", str(min(WARM_UP, given.steps // 10))]
    jobs, waiting = [], {}
    for seed in given.seeds:
        for run in given.runs:
            title = f"{given.name}_{run}_seed{seed}"
            if (record.RESULTS / f"{title}.json").exists():
                print(f"{title}: finished before", flush=True)
                continue
            _, recipe, words = RUNS[run]
            options = ["--config", f"fields/navier_stokes_{recipe}", *words, "--seed", str(seed), *more]
            where = ["--data.path", str(given.data), "--output", str(given.work / title)]
            command = [sys.executable, "-m", "trueshift", "train", *options, *where]
            jobs.append(Job(title, command, given.work / f"{title}.log"))
            waiting[title] = (run, seed, shlex.join(["trueshift", "train", *options]))

    def finished(job: Job) -> None:
        run, seed, command = waiting[job.name]
        summary, log = record.training_run(given.work / job.name)
        del summary["config"]["output"], summary["config"]["data"]["path"]
        kept = {key: summary[key] for key in ("config", "data", "steps", "seconds", "best_skill")}
        curve = [[entry["step"], entry["model_relative_l2"]] for entry in log if entry["kind"] == "test"]
        result = {"run": run, "training": command, "made": about, **kept, "curve": curve}
        result |= measured(given.work / job.name / "final", given.data, device, given.limit, seed)
        record.write(job.name, result, seed)

    threads = str(max(1, len(os.sched_getaffinity(0)) // max(1, min(given.jobs, len(jobs)))))
    paths = os.pathsep.join([str(record.ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": threads}
    with stop_after(given.limit_s) as stop:
        good = run_jobs(jobs, given.jobs, stop, finished, environment)
    print(f"{good} of {len(jobs)} done; the same command resumes the others")
    return 0 if good == len(jobs) else 1


def table() -> str:
    """Errors in percent, mean and deviation over seeds."""
    rows: list[list[str]] = []
    where: set[str] = set()
    for run, (title, _, _) in RUNS.items():
        files = list(record.load_all(f"{NAME}_{run}_seed*"))
        where |= {record.machine(each) for each in files}
        rows.append([title, *(_cells([each["result"] for each in files]) if files else [NOT_YET])])
    head = ["network", *(f"{count} step{'s' * (count > 1)}" for count in LENGTHS), "shift error", "pattern of patches"]
    note = (
        "Relative L2 in percent after steps of a rollout; the largest difference between a rolled rollout of "
        f"{LENGTHS[-1]} steps and that of a rolled state; the percentage of one step's error in waves that repeat with "
        "every token of the coarsest stage."
    )
    note += f" On {'; '.join(sorted(where))}." if where else ""
    return record.table([*head, "steps of training", "seeds"], rows, note)


def _cells(found: list[dict[str, Any]]) -> list[str]:
    """Of all seeds of a run."""
    errors = [cell([100 * each["relative_l2"][str(count)] for each in found]) for count in LENGTHS]
    apart = max(each["shift_error"][str(LENGTHS[-1])] for each in found)
    share = cell([100 * each["harmonics"]["error"][str(each["patches"][-1])] for each in found])
    steps = sorted({each["steps"] for each in found})
    return [
        *errors,
        f"{apart:.1e}" if apart else "0",
        share,
        ", ".join(f"{count:,}" for count in steps),
        str(len(found)),
    ]


if __name__ == "__main__":
    sys.exit(main())
