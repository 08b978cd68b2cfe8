"""Stop requests: a signal is noted, the step is finished, and everything is saved."""

import signal
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist

PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: stopped, and everything is saved
INTERRUPTED = 130
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Notes SIGTERM and Ctrl-C. A second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        if heard.item():
            self.signal = int(heard.item())
        return bool(heard.item())
