"""From tokens to logits."""

from torch import Tensor, nn


class Head(nn.Module):
    """Pool the tokens and classify."""

    def __init__(self, dim: int, num_classes: int, pool: str, drop: float, has_prefix: bool = False) -> None:
        super().__init__()
        self.dim, self.has_prefix = dim, has_prefix
        self.drop = nn.Dropout(drop)
        self.reset(num_classes, pool)

    def reset(self, num_classes: int, pool: str | None = None) -> None:
        """A new last layer, and another pooling if given."""
        if pool is not None:
            allowed = ("avg", "token", "") if self.has_prefix else ("avg", "")
            if pool not in allowed:
                raise ValueError(f"global_pool {pool!r}: needs one of {allowed}")
            self.pool = pool
        self.fc = nn.Linear(self.dim, num_classes) if num_classes else nn.Identity()
        if num_classes:
            nn.init.trunc_normal_(self.fc.weight, std=0.02)  # type: ignore[arg-type]
            nn.init.zeros_(self.fc.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of ``[B, h, w, C]`` or ``[B, N, C]``; the pooled features with ``pre_logits``."""
        if self.pool == "token":
            x = x[:, 0]
        elif self.pool == "avg":
            x = x.flatten(1, -2)[:, int(self.has_prefix) :].mean(1)
        x = self.drop(x)
        return x if pre_logits else self.fc(x)
