"""The protocols of ``trueshift eval`` on the final weights of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..data import Source
from ..eval.models.load import load_eval_model
from ..eval.options import EvalOptions
from ..eval.protocols.registry import ShiftProtocol, find_protocols
from ..eval.runner.evaluate import run_evaluation
from ..report.console import progress_bars
from .config import TrainConfig


def protocols_of(config: TrainConfig) -> list[ShiftProtocol]:
    """The protocols of a configuration; those of the other task are refused before training."""
    dense = config.task == "segmentation"
    found = find_protocols(config.evaluate.protocols)
    if wrong := [protocol.name for protocol in found if protocol.dense != dense]:
        needed = "those for pixels, e.g. ade20k" if dense else "those for whole images, e.g. circular"
        raise ValueError(f"evaluate.protocols {', '.join(wrong)}: {config.task} needs {needed}")
    return found


def evaluate_final(
    config: TrainConfig, protocols: list[ShiftProtocol], data: Source, device: torch.device, step: int, console: Console
) -> dict[str, Any]:
    """Results on the final weights as they were written, in float32 as in the paper."""
    subject = load_eval_model(str(Path(config.output) / "final"), EvalOptions(device=str(device)))
    subject = replace(subject, name=config.model.name, weights=f"trained, {step} steps")
    settings = EvalOptions(
        batch_size=config.evaluate.batch_size, seed=config.seed, device=str(device), workers=config.data.workers
    )
    with progress_bars(console) as progress:
        return run_evaluation(subject, data, protocols, settings, progress=progress)
