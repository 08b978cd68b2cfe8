"""Pooling of queries, keys and values by strided convolutions: maps that belong together take one phase."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..criteria import Candidates, Criterion, follow
from ..ops.polyphase import polyphase
from ..ops.select import Choice
from ..ops.shift import Pair, circular_pad, circular_shift
from .conv import conv_on_circle


class PoolCandidates(Candidates):
    """The poolings of several maps at each phase, all at the same one. The choice sees all maps."""

    def __init__(
        self,
        maps: Sequence[Float[Tensor, "B H W C"]],
        convs: Sequence[nn.Conv2d],
        stride: Pair,
        padding: Pair,
        anchored: bool = False,
    ) -> None:
        super().__init__(maps[0], stride, anchored)
        self.maps, self.convs, self.padding = maps, convs, padding

    def keys(self) -> Int64[Tensor, "B H W"]:
        """Of all maps together."""
        self.content = torch.cat(list(self.maps), 3)
        return super().keys()

    def features(self) -> Float[Tensor, "B H W D"]:
        """All maps, pooled at stride 1."""
        pooled = []
        for values, conv in zip(self.maps, self.convs, strict=True):
            heads = _fold_heads(values, conv)
            features = self.arithmetic.conv(heads, conv.weight, self.padding, conv.groups)
            pooled.append(_join_heads(features, values.shape[0]))
        return torch.cat(pooled, 3)

    def dense(self) -> Float[Tensor, "B H W D"]:
        """The same, differentiable."""
        return torch.cat([pool(*pair, (1, 1), self.padding) for pair in zip(self.maps, self.convs, strict=True)], 3)


def pool(
    values: Float[Tensor, "B H W C"], conv: nn.Conv2d, stride: Pair, padding: Pair, mode: str = "circular"
) -> Float[Tensor, "B h w C"]:
    """Strided convolution of tokens; one that is narrower than the tokens serves each head in turn."""
    heads = _fold_heads(values, conv).permute(0, 3, 1, 2)
    return _join_heads(conv_on_circle(heads, conv, stride, padding, mode).permute(0, 2, 3, 1), values.shape[0])


def _fold_heads(values: Float[Tensor, "B H W C"], conv: nn.Conv2d) -> Float[Tensor, "N H W D"]:
    if values.shape[3] == conv.in_channels:
        return values
    return values.unflatten(3, (-1, conv.in_channels)).permute(0, 3, 1, 2, 4).flatten(0, 1)


def _join_heads(heads: Tensor, images: int) -> Tensor:
    if heads.shape[0] == images:
        return heads
    return heads.unflatten(0, (images, -1)).permute(0, 2, 3, 1, 4).flatten(3)


def pool_together(
    maps: Sequence[Float[Tensor, "B H W C"]],
    convs: Sequence[nn.Conv2d],
    criterion: Criterion,
    stride: Pair,
    padding: Pair,
    mode: str = "circular",
    anchored: bool = False,
) -> tuple[list[Tensor], Choice | None]:
    """Pool all maps on the one grid that ``criterion`` chooses.

    Shift law: every pooled map moves with the input, all by the same number of tokens.

    Args:
        anchored: of the grid on which the maps stand.

    Returns:
        the pooled maps, and the choice; None at stride 1, where there is none.
    """
    if stride == (1, 1):
        return [pool(values, conv, stride, padding, mode) for values, conv in zip(maps, convs, strict=True)], None
    choice = criterion(PoolCandidates(maps, convs, stride, padding, anchored))

    def on_choice(values: Tensor, conv: nn.Conv2d) -> Tensor:
        return follow(
            choice,
            lambda: pool(circular_shift(values, choice.offset), conv, stride, padding, mode),
            lambda: polyphase(pool(values, conv, (1, 1), padding, mode), stride),
        )

    return [on_choice(values, conv) for values, conv in zip(maps, convs, strict=True)], choice


def max_pool(
    values: Float[Tensor, "B H W C"], choice: Choice, stride: Pair, mode: str = "circular"
) -> Float[Tensor, "B h w C"]:
    """Largest value in a neighbourhood of one token more than the stride, on a grid that was chosen already."""

    def at(values: Tensor, step: Pair) -> Tensor:
        kernel, reach = (stride[0] + 1, stride[1] + 1), ((stride[0] + 1) // 2, (stride[1] + 1) // 2)
        rows, columns = ((before, extent - 1 - before) for before, extent in zip(reach, kernel, strict=True))
        if mode == "circular":
            image = circular_pad(values, rows, columns).permute(0, 3, 1, 2)
        else:
            image = F.pad(values.permute(0, 3, 1, 2), (*columns, *rows), value=float("-inf"))
        return F.max_pool2d(image, kernel, step).permute(0, 2, 3, 1)

    return follow(
        choice,
        lambda: at(circular_shift(values, choice.offset), stride),
        lambda: polyphase(at(values, (1, 1)), stride),
    )
