r"""How one of s x s grids is chosen. Baseline, ablations and adaptive network differ in nothing but their criteria.

A criterion sees :class:`Candidates` and returns a :class:`.Choice`. To write your own, score
single positions, and let the base class add up the scores of each grid exactly and break ties by content::

    class Busiest(Criterion):
        def position_scores(self, features):  # [B, H, W, D], float64
            return exact_sum(features.abs(), (3,))  # any function of one position's features
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from .ops.geometry.grid import TokenGrid
from .ops.geometry.polyphase import coset_max, coset_sum, polyphase
from .ops.geometry.shift import Pair, circular_shift, modulo, pair
from .ops.nn.autocast import without_autocast
from .ops.selection.choose import Choice, choose, choose_by_sum, drop_grids
from .ops.selection.content_hash import first_row, origin_keys
from .ops.selection.exact import exact_linear
from .ops.selection.plain import EXACT, PLAIN
from .ops.selection.quantised_image import Pixels
from .ops.selection.seam import seam_scores, start_on_seam
from .ops.selection.spot import SMALLEST, spot_strength


class Candidates(ABC):
    """The s x s grids between which an adaptive layer chooses, and what they are scored by.

    Args:
        content: the values as given, ``[B, H, W, C]``, which also break ties.
        stride: s, for rows and for columns.
        grid: on which the content lies. Of an anchored one the content is the same whatever the shift: scores need not
            be exact, and the first of those that tie wins. Of one with fixed rows, grids start in the first row.

    >>> pixels = trueshift.Tokens.of_image(torch.rand(1, 3, 8, 8))
    >>> grids = trueshift.AdaptiveTokenize(3, 16, 4).grids(trueshift.AdaptiveTokenize(3, 16, 4), pixels)
    >>> grids.energy().shape  # one score for each of the 4 x 4 grids
    torch.Size([1, 4, 4])
    """

    def __init__(self, content: Float[Tensor, "B H W C"], stride: Pair, grid: TokenGrid) -> None:
        self.content, self.stride, self.grid = content, stride, grid
        self.anchored, self.fixed_rows = grid.anchored, grid.fixed_rows
        self.phases = (1, stride[1]) if grid.fixed_rows else stride  # how many grids there are, along rows and columns
        self.arithmetic = PLAIN if grid.anchored else EXACT
        self.pixels = Pixels(content)
        self._keys: Tensor | None = None
        self._first: Tensor | None = None

    @property
    def in_one_step(self) -> bool:
        """Whether scores may be added up and compared by one kernel, which chooses along both axes."""
        return self.anchored and not self.fixed_rows

    @abstractmethod
    def features(self) -> Float[Tensor, "B H W D"]:
        """The token whose patch starts at each position, by ``self.arithmetic``."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "B H W D"]:
        """The same in the layer's own arithmetic, differentiable: for a criterion that is being learned."""

    def learnable(self) -> Float[Tensor, "B H W D"]:
        """What a learned criterion looks at in evaluation: :meth:`dense`, by ``self.arithmetic``."""
        return self.features()

    def position_energy(self) -> Float[Tensor, "parts B H W"]:
        """Squared norm of the features of each position, in parts to be added up."""
        energy = self.fused_energy() if self.anchored else None
        return self.arithmetic.power_sum(self.features(), 2)[None] if energy is None else energy

    def fused_energy(self) -> Float[Tensor, "parts B H W"] | None:
        """:meth:`position_energy` of anchored content without its features, where a layer knows how."""
        return None

    def energy(self) -> Float[Tensor, "B sh sw"]:
        """Sum of squared features over each grid."""
        return self.total(self.position_energy().sum(0))

    def choose_by_energy(self) -> Choice:
        """The grid of the largest energy, for anchored content: sums and choice in one step."""
        return choose_by_sum(self.position_energy(), self.stride)

    def total(self, scores: Float[Tensor, "B H W"]) -> Float[Tensor, "B sh sw"]:
        """Sum of the scores of all positions of each grid."""
        return coset_sum(_checked(scores, self.content.shape[:3]), self.stride, self.arithmetic.sum)

    def further_scores(self) -> tuple[Float[Tensor, "B sh sw"], ...]:
        """Scores for where those of the criterion cannot differ by construction."""
        return ()

    def first(self) -> Int64[Tensor, "B 2"]:
        """Where the content starts: the first pixel after the border of a photograph, in a frame the first of all."""
        if self._first is None:
            self._first = torch.zeros_like(self.grid.origin) if self.anchored else self.find_first((1, 1))
        return self._first

    def find_first(self, stride: Pair, offset: Int64[Tensor, "B 2"] | None = None) -> Int64[Tensor, "B 2"]:
        """The same of a grid of this stride, which starts at ``offset``."""
        rows, columns = self.border()
        rows = torch.zeros_like(rows[:, :1]) if self.fixed_rows else rows  # one row, in which every start lies
        offset = torch.zeros_like(self.grid.origin) if offset is None else offset
        return start_on_seam(rows, columns, offset, stride, self.keys)

    def border(self) -> tuple[Float64[Tensor, "B H"], Float64[Tensor, "B W"]]:
        """How much each row, and each column, looks like the first one of a photograph."""
        return seam_scores(self.content, self.pixels)

    def tie_breaker(self) -> Tensor:
        """The values whose keys break exact ties."""
        return self.content

    def keys(self, needed: Bool[Tensor, " B"] | None = None) -> Int64[Tensor, "B H W"]:
        """The content as seen from each position (of fixed rows, of the first), for exact ties: :func:`.origin_keys`.

        Those of all images are kept.
        """
        if needed is None and self._keys is not None:
            return self._keys
        keys = first_row(origin_keys(self.tie_breaker(), needed), self.fixed_rows)
        self._keys = keys if needed is None else self._keys
        return keys

    def choose(self, *scores: Float[Tensor, "B sh sw"]) -> Choice:
        """The grid with the largest scores, the later ones for where the earlier ones tie."""
        allowed = [_checked(score, (self.content.shape[0], *self.stride))[:, : self.phases[0]] for score in scores]
        return choose(allowed, None if self.anchored else self.keys)


