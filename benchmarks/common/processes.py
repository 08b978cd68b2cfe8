"""Processes, a few at a time; when time is over they get SIGTERM, so that each can save its state."""

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

SAVING_S = 60  # for a process to end after SIGTERM


class Job(NamedTuple):
    """One process."""

    name: str
    command: list[str]
    log: Path


@contextmanager
def stop_after(seconds: float) -> Iterator[threading.Event]:
    """Set after some seconds (0: never), by SIGTERM or by Ctrl-C."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    timer = threading.Timer(seconds or threading.TIMEOUT_MAX, stop.set)
    timer.daemon = True
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def run_jobs(
    jobs: list[Job],
    at_once: int,
    stop: threading.Event,
    finished: Callable[[Job], None],
    environment: Mapping[str, str] | None = None,
) -> int:
    """How many succeeded, ``finished`` included, which is called for each in this thread."""

    def run(job: Job) -> int | None:
        if stop.is_set():
            return None
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            process = subprocess.Popen(job.command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        while process.poll() is None and not stop.wait(0.1):
            pass
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(SAVING_S)
            process.kill()  # does nothing to one that has ended
        return process.wait()

    good = 0
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        running = {pool.submit(run, job): job for job in jobs}
        for future in as_completed(running):
            job, code = running[future], future.result()
            how = "not begun" if code is None else f"exit code {code}, see {job.log}"
            if code == 0:
                try:
                    finished(job)
                    how, good = "done", good + 1
                except Exception as error:  # whatever it is, it must not end the others
                    how = f"done, but {type(error).__name__}: {error}"
            print(f"{job.name}: {how}", flush=True)
    return good
