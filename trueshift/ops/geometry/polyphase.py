"""The s x s polyphase components of a grid: the cosets among which every adaptive layer chooses one."""

from collections.abc import Callable

from jaxtyping import Float, Shaped
from torch import Tensor

from ..selection.exact import exact_sum
from .shift import Pair, pair


def polyphase(x: Shaped[Tensor, "B H W *rest"], stride: int | Pair) -> Shaped[Tensor, "B sh sw h w *rest"]:
    """Split into components: ``polyphase(x, s)[:, m, n] == x[:, m::s, n::s]``.

    Shift law: a shift of ``x`` by 1 moves component ``m + 1`` to ``m``; what leaves at the end returns at the other
    side, shifted by one.
    """
    rows, columns = pair(stride)
    for size, step in ((x.shape[1], rows), (x.shape[2], columns)):
        if size % step:
            raise ValueError(f"size {size}: needs a multiple of the stride {step}")
    split = x.unflatten(2, (-1, columns)).unflatten(1, (-1, rows))  # B h sh w sw *
    return split.permute(0, 2, 4, 1, 3, *range(5, split.dim()))


def coset_sum(
    scores: Float[Tensor, "B H W"], stride: int | Pair, total: Callable[..., Tensor] = exact_sum
) -> Float[Tensor, "B sh sw"]:
    """Sum of the scores over each polyphase component, exactly by default.

    Shift law: a shift of the scores permutes the sums, bit for bit.
    """
    return total(polyphase(scores, stride), (3, 4))


def coset_max(scores: Shaped[Tensor, "B H W"], stride: int | Pair) -> Shaped[Tensor, "B sh sw"]:
    """Largest score of each polyphase component."""
    return polyphase(scores, stride).amax((3, 4))
