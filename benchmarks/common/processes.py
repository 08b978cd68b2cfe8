"""Trainings in processes of their own, a few at a time; when time is over they get SIGTERM, so that each saves."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.common.record import ROOT

SAVING_S = 60  # for a process to end after SIGTERM
STOPPED = 75  # as `trueshift train` ends where it can be resumed
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
    count, good, stop = sum(map(len, waves)), 0, threading.Event()
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads_for(min(at_once, count))))}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with _stopped(stop, limit_s):
        for wave in waves:
            with ThreadPoolExecutor(max(1, at_once)) as pool:
                running = {
                    pool.submit(_run, [*TRAIN, *words], folder / f"{name}.log", stop, environment): name
                    for name, words in wave.items()
                }
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
    return 0 if good == count else STOPPED


@contextmanager
def _stopped(stop: threading.Event, seconds: float) -> Iterator[None]:
    """Set the event after some seconds (0: never), by SIGTERM or by Ctrl-C."""
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    timer = threading.Timer(seconds or threading.TIMEOUT_MAX, stop.set)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(command: list[str], log: Path, stop: threading.Event, environment: dict[str, str]) -> int | None:
    """The exit code, None if it was not begun."""
    if stop.is_set():
        return None
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    while process.poll() is None and not stop.wait(0.1):
        pass
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(SAVING_S)
        process.kill()  # does nothing to one that has ended
    return process.wait()
