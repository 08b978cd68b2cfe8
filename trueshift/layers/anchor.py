"""Which token of the chosen grid becomes the first: with it, every later step sees literally the same tensor.

A choice of phase makes two shifted images hold the same tokens, up to a roll. That is equality on paper. In floating
point a kernel may round a token differently at another place. Rolling the tokens to a frame that moves with the content
removes the last difference: what follows is bit-identical on any kernel, and cannot disagree about later choices.
"""

import torch
from jaxtyping import Bool, Int64
from torch import Tensor, nn

from ..criteria import Candidates
from ..ops.geometry.grid import Tokens
from ..ops.geometry.shift import circular_shift, circular_take
from ..ops.geometry.windows import token_norm
from ..ops.nn.autocast import without_autocast
from ..ops.selection.choose import Choice, choose
from ..ops.selection.content_hash import origin_keys
from ..ops.selection.plain import plain_norm
from ..ops.selection.seam import seam_scores, start_on_seam


def anchor_on_seam(choice: Choice, candidates: Candidates) -> Choice:
    """Start the chosen grid at the token nearest the wrap seam of the image, usually the photograph's own corner."""
    if choice.weights is not None:  # while a criterion is learned, grids are mixed and none has a first token
        return choice
    with torch.no_grad(), without_autocast(candidates.content):
        rows, columns = seam_scores(candidates.content, candidates.pixels)
        offset = start_on_seam(rows, columns, choice.offset, candidates.stride, candidates.keys)
        return Choice(offset, choice.scores)


def anchor_on_norm(choice: Choice, candidates: Candidates) -> Choice:
    """Start the chosen grid at its token of the largest norm."""
    if choice.weights is not None:
        return choice
    with torch.no_grad(), without_autocast(candidates.content):
        norms = circular_take(token_norm(candidates.content), choice.offset, candidates.stride)

        def keys(needed: Bool[Tensor, " B"] | None) -> Int64[Tensor, "B h w"]:
            return circular_take(candidates.keys(needed), choice.offset, candidates.stride)

        token = choose((norms,), keys).offset
        offset = torch.stack([choice.offset[:, i] + candidates.stride[i] * token[:, i] for i in (0, 1)], 1)
        return Choice(offset, choice.scores)


class Anchor(nn.Module):
    """Roll the tokens so that the one with the largest norm is the first.

    Shift law: the values are bit-identical for every shift of the input; where they stand is in the grid.

    Tokens that are anchored already need no exact scores (:mod:`trueshift.ops.selection.plain`).
    """

    def choose(self, tokens: Tokens) -> Choice:
        """Which token becomes the first."""
        values = tokens.values
        with torch.no_grad(), without_autocast(values):
            if tokens.grid.anchored:
                return choose((plain_norm(values),), None)
            return choose((token_norm(values),), lambda needed: origin_keys(values, needed))

    def forward(self, tokens: Tokens) -> Tokens:
        """Roll values and grid together."""
        offset = self.choose(tokens).offset
        return Tokens(circular_shift(tokens.values, offset), tokens.grid.advance(offset, anchored=True), tokens.prefix)
