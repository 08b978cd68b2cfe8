"""What stages have in common: blocks, and how these are made."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ..layers.linear import cast_together


class Stage(nn.Module):
    """Blocks on one grid, with what brings the tokens onto it before them."""

    blocks: nn.Sequential

    def __init__(self) -> None:
        super().__init__()
        self.grad_checkpointing = False

    def run_blocks(self, x: Any, *more: Any) -> Any:
        """All blocks, one after the other, each with ``more`` as further arguments."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._run_blocks(x, *more)
        with cast_together(self.blocks):
            return self._run_blocks(x, *more)

    def _run_blocks(self, x: Any, *more: Any) -> Any:
        checkpointing = self.grad_checkpointing and self.training
        for block in self.blocks:
            x = _checkpointed(block, x, *more) if checkpointing else block(x, *more)
        return x


def _checkpointed(block: nn.Module, *inputs: Any) -> Any:
    """A block whose activations are computed again in the backward pass, where its statistics stay at rest."""
    if torch.compiler.is_compiling():  # what computes again is the compiler's own graph
        return checkpoint(block, *inputs, use_reentrant=False)
    return checkpoint(
        block, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), statistics_at_rest(block))
    )


@contextmanager
def statistics_at_rest(module: nn.Module) -> Iterator[None]:
    """Within: batch norms that learn move copies of their running statistics."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    kept = [(norm, name, buffer) for norm in norms for name, buffer in norm.named_buffers(recurse=False)]
    for norm, name, buffer in kept:
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, name, buffer in kept:
            setattr(norm, name, buffer)


def stage_drop_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Stochastic depth that grows from 0 at the first block to ``rate`` at the last, by stage."""
    last = max(sum(depths) - 1, 1)
    rates = iter([rate * number / last for number in range(sum(depths))])
    return [[next(rates) for _ in range(depth)] for depth in depths]


def init_linear(module: nn.Module) -> None:
    """The usual start of a transformer: small truncated normal weights, zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