def _checked(scores: Tensor, wanted: Sequence[int]) -> Tensor:
    if tuple(scores.shape) != tuple(wanted):
        raise ValueError(f"scores of shape {tuple(scores.shape)}: needs {tuple(wanted)}, one for each position or grid")
    return scores


class Criterion(nn.Module):
    """Choose the grid with the largest sum of position scores.

    Shift law: the chosen grid is the same grid of the content, whatever the shift.

    >>> from trueshift.ops.selection.exact import exact_sum
    >>> class Busiest(trueshift.Criterion):
    ...     def position_scores(self, features):
    ...         return exact_sum(features.abs(), (3,))
    >>> layer = trueshift.AdaptiveTokenize(3, 16, 4, criterion=Busiest())
    """

    adaptive = True  # the choice looks at the content
    grid_drop_rate = 0.0  # share of the images that get a random grid while training

    def choose(self, candidates: Candidates) -> Choice:
        """What a layer follows: :meth:`forward`, and random grids while training (see :func:`drop_grids`)."""
        choice = self(candidates)
        if not (self.training and self.adaptive and self.grid_drop_rate):
            return choice
        return drop_grids(choice, candidates.phases, self.grid_drop_rate)

    def forward(self, candidates: Candidates) -> Choice:
        """Score without gradient and in full precision, whatever surrounds the call, and choose."""
        with torch.no_grad(), without_autocast(candidates.content):
            at_once = self.choose_at_once(candidates) if candidates.in_one_step else None
            if at_once is not None:
                return at_once
            return candidates.choose(self.scores(candidates), *candidates.further_scores())

    def choose_at_once(self, candidates: Candidates) -> Choice | None:
        """Scores, their sums and the choice in one step, where a criterion knows how."""
        return None

    def scores(self, candidates: Candidates) -> Float[Tensor, "B sh sw"]:
        """One score per grid."""
        return candidates.total(self.position_scores(candidates.features()))

    def position_scores(self, features: Float[Tensor, "B H W D"]) -> Float[Tensor, "B H W"]:
        """One score per position, from its own features only. Sum channels with ``exact_sum``."""
        raise NotImplementedError(f"{type(self).__name__} needs position_scores, or its own scores or forward")

    def _scores_as(self, known: "type[Criterion]") -> bool:
        own = type(self)
        return own.scores is known.scores and own.position_scores is Criterion.position_scores


