"""What a run reports: progress on the screen, and a log as lines of JSON, in TensorBoard and in Weights & Biases."""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from accelerate.tracking import GeneralTracker, TensorBoardTracker, WandBTracker
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..utils.files import finite, write_whole
from .config import LogConfig

_SECONDS_BETWEEN_LINES = 10.0


class RunLog:
    """Appends to ``log.jsonl``, and passes numbers on to accelerate's trackers; entries after ``step`` are dropped.

    accelerate has no tracker for JSON lines, nor one that drops the entries of steps that are made again.
    """

    def __init__(self, folder: Path, config: LogConfig, settings: dict[str, Any], step: int = 0) -> None:
        self.path, self.trackers = folder / "log.jsonl", list[GeneralTracker]()
        if self.path.exists():
            kept = [line for line in self.path.read_text().splitlines() if _step_of(line) <= step]
            write_whole(self.path, "".join(f"{line}\n" for line in kept))
        if config.wandb:
            run = folder / "wandb_id.txt"  # a resumed run keeps its id
            if not run.exists():
                write_whole(run, uuid4().hex)
            name = "/".join(folder.resolve().parts[-2:])
            given = {"id": run.read_text(), "name": name, "dir": str(folder), "config": settings, "resume": "allow"}
            self._start(WandBTracker(config.wandb, **given), "pip install wandb, or leave out --log.wandb")
        if config.tensorboard:
            board = TensorBoardTracker("tensorboard", folder, purge_step=step + 1 if step else None)
            self._start(board, "pip install tensorboard, or --log.tensorboard false")
        self._file = self.path.open("a")

    def _start(self, tracker: GeneralTracker, remedy: str) -> None:
        try:
            tracker.start()
        except ImportError as error:
            raise ImportError(f"{tracker.name} is not installed: {remedy}") from error
        self.trackers.append(tracker)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Add an entry; it is on disk at once."""
        self._file.write(json.dumps(finite({"kind": kind, "step": step, **values}), allow_nan=False) + "\n")
        self._file.flush()
        numbers = {f"{kind}/{key}": value for key, value in values.items() if isinstance(value, int | float)}
        for tracker in self.trackers:
            tracker.log(numbers, step=step)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()
        for tracker in self.trackers:
            tracker.finish()


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a line that a killed process did not finish
        return float("inf")


class RunReport:
    """A bar on a terminal, a line every ten seconds elsewhere; and the log, which only the first process has."""

    def __init__(self, console: Console, log: RunLog | None, total: int, done: int = 0) -> None:
        self.console, self.log, self.total = console, log, total
        self._reported: set[tuple[str, str]] = set()
        self._next_line = 0.0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        more = TextColumn("{task.fields[numbers]}")
        shown = console.is_terminal and not console.quiet
        self._bar = Progress(*columns, more, console=console, transient=True, disable=not shown)
        self._task = self._bar.add_task("training", total=total, completed=done, numbers="")

    def __enter__(self) -> "RunReport":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
        if self.log is not None:
            self.log.close()

    def step(self, done: int) -> None:
        """Count the steps done."""
        self._bar.update(self._task, completed=done)

    def progress(self, epoch: int, loss: float, lr: float, images_per_second: float, seconds_left: float) -> None:
        """Show the numbers of the last steps."""
        numbers = f"loss {loss:.3f}, lr {lr:.2e}, {images_per_second:,.0f} images/s"
        self._bar.update(self._task, numbers=numbers, description=f"epoch {epoch + 1}")
        if self._bar.disable and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            left = timedelta(seconds=round(seconds_left))
            step = int(self._bar.tasks[0].completed)
            self.line(f"epoch {epoch + 1}, step {step} of {self.total}: {numbers}, {left} left")

    def line(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Add an entry to the log, if this process has one."""
        if self.log is not None:
            self.log.write(kind, step, values)

    def unreadable(self, step: int, samples: set[str], instead: str) -> None:
        """Report each unreadable sample once, and clear the set."""
        new = sorted(sample for sample in samples if (sample, instead) not in self._reported)
        for sample in new:
            self.line(f"[yellow]unreadable, {instead}: {escape(sample)}[/]")
            if self.log is None:
                print(f"unreadable, {instead}: {sample}", file=sys.stderr, flush=True)
        if new:
            self.write("unreadable", step, {"images": new, "instead": instead})
        self._reported.update((sample, instead) for sample in new)
        samples.clear()
