"""Losses, checked without making a GPU wait, and a report of where a run diverged."""

from collections import deque
from contextlib import ExitStack
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..utils.async_copy import AsyncCopy


class Diverged(RuntimeError):
    """The loss is not finite any more; ``report`` says where it began, and is in ``file`` too."""

    def __init__(self, report: dict[str, Any], file: Path, warmup: str = "warmup_epochs") -> None:
        super().__init__(
            f"the loss of step {report['step']} (epoch {report['epoch'] + 1}, learning rate {report['lr']:.2e}) is not "
            f"finite: {report['where']}. {file} has the losses before and the images. Checkpoints from before are "
            f"kept: a lower --optimizer.lr, a longer --schedule.{warmup} or --optimizer.clip_grad usually helps"
        )
        self.report = report


class LossWatch:
    """Loss and gradient norm of each step, in order."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, AsyncCopy]] = deque()
        self.recent: deque[dict[str, float]] = deque(maxlen=20)
        self.unread: list[dict[str, float]] = []

    def note(self, step: int, loss: Float[Tensor, ""], grad_norm: Float[Tensor, ""]) -> None:
        """Start copying the values of a step to the host."""
        self.waiting.append((step, AsyncCopy(torch.stack([loss.float(), grad_norm.float()]))))

    def look(self, wait: bool = False) -> int | None:
        """Take in what has arrived, or all; returns the first step whose loss is not finite, if any."""
        while self.waiting and (wait or self.waiting[0][1].ready):
            step, values = self.waiting.popleft()
            loss, norm = values.numpy().tolist()
            entry = {"step": step, "loss": loss, "grad_norm": norm}
            self.recent.append(entry)
            self.unread.append(entry)
            if not isfinite(loss):
                return step
        return None

    def taken(self) -> list[dict[str, float]]:
        """Entries since the last call."""
        taken, self.unread = self.unread, []
        return taken


def first_not_finite(model: nn.Module, images: Float[Tensor, "B C H W"] | None) -> str:
    """Where numbers first stop being finite, in words: in the input, a weight, or the output of a layer."""
    if images is not None and not bool(images.isfinite().all()):
        return "the images hold values that are not finite"
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.is_floating_point() and not bool(value.isfinite().all()):
            return f"the weight {name} is not finite"
    if images is None:
        return "the weights are finite"
    found: list[str] = []

    def look(module: nn.Module, given: Any, output: Any) -> None:
        # Tokens hold their tensor as values; on a Tensor that is a method
        tensor = output if isinstance(output, Tensor) else getattr(output, "values", None)
        if not found and isinstance(tensor, Tensor) and not bool(tensor.isfinite().all()):
            found.append(names[module])

    names = {module: name for name, module in model.named_modules() if not list(module.children())}
    with ExitStack() as hooks, torch.no_grad():
        for module in names:
            hooks.enter_context(module.register_forward_hook(look))
        model(images)
    return f"the output of {found[0]} is not finite" if found else "every layer is finite, so it is the loss itself"
