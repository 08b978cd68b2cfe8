"""Stop requests: a signal is noted, the step is finished, and everything is saved."""

import signal
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: stopped, and everything is saved
INTERRUPTED = 130


class StopRequest:
    """Notes SIGTERM and Ctrl-C. A second Ctrl-C ends at once."""

    signal: int | None = None

    def __enter__(self) -> "StopRequest":
        self._before: Any = {each: signal.signal(each, self._note) for each in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def exit_code(self) -> int:
        """Of the process."""
        return INTERRUPTED if self.signal == signal.SIGINT else PREEMPTED

    def heard_by_any(self) -> bool:
        """Whether any process was asked to stop, so that all stop at the same step."""
        if not dist.is_initialized():
            return self.signal is not None
        heard = torch.tensor([self.signal or 0])
        dist.all_reduce(heard, dist.ReduceOp.MAX)  # between CPUs: no GPU waits for it
        self.signal = int(heard.item()) or self.signal
        return bool(heard.item())
