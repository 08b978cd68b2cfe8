"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0


class RunProgress:
    """Steps done, images per second and the time left.

    Args:
        total: steps of the whole run.
        done: steps made before.
    """

    def __init__(self, console: Console, total: int, done: int = 0) -> None:
        self.console, self.total = console, total
        self._bar: Progress | None = None
        if console.is_terminal and not console.quiet:
            columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            shown = [TextColumn(column) if isinstance(column, str) else column for column in columns]
            self._bar = Progress(*shown, TextColumn("{task.fields[told]}"), console=console, transient=True)
            self._task = self._bar.add_task("training", total=total, completed=done, told="")
        self._next_line = 0.0

    def __enter__(self) -> "RunProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, done: int) -> None:
        """Another step is made."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def tell(
        self, done: int, epoch: int, loss: float, lr: float, images_per_second: float, seconds_left: float
    ) -> None:
        """The numbers of the last steps."""
        told = f"loss {loss:.3f}, lr {lr:.2e}, {images_per_second:,.0f} images/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, told=told, description=f"epoch {epoch + 1}")
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            left = time.strftime("%H:%M:%S", time.gmtime(seconds_left))
            self.console.print(
                f"epoch {epoch + 1}, step {done} of {self.total}: {told}, {left} left", highlight=False, soft_wrap=True
            )

    def line(self, text: str) -> None:
        """Something that stays on the screen."""
        self.console.print(text, highlight=False, soft_wrap=True)
