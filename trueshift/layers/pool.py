"""Pooling of queries, keys and values by strided convolutions: maps that belong together take one phase."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..criteria import Candidates, Criterion, FixedOffset
from ..ops.geometry.grid import TokenGrid
from ..ops.geometry.polyphase import polyphase
from ..ops.geometry.shift import Pair, circular_take
from ..ops.nn.autocast import network_precision
from ..ops.nn.depthwise import depthwise, depthwise_energy, depthwise_sequences, finish, plain_depthwise
from ..ops.nn.max_pool import max_pool as largest
from ..ops.selection.choose import Choice, values_on_grid


class PoolCandidates(Candidates):
    """The poolings of several maps at each phase, all at the same one. The choice sees all maps."""

    def __init__(
        self,
        maps: Sequence[Float[Tensor, "B H W C"]],
        convs: Sequence[nn.Conv2d],
        stride: Pair,
        padding: Pair,
        grid: TokenGrid,
    ) -> None:
        super().__init__(maps[0], stride, grid)
        self.maps, self.padding = maps, padding
        self.weights, self.groups = [conv.weight for conv in convs], [conv.groups for conv in convs]
        self._pooled: list[Tensor] | None = None

    def tie_breaker(self) -> Tensor:
        """All maps together."""
        return torch.cat(list(self.maps), 3)

    def features(self) -> Float[Tensor, "B H W D"]:
        """All maps, pooled at stride 1."""
        return torch.cat(self._pooled_everywhere(), 3)

    def position_energy(self) -> Float[Tensor, "parts B H W"]:
        """Squares of the features at each position, of each map after an anchor."""
        energy = self.fused_energy() if self.anchored else super().position_energy()
        if energy is not None:
            return energy
        return torch.stack([self.arithmetic.power_sum(pooled, 2) for pooled in self._pooled_everywhere()])

    def fused_energy(self) -> Float[Tensor, "parts B H W"] | None:
        """Of all maps together."""
        return depthwise_energy(self.maps, self.weights, self.padding)

    def dense(self) -> Float[Tensor, "B H W D"]:
        """The same features, differentiable."""
        pairs = zip(self.maps, self.weights, strict=True)
        return torch.cat([depthwise(x, weight, (1, 1), self.padding) for x, weight in pairs], 3)

    def taken(self, choice: Choice) -> list[Tensor] | None:
        """The maps pooled on the chosen grid, if scoring has already made them as the layer would."""
        x = self.maps[0]
        plain = self.anchored and x.dtype == network_precision(x) == torch.float32 and choice.weights is None
        learning = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*self.maps, *self.weights))
        if self._pooled is None or not plain or learning:
            return None
        return [circular_take(pooled, choice.offset, self.stride) for pooled in self._pooled]

    def _pooled_everywhere(self) -> list[Tensor]:
        if self._pooled is None and self.anchored:
            first = self.maps[0].float()  # maps that are one and the same stay so
            maps = [first if x is self.maps[0] else x.float() for x in self.maps]
            with torch.no_grad():
                self._pooled = plain_depthwise(maps, [weight.float() for weight in self.weights], (1, 1), self.padding)
        elif self._pooled is None:
            self._pooled = list(map(self._exactly_pooled, self.maps, self.weights, self.groups))
        return self._pooled

    def _exactly_pooled(self, values: Tensor, weight: Tensor, groups: int) -> Tensor:
        """One map; a convolution that is narrower than the tokens serves each head in turn."""
        heads = values.unflatten(3, (-1, groups)).permute(0, 3, 1, 2, 4).flatten(0, 1)
        pooled = self.arithmetic.conv(heads, weight, self.padding, groups)
        return pooled.unflatten(0, (values.shape[0], -1)).permute(0, 2, 3, 1, 4).flatten(3)


def pool_sequences(
    maps: Sequence[Float[Tensor, "B H W C"]],
    convs: Sequence[nn.Conv2d],
    criterion: Criterion,
    stride: Pair,
    padding: Pair,
    grid: TokenGrid,
    mode: str = "circular",
    norms: Sequence[nn.Module] | None = None,
    prefix: Float[Tensor, "B n C"] | None = None,
) -> tuple[list[Tensor], Choice | None]:
    """Pool all maps on the one grid that ``criterion`` chooses.

    Shift law: every pooled map moves with the input, all by the same number of tokens.

    Args:
        convs: depthwise ones without bias, one for each map.
        grid: on which the maps lie.
        norms: what each pooled map passes, after the choice: a BatchNorm of channels or a LayerNorm of each head's.
        prefix: tokens to put in front of each sequence.

    Returns:
        the pooled maps as sequences ``[B, n + h w, C]``, and the choice; None at stride 1, where there is none.
    """
    weights = [conv.weight for conv in convs]
    if any(conv.bias is not None for conv in convs):
        raise ValueError("a pooling convolution with a bias: needs one without")

    def at(offset: Tensor | None) -> list[Tensor]:
        return depthwise_sequences(maps, weights, stride, padding, offset, mode, norms, prefix)

    def mixed(values: Tensor, weight: Tensor, choice: Choice) -> Tensor:
        return values_on_grid(
            choice,
            lambda: depthwise(values, weight, stride, padding, choice.offset, mode),
            lambda: polyphase(depthwise(values, weight, (1, 1), padding, None, mode), stride),
        )

    if stride == (1, 1):
        return at(None), None
    candidates = PoolCandidates(maps, convs, stride, padding, grid)
    choice = criterion.choose(candidates)
    if choice.weights is not None:
        together = [mixed(values, weight, choice) for values, weight in zip(maps, weights, strict=True)]
        return finish(together, norms, prefix), choice
    taken = candidates.taken(choice) if mode == "circular" else None
    if taken is not None:
        return finish(taken, norms, prefix), choice
    unmoved = type(criterion) is FixedOffset and all(
        start % step == 0 for start, step in zip(criterion.offset, stride, strict=True)
    )
    return at(None if unmoved else choice.offset), choice


def max_pool(
    values: Float[Tensor, "B H W C"], choice: Choice, stride: Pair, mode: str = "circular"
) -> Float[Tensor, "B h w C"]:
    """Largest value in a neighbourhood of one token more than the stride, on a grid that was chosen already.

    Shift law: the pooled map moves with the input, as the chosen grid does.
    """
    kernel, before = (stride[0] + 1, stride[1] + 1), ((stride[0] + 1) // 2, (stride[1] + 1) // 2)
    return values_on_grid(
        choice,
        lambda: largest(values, kernel, stride, before, choice.offset, mode),
        lambda: polyphase(largest(values, kernel, (1, 1), before, None, mode), stride),
    )
