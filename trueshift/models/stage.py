"""Parts that the families share: perceptron, block, stage."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ..layers.linear import Linear, cast_together
from ..ops.geometry.grid import Tokens


class Mlp(nn.Module):
    """Two linear layers with a nonlinearity between and dropout after both, on each token, under timm's names.

    Shift law: the output moves with the tokens.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        out_dim: int | None = None,
        act_layer: Callable[[], nn.Module] = nn.GELU,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden)
        self.act = act_layer()
        self.fc2 = Linear(hidden, out_dim or dim)
        self.drop = drop

    def forward(self, x: Float[Tensor, "*any C"]) -> Float[Tensor, "*any D"]:
        """Expand, activate, contract."""
        drop = self.drop if self.training else 0.0
        x = self.act(self.fc1(x))
        if not drop:
            return self.fc2(x)
        return F.dropout(self.fc2(F.dropout(x, drop)), drop)


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and with a skip."""

    def __init__(self, dim: int, attn: nn.Module, mlp: Mlp, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attn
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = mlp
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B *tokens C"], *more: Any) -> Float[Tensor, "B *tokens C"]:
        """Mix tokens, then channels; ``more`` is for the attention."""
        x = x + self.drop_path1(self.attn(self.norm1(x), *more))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class Stage(nn.Module):
    """Blocks, and the modules before them, which bring the tokens onto their grid.

    Shift law: ``place(stage(S t)) == S place(stage(t))``.
    """

    def __init__(self, blocks: Iterable[nn.Module], **before: nn.Module) -> None:
        super().__init__()
        self.grad_checkpointing = False
        for name, module in before.items():
            self.add_module(name, module)
        self.blocks = nn.Sequential(*blocks)

    def forward(self, tokens: Tokens) -> Tokens:
        """Tokens on a coarser grid, where the stage merges or pools."""
        return self.run_blocks(tokens)

    def run_blocks(self, x: Any, *more: Any) -> Any:
        """All blocks in turn, each with ``more`` as further arguments."""
        learning = torch.is_grad_enabled() or torch.compiler.is_compiling()
        checkpointing = self.grad_checkpointing and self.training
        with nullcontext() if learning else cast_together(self.blocks):
            for block in self.blocks:
                x = _checkpointed(block, x, *more) if checkpointing else block(x, *more)
        return x


def _checkpointed(block: nn.Module, *inputs: Any) -> Any:
    """Compute activations again in the backward pass, without a second update of running statistics."""
    if torch.compiler.is_compiling():  # recomputes in a graph of its own
        return checkpoint(block, *inputs, use_reentrant=False)
    contexts = nullcontext(), statistics_at_rest(block)
    return checkpoint(block, *inputs, use_reentrant=False, context_fn=lambda: contexts)


@contextmanager
def statistics_at_rest(module: nn.Module) -> Iterator[None]:
    """Within: batch norms update copies of their running statistics."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    kept = [(norm, name, buffer) for norm in norms for name, buffer in norm.named_buffers(recurse=False)]
    for norm, name, buffer in kept:
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, name, buffer in kept:
            setattr(norm, name, buffer)


def init_linear(module: nn.Module) -> None:
    """The usual initialisation of a transformer: small truncated normal weights, zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