class MaxNorm(Criterion):
    r"""The grid whose tokens have the largest p-norm: the paper's criterion.

    .. math:: m^\star = \arg\max_m \sum_k \| T^{(m)}_k \|_p^p

    ``p = 2`` is the paper's choice and the fast one. Any other p needs the tokens of all grids, one pass of stride 1
    in float64; ``p = float("inf")`` compares the single largest values.

    >>> trueshift.create_model("a_swin_mini", criterion=trueshift.MaxNorm(4)).patch_embed.criterion
    MaxNorm(p=4)
    """

    def __init__(self, p: float = 2) -> None:
        super().__init__()
        if not p >= 1:
            raise ValueError(f"p = {p}: needs a norm, p >= 1")
        self.p = p

    def choose_at_once(self, candidates: Candidates) -> Choice | None:
        """By energy, unless a subclass scores in another way."""
        return candidates.choose_by_energy() if self.p == 2 and self._scores_as(MaxNorm) else None

    def scores(self, candidates: Candidates) -> Float[Tensor, "B sh sw"]:
        """The p-norm of each grid, to the power p (largest value for p = inf)."""
        if type(self).position_scores is not Criterion.position_scores:
            return super().scores(candidates)
        if self.p == 2:
            return candidates.energy()
        if self.p == float("inf"):
            return coset_max(candidates.features().abs().amax(3), candidates.stride)
        return candidates.total(candidates.arithmetic.power_sum(candidates.features(), self.p))

    def extra_repr(self) -> str:
        """Show p."""
        return f"p={self.p}"


class InputNorm(Criterion):
    r"""The grid at which the values have the largest norm *before* they are merged: cheaper, and not the paper's.

    .. math:: m^\star = \arg\max_m \sum_k \| x_{m + sk} \|_2^2

    One sum over the input, where :class:`MaxNorm` projects the patch at every position.

    >>> trueshift.create_model("a_swin_mini", criterion="input_norm").patch_embed.criterion
    InputNorm()
    """

    def choose_at_once(self, candidates: Candidates) -> Choice | None:
        """By the energy of the values, unless a subclass scores in another way."""
        if not self._scores_as(InputNorm):
            return None
        return choose_by_sum(candidates.arithmetic.power_sum(candidates.content, 2)[None], candidates.stride)

    def scores(self, candidates: Candidates) -> Float[Tensor, "B sh sw"]:
        """The energy of the values on each grid."""
        if type(self).position_scores is not Criterion.position_scores:
            return super().scores(candidates)
        content = candidates.content if candidates.anchored else candidates.content.to(torch.float64)
        return candidates.total(candidates.arithmetic.power_sum(content, 2))


class Spot(Criterion):
    """The grids that start on the strongest spot of the image: steady while a camera moves, and not the paper's.

    The first layer looks for a small spot that stands out from its surroundings, within the border of the photograph;
    in all later layers a patch or a window starts there, and nothing is scored. What enters or leaves the image
    changes the grids only if it is a stronger spot, or the spot itself (``docs/motion.md``).

    Shift law: the spot is at the same point of the content, whatever the shift, up to a period of the content itself.

    >>> trueshift.create_model("a_swin_mini", criterion="spot").layers[1].downsample.criterion
    Spot()
    """

    def choose(self, candidates: Candidates) -> Choice:
        """Random pixels in the layer that looks for the spot, while training."""
        choice = self(candidates)
        if choice.spot is None or not (self.training and self.grid_drop_rate):
            return choice
        rows, columns = candidates.content.shape[1:3]
        drawn = drop_grids(Choice(choice.spot), (1 if candidates.fixed_rows else rows, columns), self.grid_drop_rate)
        return self.start_at(candidates, drawn.offset)

    def forward(self, candidates: Candidates) -> Choice:
        """Follow the spot that a layer before has found, or look for it."""
        grid, content = candidates.grid, candidates.content
        if grid.spot is not None:
            return Choice(modulo(grid.token_at(grid.spot), candidates.phases))
        with torch.no_grad(), without_autocast(content):
            spot, reach = candidates.first(), SMALLEST[1] - 1
            if min(content.shape[1:3]) <= 2 * reach:  # too small for one
                return self.start_at(candidates, spot)
            levels = circular_shift(candidates.pixels.integers().values, spot)  # the same whatever the shift
            found = choose((spot_strength(levels.permute(0, 3, 1, 2), *SMALLEST),), None)
            return replace(self.start_at(candidates, spot + found.offset + reach), scores=found.scores)

    @staticmethod
    def start_at(candidates: Candidates, spot: Int64[Tensor, "B 2"]) -> Choice:
        """The grid on which a patch starts at this place, from its first one after the border on."""
        first, grid = candidates.first(), candidates.grid
        offset = first + modulo(spot - first, candidates.phases)
        return Choice(offset, spot=grid.advance(spot).origin)


