"""Processes, a few at a time, within a time limit; then they get SIGTERM, so that each can save its state."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.2
_SAVING_S = 60  # for a process to end after SIGTERM


@dataclass(frozen=True)
class Job:
    """One process; ``after`` names the job that must succeed before it, ``progress`` says how far it is."""

    name: str
    command: list[str]
    log: Path
    after: str | None = None
    progress: Callable[[], str] = lambda: ""


class JobQueue:
    """Starts jobs in order, ``at_once`` at a time; stops all of them after ``limit_s`` seconds (0: no limit)."""

    def __init__(
        self,
        jobs: list[Job],
        at_once: int,
        limit_s: float = 0,
        report_s: float = 20,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.waiting, self.at_once, self.report_s = {job.name: job for job in jobs}, at_once, report_s
        self.began = time.monotonic()
        self.deadline = self.began + limit_s if limit_s else float("inf")
        self.environment = {**os.environ, **(environment or {})}
        self.running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}
        self.ended: dict[str, int] = {}
        self.failed: set[str] = set()

    def run(self, finished: Callable[[Job], None]) -> dict[str, int]:
        """The exit code of each job that was started; ``finished`` is called for each that succeeded."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, lambda *_: setattr(self, "deadline", 0.0)) for number in numbers]
        next_report = self.began + self.report_s
        try:
            while (self.running or self.waiting) and time.monotonic() < self.deadline:
                self._start_some()
                if time.monotonic() >= next_report:
                    next_report += self.report_s
                    here = " | ".join(f"{name} {job.progress()}" for name, (job, _) in self.running.items())
                    self.say(f"{here or 'nothing runs'} | {len(self.waiting)} waiting")
                time.sleep(_POLL_S)
                self._collect(finished)
        finally:
            self._stop_all()
            self._collect(finished)
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
        return self.ended

    def _start_some(self) -> None:
        for job in list(self.waiting.values()):
            if len(self.running) >= self.at_once:
                return
            if job.after in self.waiting or job.after in self.running:
                continue
            del self.waiting[job.name]
            if job.after in self.failed:
                self.failed.add(job.name)
                self.say(f"{job.name}: left out, since {job.after} failed")
                continue
            job.log.parent.mkdir(parents=True, exist_ok=True)
            with job.log.open("ab") as log:
                started = subprocess.Popen(job.command, stdout=log, stderr=subprocess.STDOUT, env=self.environment)
            self.running[job.name] = (job, started)

    def _collect(self, finished: Callable[[Job], None]) -> None:
        over = {
            name: (job, code) for name, (job, process) in self.running.items() if (code := process.poll()) is not None
        }
        for name, (job, code) in over.items():
            del self.running[name]
            lines = job.log.read_text(errors="replace").split("\n")
            how = "done" if code == 0 else f"exit code {code}; {next(filter(None, reversed(lines)), 'no output')[:200]}"
            if code == 0:
                try:
                    finished(job)
                except Exception as error:  # whatever it is, it must not end the others
                    code, how = 1, f"done, but {type(error).__name__}: {error}"
            self.ended[name] = code
            if code:
                self.failed.add(name)
            self.say(f"{name}: {how}, {job.progress()}")

    def _stop_all(self) -> None:
        processes = [process for _, process in self.running.values()]
        for process in processes:
            process.terminate()
        patience = time.monotonic() + _SAVING_S
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, patience - time.monotonic()))
            process.kill()  # does nothing to one that has ended
            process.wait()

    def say(self, text: str) -> None:
        """With the seconds since the beginning."""
        print(f"[{time.monotonic() - self.began:4.0f} s] {text}", flush=True)
