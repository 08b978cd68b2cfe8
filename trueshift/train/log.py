"""The log of a run: lines of JSON, TensorBoard and Weights & Biases if asked for."""

import json
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..utils.files import write_whole
from .config import LogConfig


class RunLog:
    """Appends to ``log.jsonl``; entries behind the step a run goes on from are those of steps that are made again.

    Args:
        step: that the run goes on from.
    """

    def __init__(self, folder: Path, config: LogConfig, settings: dict[str, Any], step: int = 0) -> None:
        self.path = folder / "log.jsonl"
        self._forget_after(step)
        self._wandb = _wandb(folder, config.wandb, settings) if config.wandb else None
        self._tensorboard = _tensorboard(folder, step) if config.tensorboard else None
        self._file = self.path.open("a")

    def _forget_after(self, step: int) -> None:
        if self.path.exists():
            kept = [line for line in self.path.read_text().splitlines() if _step_of(line) <= step]
            write_whole(self.path, "".join(f"{line}\n" for line in kept))

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One entry; a killed process does not lose it."""
        # JSON has no infinity, which a gradient in fp16 may be
        plain = {
            key: None if isinstance(value, float) and not isfinite(value) else value for key, value in values.items()
        }
        self._file.write(json.dumps({"kind": kind, "step": step, **plain}, allow_nan=False) + "\n")
        self._file.flush()
        numbers = {f"{kind}/{key}": value for key, value in values.items() if isinstance(value, int | float)}
        if self._tensorboard is not None:
            for key, value in numbers.items():
                self._tensorboard.add_scalar(key, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a line that a killed process did not finish
        return float("inf")


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "TensorBoard is not installed: pip install tensorboard, or --log.tensorboard false"
        ) from error
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)


def _wandb(folder: Path, project: str, settings: dict[str, Any]) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("Weights & Biases is not installed: pip install wandb, or leave out --log.wandb") from error
    kept = folder / "wandb_id.txt"  # the same run goes on; folders of other data sets have the same name
    if not kept.exists():
        write_whole(kept, uuid4().hex)
    name = "/".join(folder.resolve().parts[-2:])
    return wandb.init(project=project, id=kept.read_text(), name=name, dir=str(folder), config=settings, resume="allow")
