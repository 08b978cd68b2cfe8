# mypy: allow-untyped-defs, allow-incomplete-defs
"""The norm behind a convolution of tokens, applied on the way to memory."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from .neighbours import pick, three

NO_NORM, BY_CHANNEL, BY_HEAD = 0, 1, 2  # none; of batches, in evaluation; of layers, over the channels of a head


def kind_of_norm(norms: Sequence[Tensor], maps: int) -> int:
    """By how many constants each map has."""
    return {0: NO_NORM, 2: BY_HEAD, 4: BY_CHANNEL}[len(norms) // maps]


def groups_of_three(norms: Sequence[Tensor], count: int) -> list[Tensor | None]:
    """Gains, shifts, means and variances, three of each; what is not there is not read."""
    groups = [three(norms[first : first + count]) for first in range(0, len(norms), count)]
    return [tensor for group in groups for tensor in group] + [None] * (12 - 3 * len(groups))


@triton.jit
def norm_constants(
    which, g0, g1, g2, b0, b1, b2, m0, m1, m2, v0, v1, v2, channel, lane, held, eps,
    MAPS: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What the channels of a map are multiplied by, what is taken away before and added after."""
    factor = tl.full((BLOCK,), 1.0, tl.float32)
    centre = tl.zeros((BLOCK,), tl.float32)
    start = tl.zeros((BLOCK,), tl.float32)
    if NORM > 0:
        at = channel if NORM == 1 else lane
        gain, shift = pick(which, g0, g1, g2, MAPS), pick(which, b0, b1, b2, MAPS)
        factor = tl.load(gain + at, mask=held, other=0.0).to(tl.float32)
        start = tl.load(shift + at, mask=held, other=0.0).to(tl.float32)
    if NORM == 1:
        mean, variance = pick(which, m0, m1, m2, MAPS), pick(which, v0, v1, v2, MAPS)
        factor *= tl.rsqrt(tl.load(variance + channel, mask=held, other=1.0).to(tl.float32) + eps)
        centre = tl.load(mean + channel, mask=held, other=0.0).to(tl.float32)
    return factor, centre, start


@triton.jit
def normed(total, factor, centre, start, held, eps, D: tl.constexpr, NORM: tl.constexpr):
    """Positions by channels; of a head, all channels are here."""
    if NORM == 1:
        total = (total - centre[None, :]) * factor[None, :] + start[None, :]
    if NORM == 2:
        centred = tl.where(held[None, :], total - (tl.sum(total, 1) / D)[:, None], 0.0)
        spread = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)
        total = centred * spread[:, None] * factor[None, :] + start[None, :]
    return total
