"""The perceptron of a transformer's block."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .linear import Linear


class Mlp(nn.Module):
    """Two linear layers with a nonlinearity between, on each token, under timm's names.

    Shift law: the output moves with the tokens.

    Args:
        dim, hidden, out_dim: channels before, between and after; as many after as before if not given.
        drop: rate of the dropout behind both layers.
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
        """Expand, bend, contract."""
        x = self.act(self.fc1(x))
        if not (self.drop and self.training):
            return self.fc2(x)
        return F.dropout(self.fc2(F.dropout(x, self.drop)), self.drop)
