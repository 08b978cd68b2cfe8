"""Choose one of s x s grids, so that the choice moves with the content: the primitive under every adaptive layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ..geometry.polyphase import coset_max, coset_sum
from ..geometry.shift import Pair, pair
from ..kernels import kernel_for, usable
from .exact import can_ask
from .plain import plain_sum, plain_window_mean

ROUNDING = 2.0**-20  # several times what float32 sums differ by between kernels


@dataclass(frozen=True)
class Choice:
    """Which grid was chosen for each image, and how clearly.

    Attributes:
        offset: row and column at which the chosen grid starts, from 0 on.
        scores: by which it was chosen, the later ones for where the earlier ones tie; none where it was given.
        weights: how much each of the s x s grids counts, while a criterion is being learned; None when one was chosen.
        hard: with weights: the value is that of the chosen grid and only the gradient is that of the mixture.
        spot: the pixel on which later layers start their grids too; None where each chooses.

    >>> choice = trueshift.AdaptiveTokenize(3, 16, 4, anchor=False).choose(torch.zeros(1, 3, 8, 8))
    >>> choice.tied  # all grids of a flat image are alike
    tensor([True])
    """

    offset: Int64[Tensor, "B 2"]
    scores: tuple[Float[Tensor, "B sh sw"], ...] = ()
    weights: Float[Tensor, "B sh sw"] | None = None
    hard: bool = True
    spot: Int64[Tensor, "B 2"] | None = None

    @property
    def tied(self) -> Bool[Tensor, " B"]:
        """Scores tied exactly: the content key decided; of content that repeats or is anchored, the first won."""
        if not self.scores:
            return torch.zeros_like(self.offset[:, 0], dtype=torch.bool)
        return _leading([score.flatten(1) for score in self.scores]).sum(1) > 1

    @property
    def margin(self) -> Float[Tensor, " B"]:
        """Smallest relative change of a score that changes the choice: 0 for ties, infinity with nothing to choose."""
        if not self.scores:
            return torch.full_like(self.offset[:, 0], float("inf"), dtype=torch.float64)
        flat = [score.flatten(1) for score in self.scores]
        winner = _leading(flat).to(torch.uint8).argmax(1)[:, None]  # of those that tie, any: the gap between them is 0
        gap = torch.zeros_like(flat[0])  # to each grid, in the first score in which the two differ
        for score in reversed(flat):
            won = score.gather(1, winner)
            relative = (won - score) / won.abs().clamp_min(torch.finfo(score.dtype).tiny)
            gap = torch.where(score == won, gap, relative)
        return gap.scatter(1, winner, float("inf")).amin(1)


Keys = Callable[[Bool[Tensor, " B"] | None], Int64[Tensor, "B H W"]]


def _few_grids(scores: Sequence[Tensor], keys: Keys | None) -> bool:
    few = scores[0].shape[1:].numel() <= 4096
    return keys is not None and few and all(usable(score, (torch.float64,)) for score in scores)


@kernel_for(_few_grids)
def choose(scores: Sequence[Float[Tensor, "B sh sw"]], keys: Keys | None) -> Choice:
    """The grid with the largest scores, compared one after the other; exact ties go by the content.

    Shift law: the chosen grid is the same grid of the content whatever the shift, if the scores are exact
    (:mod:`.exact`): ``offset(S^t x) == offset(x) - t`` modulo s, up to a period of the content itself.

    Args:
        scores: one or more per grid, the later ones for where the earlier ones tie.
        keys: gives the content keys of all positions (:func:`.origin_keys`), of all images or of those in a mask.
            Called only if scores tie, or where finding out would cost a synchronisation. None for anchored content:
            the first of those that tie is then always the same. There, scores closer than rounding count as tied, so
            that another batch size, device or runtime chooses the same.
    """
    columns = scores[0].shape[2]
    flat = [score.flatten(1) for score in scores]
    leading = _leading(flat, ROUNDING if keys is None else 0.0)
    if keys is not None and (not can_ask(leading) or bool((leading.sum(1) > 1).any())):
        leading = _keep_largest(leading, coset_max(keys(None), pair(scores[0].shape[1:])).flatten(1), -1)
    winner = leading.to(torch.uint8).argmax(1)  # of content that repeats, the first; any gives the same
    offset = torch.stack([winner // columns, winner % columns], 1)
    return Choice(offset, tuple(scores))


@kernel_for(lambda scores, stride: usable(scores))
def choose_by_sum(scores: Float[Tensor, "parts B H W"], stride: Pair) -> Choice:
    """The grid with the largest sum of position scores, which are themselves in parts to be added up.

    For content that is the same whatever the shift: of sums that are equal up to rounding, the first.
    """
    return choose((coset_sum(scores.sum(0), stride, plain_sum),), None)


@kernel_for(lambda norms, window: usable(norms))
def choose_by_windows(norms: Float[Tensor, "B H W"], window: Pair) -> Choice:
    """The offset at which windows have the largest sum of squared mean norms: A-WSA's G, after an anchor.

    Along an axis that one window spans all offsets tie; there the tokens' own energy chooses.
    """
    scores = [plain_window_mean(norms, window)]
    if window[0] == norms.shape[1] or window[1] == norms.shape[2]:
        scores.append(norms)
    return choose([coset_sum(score.square(), window, plain_sum) for score in scores], None)


def drop_grids(choice: Choice, stride: Pair, rate: float) -> Choice:
    """Replace the choice of each image, with probability ``rate``, by one of the s x s grids drawn uniformly.

    For training: a network that always sees the best grid of an image sees the image in one way only. Where a criterion
    is being learned, a drawn grid carries all the weight, so its score gets no gradient from that image.
    """
    drawn = torch.rand(len(choice.offset), 3, dtype=torch.float32, device=choice.offset.device)
    dropped = drawn[:, :1] < rate
    grid = torch.stack([drawn[:, 1] * stride[0], drawn[:, 2] * stride[1]], 1).long()
    weights = choice.weights
    if weights is not None:
        alone = torch.zeros_like(weights).flatten(1).scatter(1, grid[:, :1] * stride[1] + grid[:, 1:], 1.0)
        weights = torch.where(dropped[..., None], alone.view_as(weights), weights)
    return Choice(torch.where(dropped, grid, choice.offset), choice.scores, weights, choice.hard)


def _leading(flat: Sequence[Tensor], slack: float = 0.0) -> Tensor:
    """Which grids have the largest scores, up to a relative slack, compared one after the other."""
    leading = torch.ones_like(flat[0], dtype=torch.bool)
    for score in flat:
        leading = _keep_largest(leading, score, float("-inf"), slack)
    return leading


def _keep_largest(leading: Tensor, score: Tensor, nothing: float, slack: float = 0.0) -> Tensor:
    best = score.masked_fill(~leading, nothing).amax(1, keepdim=True)
    return leading & (score >= (best - best.abs() * slack if slack else best))


torch.export.register_dataclass(Choice, serialized_type_name="trueshift.Choice")


def values_on_grid(choice: Choice, chosen: Callable[[], Tensor], phases: Callable[[], Tensor]) -> Tensor:
    """The values on the chosen grid; while a criterion is learned, with the gradient of the weighted mixture.

    Args:
        chosen: gives the values on the chosen grid, ``[B, h, w, D]``.
        phases: gives those on all grids, ``[B, sh, sw, h, w, D]``.
    """
    if choice.weights is None:
        return chosen()
    values = phases()[:, : choice.weights.shape[1]]  # of fixed rows the first phase alone
    mixture = torch.einsum("bmn,bmnhwd->bhwd", choice.weights.to(values.dtype), values)
    return chosen().detach() + (mixture - mixture.detach()) if choice.hard else mixture
