"""Processes, a few at a time, within a time limit: told to stop when it is over, so that each can save what it has."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_LOOK_S = 0.2
_SAVING_S = 60  # for a process that was told to stop


@dataclass(frozen=True)
class Job:
    """One process.

    Args:
        name: of the job.
        command: what is started.
        log: where what it says is written.
        after: the job that must have ended well before this one begins, if it is among those of the queue.
        told: how far it is, in a few words.
    """

    name: str
    command: list[str]
    log: Path
    after: str | None = None
    told: Callable[[], str] = lambda: ""


class JobQueue:
    """Starts jobs in the order given, as soon as there is room for them.

    Args:
        at_once: how many may run.
        limit_s: seconds from now on, after which all are told to stop and none is started; 0 for no limit.
        tell_s: seconds between two lines that say how far all are.
        environment: variables for all of them.
    """

    def __init__(
        self,
        jobs: list[Job],
        at_once: int,
        limit_s: float = 0,
        tell_s: float = 20,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.waiting, self.at_once, self.tell_s = list(jobs), at_once, tell_s
        self.began = time.monotonic()
        self.deadline = self.began + limit_s if limit_s else float("inf")
        self.environment = {**os.environ, **(environment or {})}
        self.running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}
        self.ended: dict[str, int] = {}
        self.left_out: set[str] = set()
        self.stopping = False

    def run(self, finished: Callable[[Job], None]) -> dict[str, int]:
        """All of them, or as many as the time is enough for; the exit code of each that was started.

        Args:
            finished: called for each job that ended well.
        """
        before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        next_line = self.began + self.tell_s
        try:
            while self.running or (self.waiting and not self.stopping):
                self._take_in(finished)
                if time.monotonic() >= self.deadline:
                    self.stopping = True
                if self.stopping:
                    self._stop_all()
                    self._take_in(finished)
                    break
                self._start_some()
                if time.monotonic() >= next_line:
                    next_line += self.tell_s
                    self._tell()
                time.sleep(_LOOK_S)
        finally:
            self._stop_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.ended

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True

    def _start_some(self) -> None:
        for job in list(self.waiting):
            if len(self.running) >= self.at_once:
                return
            unmet = job.after in {other.name for other in self.waiting} or job.after in self.running
            if unmet:
                continue
            self.waiting.remove(job)
            if job.after in self.left_out or self.ended.get(job.after or "", 0):
                self.left_out.add(job.name)
                self.say(f"{job.name}: left out, since {job.after} did not end well")
                continue
            job.log.parent.mkdir(parents=True, exist_ok=True)
            with job.log.open("ab") as log:
                started = subprocess.Popen(job.command, stdout=log, stderr=subprocess.STDOUT, env=self.environment)
            self.running[job.name] = (job, started)

    def _take_in(self, finished: Callable[[Job], None]) -> None:
        for name, (job, process) in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[name]
            self.ended[name] = code
            if code == 0:
                try:
                    finished(job)
                except Exception as error:  # whatever it is, it must not end the others
                    self.ended[name] = code = 1
                    self.say(f"{name}: done, but {type(error).__name__}: {error}")
            last = f"; {_last_line(job.log)}" if code else ""
            self.say(f"{name}: {'done' if code == 0 else f'exit code {code}'}, {job.told()}{last}")

    def _stop_all(self) -> None:
        for _, process in self.running.values():
            if process.poll() is None:
                process.terminate()
        patience = time.monotonic() + _SAVING_S
        for _, process in self.running.values():
            try:
                process.wait(max(0.1, patience - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _tell(self) -> None:
        here = " | ".join(f"{name} {job.told()}" for name, (job, _) in self.running.items())
        self.say(f"{here or 'nothing runs'} | {len(self.waiting)} waiting")

    def say(self, text: str) -> None:
        """With the seconds since the beginning."""
        print(f"[{time.monotonic() - self.began:4.0f} s] {text}", flush=True)


def threads_for(at_once: int) -> int:
    """Of each process, so that all together use the processors once."""
    return max(1, len(os.sched_getaffinity(0)) // at_once)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][:200] if lines else "it said nothing"
