"""Train and measure the networks of the tables on CIFAR-10: the small ones several at a time, the paper's one by one.

    python -m benchmarks.accuracy.cifar --data data/cifar10 --runs '*' --seeds 0 --jobs 8 --measure
    python -m benchmarks.accuracy.cifar --data data/cifar10 --runs 'cifar10/*_mixed' --jobs 1 --compile

What a run reached goes to results/COLLECTION.csv (see `store.py`); finished runs are skipped. `--measure` asks the
weights of each finished run what training does not (see `parts.toml`); `--measure-only` trains nothing. Further options
are for all trainings, as `trueshift train` takes them. `benchmarks/README.md` has the rest.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from benchmarks.accuracy import store
from benchmarks.accuracy.measure import PARTS, measure_run, parts_of
from benchmarks.accuracy.runs import Run, keep_weights, matching, write_result
from benchmarks.common import record
from benchmarks.common.processes import run_jobs, threads_for, training
from trueshift.eval.options import inference_device


def main() -> int:
    given, more = record.options(__doc__, "trainings", "cifar", parts=PARTS).parse_known_args()
    runs = [Run(recipe, seed, given.work, given.weights) for seed in given.seeds for recipe in matching(given.runs)]
    if given.measure_only and more:
        raise SystemExit(f"{' '.join(more)}: for trainings, and --measure-only trains nothing")
    return _measure(given, runs) if given.measure_only else _train(given, runs, more)


def _train(given: argparse.Namespace, runs: list[Run], more: list[str]) -> int:
    more = [*["--compile", "true"] * given.compile, *more]
    waiting = {}
    for run in runs:
        if any(entry["seed"] == run.seed for entry in store.about(run.recipe, given.results)["trained"]):
            print(f"{run.name}: finished before", flush=True)
        else:
            waiting[run.name] = run
    jobs, after = {}, {}
    for name, run in waiting.items():
        missing = [needed for needed in run.needed.values() if needed.weights() is None]
        own = [*run.options(given.data), "--device", given.device]
        jobs[name], after[name] = training(own, more), {needed.name for needed in missing}
        if absent := [needed for needed in missing if needed.name not in waiting]:
            beside = f"needs --runs {absent[0].recipe} beside it, or --weights FOLDER"
            raise SystemExit(f"{name} starts from {absent[0].name}: {beside}")

    if given.measure:
        again = [sys.executable, "-m", "benchmarks.accuracy.cifar", "--measure-only", "--jobs", "1"]
        for key in ("data", "work", "weights", "device", "batch", "limit"):
            again += [f"--{key}", str(getattr(given, key))] * bool(getattr(given, key))
        again += ["--parts", *given.parts] if given.parts else []
        for name, run in waiting.items():
            words = ["--runs", run.recipe, "--seeds", str(run.seed), "--results", str(given.work / f"measured_{name}")]
            jobs[f"measured_{name}"], after[f"measured_{name}"] = [*again, *words], {name}

    def finished(name: str) -> None:
        found = list(given.work.glob(f"{name}_*.json"))  # of a measurement: one, if there was something to measure
        if run := waiting.get(name):
            secrets = (given.data, Path(given.data).resolve(), given.work.resolve())
            found = [write_result(run.work / f"{name}.json", run.result(more), secrets)]
            if given.keep_weights:
                keep_weights(run.folder / "final", given.keep_weights / f"{name}.safetensors")
        if given.keep_weights:
            for result in found:
                shutil.copy(result, given.keep_weights)
        store.take_in([json.loads(result.read_text()) for result in found], given.results)

    return run_jobs(jobs, given.work, given.jobs, given.limit_s, finished, after)


def _measure(given: argparse.Namespace, runs: list[Run]) -> int:
    device, threads = inference_device(given.device), threads_for(min(given.jobs, len(runs)))
    batch = given.batch or (1000 if device == "cuda" else 125)  # divides the test images
    left = []
    for run in runs:
        there = _parts_there(given, run, device)
        missing = [part for part in parts_of(run.recipe, given.parts) if part not in there]
        if missing and run.weights() is None:
            print(f"{run.name}: no final weights here, left out", flush=True)
        elif missing:
            left.append((run, missing))
    measure = partial(measure_run, data=given.data, device=device, limit=given.limit, batch_size=batch, workers=threads)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, spawn, torch.set_num_threads, (threads,)) as pool:
        for path in (map if given.jobs == 1 else pool.map)(measure, left):
            store.take_in([json.loads(path.read_text())], given.results)
    return 0


def _parts_there(given: argparse.Namespace, run: Run, device: str) -> set[str]:
    """What need not be measured again: a trial of a few images does not stand for all."""
    return {
        entry["part"]
        for entry in store.about(run.recipe, given.results)["measured"]
        if (entry["seed"], entry["device"]) == (run.seed, device) and entry["settings"]["limit"] in (0, given.limit)
    }


if __name__ == "__main__":
    sys.exit(main())