class FixedOffset(Criterion):
    """Always the same grid: the ordinary network, which looks at nothing.

    >>> trueshift.create_model("a_swin_mini", criterion={"align": "fixed"}).layers[0].align.criterion
    FixedOffset(offset=(0, 0))
    """

    adaptive = False

    def __init__(self, offset: int | Pair = (0, 0)) -> None:
        super().__init__()
        self.offset = pair(offset)

    def forward(self, candidates: Candidates) -> Choice:
        """The fixed offset, modulo the stride, for every image."""
        x = candidates.content
        row, column = (at % step for at, step in zip(self.offset, candidates.phases, strict=True))
        rows = x.new_full((x.shape[0],), row, dtype=torch.int64)
        columns = x.new_full((x.shape[0],), column, dtype=torch.int64)
        return Choice(torch.stack([rows, columns], 1))

    def extra_repr(self) -> str:
        """Show the offset."""
        return f"offset={self.offset}"


class ScoringLinear(nn.Linear):
    """A layer by whose weights themselves grids are scored: of another name, so that dynamic quantization leaves it."""


class LearnedScore(Criterion):
    r"""A small network scores each token; the grid with the largest mean score is chosen (in the spirit of LPS).

    While training, the grids are weighted by a Gumbel softmax of their scores; ``mode="straight_through"`` computes
    with the heaviest grid alone and takes the gradient of the mixture, ``mode="soft"`` computes with the mixture. In
    evaluation the same network runs in exact arithmetic, and the choice is as exact as that of any other criterion.

    Attention windows are scored by their mean token.

    Args:
        dim: channels of the tokens to score.
        hidden: width of the scoring network.
        temperature: of the softmax; small means close to a hard choice.
        noise: whether to draw Gumbel noise while training.
        final_temperature: reached geometrically at the end of training, 0.01 in LPS; by default it stays. ``trueshift
            train`` keeps the buffer ``progress``, from 0 to 1; another loop has to.

    >>> layer = trueshift.AdaptiveTokenize(3, 16, 4, criterion=trueshift.LearnedScore(16))
    >>> layer.train().choose(torch.rand(2, 3, 8, 8)).weights.shape
    torch.Size([2, 4, 4])
    """

    progress: Float[Tensor, ""]  # a tensor, so that a compiled graph follows it

    def __init__(
        self,
        dim: int,
        hidden: int = 16,
        temperature: float = 1.0,
        mode: str = "straight_through",
        noise: bool = True,
        final_temperature: float | None = None,
    ) -> None:
        super().__init__()
        if mode not in ("straight_through", "soft"):
            raise ValueError(f"mode {mode!r}: needs 'straight_through' or 'soft'")
        for name, value in (("temperature", temperature), ("final_temperature", final_temperature)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} {value}: needs to be positive")
        self.hidden = ScoringLinear(dim, hidden)
        self.score = ScoringLinear(hidden, 1, bias=False)
        self.temperature, self.mode, self.noise = temperature, mode, noise
        self.final_temperature = temperature if final_temperature is None else final_temperature
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    def forward(self, candidates: Candidates) -> Choice:
        """Exact in evaluation; weights with a gradient in training."""
        if not self.training:
            return super().forward(candidates)
        tokens, network = candidates.dense(), (self.hidden.weight, self.hidden.bias, self.score.weight)
        # in float32 at least: grids differ by a thousandth at first, which half precision would round to ties
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        with without_autocast(tokens):
            weight, bias, score = (part.to(dtype) for part in network)
            scores = F.linear(F.linear(tokens.to(dtype), weight, bias).relu(), score).squeeze(3)
            logits = polyphase(scores, candidates.stride).mean((3, 4))
            logits = logits[:, : candidates.phases[0]].flatten(1)
            if self.noise:
                logits = logits - torch.empty_like(logits).exponential_().log()
            if self.final_temperature != self.temperature:
                logits = logits / (self.final_temperature / self.temperature) ** self.progress.float()
            weights = (logits / self.temperature).softmax(1)
        weights = weights.unflatten(1, candidates.phases)
        chosen = choose((weights.detach(),), None)
        return Choice(chosen.offset, chosen.scores, weights, self.mode != "soft")

    def scores(self, candidates: Candidates) -> Float[Tensor, "B sh sw"]:
        """One score per grid, of what was looked at in training."""
        return candidates.total(self.position_scores(candidates.learnable()))

    def position_scores(self, features: Float[Tensor, "B H W D"]) -> Float[Tensor, "B H W"]:
        """The same network in exact arithmetic."""
        bias = self.hidden.bias.detach().to(torch.float64)
        hidden = (exact_linear(features, self.hidden.weight) + bias).relu()
        return exact_linear(hidden, self.score.weight).squeeze(3)
