r"""Train and measure the networks of the tables on CIFAR-10: the small ones several at a time, the paper's one by one.

    python -m benchmarks.accuracy.cifar --data data/cifar10 --runs '*' --seeds 0 --jobs 8 --limit-s 520
    python -m benchmarks.accuracy.cifar --data data/cifar10 --runs '*' --seeds 0 --jobs 8 --measure-only
    python -m benchmarks.accuracy.cifar --data data/cifar10 --runs 'cifar10/*swin_tiny_circular' --jobs 1 --override \
        batch_size=256 evaluate.every_epochs=10 evaluate.protocols=[circular,cifar-standard]

Each run is `trueshift train --config cifar10_small/RECIPE --seed SEED` in a process of its own, the longest first. What
it reached goes to results/COLLECTION.csv (see `store.py`). Finished runs are skipped. When the time is over, all save a
checkpoint, and the same command resumes them.

`--measure-only` asks finished weights what training does not: exactness under many shifts in float32 and bf16, shift
magnitudes, erased and flipped images, canonicalize around ordinary networks, adapting them without fine-tuning.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.accuracy import store
from benchmarks.accuracy.measure import PARTS, measure_run, measured_file, parts_of
from benchmarks.accuracy.runs import Run, hours, matching, write_result
from benchmarks.common.job_queue import Job, JobQueue
from benchmarks.common.package import inference_device
from benchmarks.common.record import RESULTS, ROOT
from benchmarks.release.weights import keep_weights


def main() -> int:
    given = _arguments()
    runs = [Run(recipe, seed, given.work, given.weights) for seed in given.seeds for recipe in matching(given.runs)]
    return _measure(given, runs) if given.measure_only else _train(given, runs)


def _train(given: argparse.Namespace, runs: list[Run]) -> int:
    more = [word for pair in given.override for word in _option(pair)] + ["--compile", "true"] * given.compile
    by_name = {run.name: run for run in runs}
    waiting = []
    for run in runs:
        if any(entry["seed"] == run.seed for entry in store.about(run.recipe, given.results)["trained"]):
            print(f"{run.name}: finished before", flush=True)
        else:
            waiting.append(run)
    jobs = []
    for run in sorted(waiting, key=lambda run: -hours(run.recipe)):
        first = run.first
        if first and first.weights() is None and first not in waiting:
            beside = f"needs --runs {first.recipe} beside it, or --weights FOLDER"
            raise SystemExit(f"{run.name} starts from {first.name}: {beside}")
        command = [sys.executable, "-m", "trueshift", "train", *run.command(given.data, more)]
        jobs.append(Job(run.name, command, run.work / f"{run.name}.log", first and first.name, run.progress))

    def finished(job: Job) -> None:
        run = by_name[job.name]
        if given.keep_weights:
            about = {"recipe": run.recipe, "seed": str(run.seed)}
            keep_weights(run.folder / "final", given.keep_weights / f"{run.name}.safetensors", **about)
        secrets = (given.data, Path(given.data).resolve(), given.work.resolve())
        _take_in(given, write_result(run.work / f"{run.name}.json", run.result(more), secrets))

    return _work_through(given, jobs, finished)


def _measure(given: argparse.Namespace, runs: list[Run]) -> int:
    device = inference_device(given.device)
    batch = given.batch or (1000 if device == "cuda" else 125)  # divides the test images
    left: dict[str, tuple[Run, list[str]]] = {}
    for run in runs:
        there = _parts_there(given, run, device)
        missing = [part for part in parts_of(run.recipe, given.parts) if part not in there]
        if missing and run.weights() is None:
            print(f"{run.name}: no final weights here, left out", flush=True)
        elif missing:
            left[run.name] = (run, missing)
    if given.jobs == 1:
        for run, parts in left.values():
            path = measure_run(run, given.data, device, parts, given.limit, batch, torch.get_num_threads())
            if not given.draft:
                _take_in(given, path)
        return 0
    jobs = []
    for run, parts in sorted(left.values(), key=lambda pair: -len(pair[1])):
        words = ["--measure-only", "--draft", "--data", given.data, "--runs", run.recipe, "--seeds", str(run.seed)]
        words += ["--device", device, "--batch", str(batch), "--limit", str(given.limit), "--work", str(given.work)]
        words += ["--jobs", "1", "--results", str(given.results), "--parts", *parts]
        words += ["--weights", str(given.weights)] if given.weights else []
        command = [sys.executable, "-m", "benchmarks.accuracy.cifar", *words]
        jobs.append(Job(run.name, command, given.work / f"measured_{run.name}.log"))
    return _work_through(given, jobs, lambda job: _take_in(given, measured_file(left[job.name][0], device)))


def _work_through(given: argparse.Namespace, jobs: list[Job], finished: Callable[[Job], None]) -> int:
    at_once = min(given.jobs, max(1, len(jobs)))
    threads = str(max(1, len(os.sched_getaffinity(0)) // at_once))
    environment = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), threads)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    queue = JobQueue(jobs, given.jobs, given.limit_s, given.report_s, environment)
    good = sum(code == 0 for code in queue.run(finished).values())
    queue.say(f"{good} of {len(jobs)} done; the same command resumes the others")
    return 0 if good == len(jobs) else 75


def _parts_there(given: argparse.Namespace, run: Run, device: str) -> set[str]:
    """What need not be measured again: a trial of a few images does not stand for all."""
    return {
        entry["part"]
        for entry in store.about(run.recipe, given.results)["measured"]
        if (entry["seed"], entry["device"]) == (run.seed, device) and entry["settings"]["limit"] in (0, given.limit)
    }


def _take_in(given: argparse.Namespace, path: Path) -> None:
    store.take_in([json.loads(path.read_text())], given.results)


def _option(pair: str) -> list[str]:
    key, _, value = pair.partition("=")
    if not value:
        raise SystemExit(f"--override {pair}: needs key=value, e.g. optimizer.lr=2e-3")
    return [f"--{key}", value]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="CIFAR-10, or 'sample' for the images that come with the package")
    parser.add_argument("--runs", nargs="+", required=True, metavar="GLOB", help="e.g. 'a_*' 'shipped/*'")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--limit-s", type=float, default=0, help="seconds, after which all save and stop; 0 for none")
    parser.add_argument("--report-s", type=float, default=20, help="seconds between two lines of progress")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--override", nargs="+", default=[], metavar="KEY=VALUE", help="of all runs, and recorded")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "tables", help="folder of all runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files")
    parser.add_argument("--keep-weights", type=Path, help="folder for the final weights, float16, one file each")
    parser.add_argument("--weights", type=Path, help="folder of weights that were kept, to start from or measure")
    parser.add_argument("--measure-only", action="store_true")
    parser.add_argument("--draft", action="store_true", help=argparse.SUPPRESS)  # another process takes the result in
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), help="what to measure; all by default")
    parser.add_argument("--device", default="auto", help="to measure on")
    parser.add_argument("--batch", type=int, default=0, help="to measure with")
    parser.add_argument("--limit", type=int, default=0, help="test images to measure, for a trial; 0 for all")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
