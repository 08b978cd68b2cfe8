"""Trainings in processes of their own, a few at a time; when time is over they get SIGTERM, so that each saves."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from graphlib import TopologicalSorter
from pathlib import Path
from types import MappingProxyType

from benchmarks.common.record import ROOT
from trueshift.train import parse_arguments
from trueshift.train.preemption import PREEMPTED, StopRequest

SAVING_S = 60  # for a process to end after SIGTERM
OWN = {"--seed", "--data.path", "--output"}
Jobs = dict[str, list[str]]  # commands by name


def threads_for(jobs: int) -> int:
    """For each of some processes at a time."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, jobs))


def training(own: Sequence[str], more: Sequence[str]) -> list[str]:
    """The command of a training, from options of its own and further ones for all, which are checked here."""
    if taken := OWN & {word.partition("=")[0] for word in more}:
        raise SystemExit(f"{' '.join(taken)}: every run has its own; --help lists the options for that")
    try:
        parse_arguments([*own, *more])
    except ValueError as error:
        raise SystemExit(str(error)) from error
    return [sys.executable, "-m", "trueshift", "train", *own, *more]


def run_jobs(
    jobs: Jobs,
    folder: Path,
    at_once: int,
    limit_s: float,
    finished: Callable[[str], None],
    after: Mapping[str, Set[str]] = MappingProxyType({}),
) -> int:
    """Run jobs, each when those it comes ``after`` are done, until ``limit_s`` (0: no limit), SIGTERM or Ctrl-C.

    ``finished`` is called for each that succeeded, in this thread. Logs are ``folder/NAME.log``. Returns 0 if all did.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + (limit_s or float("inf"))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads_for(min(at_once, len(jobs)))))}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with StopRequest() as stop, ThreadPoolExecutor(max(1, at_once)) as pool:

        def run(name: str) -> int | None:
            """The exit code, None if it was not begun."""
            if stop.signal or time.monotonic() > end:
                return None
            with (folder / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(jobs[name], stdout=log, stderr=subprocess.STDOUT, env=environment)
            while process.poll() is None and not stop.signal and time.monotonic() < end:
                time.sleep(0.1)
            process.terminate()  # does nothing to one that has ended
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAVING_S)
            process.kill()
            return process.wait()

        order = TopologicalSorter({name: after.get(name, set()) & jobs.keys() for name in jobs})
        order.prepare()
        running: dict[Future[int | None], str] = {}
        left, good = list(jobs), 0
        while True:
            running |= {pool.submit(run, name): name for name in order.get_ready()}
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, code = running.pop(future), future.result()
                left.remove(name)
                how = "not begun" if code is None else f"exit code {code}, see {folder / name}.log"
                if code == 0:
                    try:
                        finished(name)
                        how = "done"
                        order.done(name)
                        good += 1
                    except Exception as error:  # whatever it is, it must not end the others
                        how = f"done, but {type(error).__name__}: {error}"
                print(f"{name}: {how}", flush=True)
    for name in left:
        print(f"{name}: not begun, since what it comes after is not done")
    print(f"{good} of {len(jobs)} done; the same command resumes the others")
    return 0 if good == len(jobs) else PREEMPTED
