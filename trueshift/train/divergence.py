"""Losses as they come: looked at without making a GPU wait, and a run that has gone astray is stopped."""

from collections import deque
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Diverged(RuntimeError):
    """The loss is not a number any more.

    Args:
        report: where it began, as data.
    """

    def __init__(self, message: str, report: dict[str, Any]) -> None:
        super().__init__(message)
        self.report = report


@dataclass
class _Noted:
    step: int
    values: Tensor  # loss and norm of the gradient, on their way to the CPU
    arrived: torch.cuda.Event | None


@dataclass
class LossWatch:
    """Loss and gradient norm of each step, in order."""

    waiting: deque[_Noted] = field(default_factory=deque)
    recent: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=20))
    unread: list[dict[str, float]] = field(default_factory=list)

    def note(self, step: int, loss: Float[Tensor, ""], grad_norm: Float[Tensor, ""]) -> None:
        """Send the values of a step on their way."""
        values = torch.stack([loss.float(), grad_norm.float()])
        if not values.is_cuda:
            self.waiting.append(_Noted(step, values, None))
            return
        host = torch.empty(2, pin_memory=True)
        host.copy_(values, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self.waiting.append(_Noted(step, host, arrived))

    def look(self, wait: bool = False) -> int | None:
        """Take in what has arrived, or all; the first step whose loss is not finite, if there is one."""
        while self.waiting:
            noted = self.waiting[0]
            if noted.arrived is not None:
                if not wait and not noted.arrived.query():
                    break
                noted.arrived.synchronize()
            self.waiting.popleft()
            loss, norm = noted.values.tolist()
            entry = {"step": noted.step, "loss": loss, "grad_norm": norm}
            self.recent.append(entry)
            self.unread.append(entry)
            if not isfinite(loss):
                return noted.step
        return None

    def taken(self) -> list[dict[str, float]]:
        """What came in since this was last asked."""
        taken, self.unread = self.unread, []
        return taken


def first_not_finite(model: nn.Module, images: Float[Tensor, "B C H W"] | None) -> str:
    """In words, where numbers first stop being finite: in the input, a weight, or the output of a layer."""
    if images is not None and not bool(images.isfinite().all()):
        return "the images hold values that are not finite"
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.is_floating_point() and not bool(value.isfinite().all()):
            return f"the weight {name} is not finite"
    if images is None:
        return "the weights are finite"
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            # of Tokens, their values; a Tensor has a method of that name
            tensor = output if isinstance(output, Tensor) else getattr(output, "values", None)
            if not found and isinstance(tensor, Tensor) and not bool(tensor.isfinite().all()):
                found.append(name)

        return hook

    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    hooks = [module.register_forward_hook(look(name)) for name, module in leaves]
    try:
        with torch.no_grad():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return f"the output of {found[0]} is not finite" if found else "every layer is finite, so it is the loss itself"
