"""What stages have in common: blocks, and how these are made."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..layers.linear import cast_together


class Stage(nn.Module):
    """Blocks on one grid, with what brings the tokens onto it before them."""

    blocks: nn.Sequential

    def __init__(self) -> None:
        super().__init__()
        self.grad_checkpointing = False

    def run_blocks(self, x: Any, *more: Any) -> Any:
        """All blocks, one after the other, each told ``more``."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._run_blocks(x, *more)
        with cast_together(self.blocks):
            return self._run_blocks(x, *more)

    def _run_blocks(self, x: Any, *more: Any) -> Any:
        checkpointing = self.grad_checkpointing and self.training
        for block in self.blocks:
            x = checkpoint(block, x, *more, use_reentrant=False) if checkpointing else block(x, *more)
        return x


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
