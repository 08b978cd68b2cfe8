r"""Train and measure the networks of the tables on CIFAR-10: the small ones several at a time, the paper's one by one.

    python benchmarks/small_models.py --data data/cifar10 --runs '*' --seeds 0 --jobs 8 --limit-s 520
    python benchmarks/small_models.py --data data/cifar10 --runs '*' --seeds 0 --jobs 8 --measure-only
    python benchmarks/small_models.py --data data/cifar10 --runs 'cifar10/*swin_tiny_circular' --jobs 1 --override \
        batch_size=256 evaluate.every_epochs=10 evaluate.protocols=[circular,cifar-standard]

Each run is `trueshift train --config cifar10_small/RECIPE --seed SEED` in a process of its own, the longest first. When
it is done, results/cifar10_small/RECIPE_seedSEED.json holds its configuration, learning curve and measurements. What is
finished is passed over. When the time is over, all save a checkpoint, and the same command goes on from there.

`--measure-only` asks finished weights what training does not: exactness under many shifts in float32 and bf16, shift
magnitudes, erased and flipped images, canonicalize around ordinary networks, adapting them without fine-tuning.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from gpu_sharing import shared_gpu
from job_queue import Job, JobQueue, threads_for
from record import RESULTS, ROOT
from small_measure import PARTS, measure_run, parts_of, parts_there, result_path
from small_runs import Run, hours, matching, needed_by, write_result
from small_weights import keep_weights

from trueshift.eval.options import inference_device


def main() -> int:
    given = _arguments()
    runs = [Run(recipe, seed, given.work, given.weights) for seed in given.seeds for recipe in matching(given.runs)]
    return _measure(given, runs) if given.measure_only else _train(given, runs)


def _train(given: argparse.Namespace, runs: list[Run]) -> int:
    more = [word for pair in given.override for word in _option(pair)] + (
        ["--compile", "true"] if given.compile else []
    )
    by_name = {run.name: run for run in runs}
    waiting = [run for run in runs if not _result(given, run).exists()]
    for run in runs:
        if run not in waiting:
            print(f"{run.name}: finished before", flush=True)
    for run in waiting:
        _refuse_without_start(run, waiting)
    waiting.sort(key=lambda run: -hours(run.recipe))
    jobs = []
    for run in waiting:
        first = needed_by(run.recipe)
        command = [sys.executable, "-m", "trueshift", "train", *run.command(given.data, more)]
        after = Run(first, run.seed, run.work).name if first else None
        jobs.append(Job(run.name, command, run.log, after, run.told))

    def finished(job: Job) -> None:
        run = by_name[job.name]
        if given.keep_weights:
            about = {"recipe": run.recipe, "seed": str(run.seed)}
            keep_weights(run.folder / "final", given.keep_weights / f"{run.name}.safetensors", **about)
        secrets = (given.data, Path(given.data).resolve(), given.work.resolve())
        write_result(_result(given, run), run.result(more), secrets)

    return _work_through(given, jobs, finished)


def _measure(given: argparse.Namespace, runs: list[Run]) -> int:
    device = inference_device(given.device)
    batch = given.batch or (1000 if device == "cuda" else 125)  # divides the test images
    left = []
    for run in runs:
        there = parts_there(result_path(_results(given, run), run, device), given.limit)
        missing = set(parts_of(run.recipe, given.parts)) - there
        if missing and run.weights() is None:
            print(f"{run.name}: no final weights here, left out", flush=True)
        elif missing:
            left.append(run)
    left.sort(key=lambda run: -len(parts_of(run.recipe, given.parts)))
    if given.jobs == 1:
        for run in left:
            results, threads = _results(given, run), torch.get_num_threads()
            measure_run(run, given.data, results, device, given.parts, given.limit, batch, threads)
        return 0
    jobs = []
    for run in left:
        words = ["--measure-only", "--data", given.data, "--runs", run.recipe, "--seeds", str(run.seed), "--jobs", "1"]
        words += ["--device", device, "--batch", str(batch), "--limit", str(given.limit), "--work", str(given.work)]
        words += ["--results", str(_results(given, run)), *(["--parts", *given.parts] if given.parts else [])]
        words += ["--weights", str(given.weights)] if given.weights else []
        log = given.work / f"measured_{run.name}.log"
        jobs.append(Job(f"measured_{run.name}", [sys.executable, str(Path(__file__).resolve()), *words], log))
    return _work_through(given, jobs, lambda job: None)


def _work_through(given: argparse.Namespace, jobs: list[Job], finished: Callable[[Job], None]) -> int:
    threads = str(threads_for(min(given.jobs, max(1, len(jobs)))))
    environment = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), threads)
    with shared_gpu(given.mps and bool(jobs)) as sharing:
        queue = JobQueue(jobs, given.jobs, given.limit_s, given.tell_s, {**environment, **sharing})
        ended = queue.run(finished)
    good = sum(code == 0 for code in ended.values())
    queue.say(f"{good} of {len(jobs)} done; the same command goes on with the others")
    return 0 if good == len(jobs) else 75


def _refuse_without_start(run: Run, planned: list[Run]) -> None:
    """A run that starts from another's weights needs them, or that run beside it."""
    first = needed_by(run.recipe)
    if first is None:
        return
    start = Run(first, run.seed, run.work, run.kept)
    if start.weights() is None and start.name not in {each.name for each in planned}:
        raise SystemExit(f"{run.name} starts from {start.name}: needs --runs {first} beside it, or --weights FOLDER")


def _result(given: argparse.Namespace, run: Run) -> Path:
    return _results(given, run) / f"{run.name}.json"


def _results(given: argparse.Namespace, run: Run) -> Path:
    return given.results or RESULTS / run.collection


def _option(pair: str) -> list[str]:
    key, _, value = pair.partition("=")
    if not value:
        raise SystemExit(f"--override {pair}: needs key=value, e.g. optimizer.lr=2e-3")
    return [f"--{key}", value]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="CIFAR-10, or 'sample' with what makes it one: see the tests")
    parser.add_argument("--runs", nargs="+", required=True, metavar="GLOB", help="e.g. 'a_*' 'shipped/*'")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--limit-s", type=float, default=0, help="seconds, after which all save and stop; 0 for none")
    parser.add_argument("--tell-s", type=float, default=20, help="seconds between two lines of progress")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--mps", action="store_true", help="let the processes share the GPU by CUDA's MPS")
    parser.add_argument(
        "--override", nargs="+", default=[], metavar="KEY=VALUE", help="of all runs, told in the results"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "tables", help="folder of all runs, to go on from")
    parser.add_argument("--results", type=Path, help="folder; results/ and that of the recipe if not given")
    parser.add_argument("--keep-weights", type=Path, help="folder for the final weights, float16, one file each")
    parser.add_argument(
        "--weights", type=Path, help="folder of weights that were kept before, to start from or measure"
    )
    parser.add_argument("--measure-only", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), help="what to measure; all by default")
    parser.add_argument("--device", default="auto", help="to measure on")
    parser.add_argument("--batch", type=int, default=0, help="to measure with")
    parser.add_argument("--limit", type=int, default=0, help="test images to measure, for a trial; 0 for all")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
