"""Trainings in processes of their own, a few at a time; when time is over they get SIGTERM, so that each saves."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from benchmarks.common.record import ROOT
from trueshift.train.preemption import PREEMPTED, StopRequest

SAVING_S = 60  # for a process to end after SIGTERM
TRAIN = (sys.executable, "-m", "trueshift", "train")
Jobs = dict[str, list[str]]  # the words of each command by its name


def threads_for(jobs: int) -> int:
    """For each of some processes at a time."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, jobs))


def run_jobs(waves: list[Jobs], folder: Path, at_once: int, limit_s: float, finished: Callable[[str], None]) -> int:
    """Run all of a wave before the next, until ``limit_s`` (0: no limit), SIGTERM or Ctrl-C; 0 if all succeeded.

    ``finished`` is called for each that did, in this thread. Logs are ``folder/NAME.log``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count, good, end = sum(map(len, waves)), 0, time.monotonic() + (limit_s or float("inf"))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads_for(min(at_once, count))))}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with StopRequest() as stop:

        def run(name: str, words: list[str]) -> int | None:
            """The exit code, None if it was not begun."""
            if stop.signal or time.monotonic() > end:
                return None
            with (folder / f"{name}.log").open("ab") as log:
                process = subprocess.Popen([*TRAIN, *words], stdout=log, stderr=subprocess.STDOUT, env=environment)
            while process.poll() is None and not stop.signal and time.monotonic() < end:
                time.sleep(0.1)
            process.terminate()  # does nothing to one that has ended
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAVING_S)
            process.kill()
            return process.wait()

        for wave in waves:
            with ThreadPoolExecutor(max(1, at_once)) as pool:
                running = {pool.submit(run, name, words): name for name, words in wave.items()}
                for future in as_completed(running):
                    name, code = running[future], future.result()
                    how = "not begun" if code is None else f"exit code {code}, see {folder / name}.log"
                    if code == 0:
                        try:
                            finished(name)
                            how, good = "done", good + 1
                        except Exception as error:  # whatever it is, it must not end the others
                            how = f"done, but {type(error).__name__}: {error}"
                    print(f"{name}: {how}", flush=True)
    print(f"{good} of {count} done; the same command resumes the others")
    return 0 if good == count else PREEMPTED
