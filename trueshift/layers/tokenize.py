r"""A-token: cut the image into patches on a grid that its content chooses, and choose which token is the first.

.. math:: \text{A-token}(x) = X^{(m^\star)} E, \quad m^\star = \arg\max_{m < L} F(X^{(m)} E)

After the choice of a phase, two shifted images hold the same tokens up to a roll. In floating point that is not enough:
a kernel may round a token differently at another position. An anchor rolls the tokens to a frame that moves with the
content, so all that follows is bit-identical on any kernel.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..criteria import Candidates, Criterion, MaxNorm, Spot
from ..ops.geometry.grid import Tokens, displacements, mean_of_each
from ..ops.geometry.shift import Pair, circular_shift, fixes_rows, pair
from ..ops.geometry.windows import token_norm
from ..ops.nn.autocast import without_autocast
from ..ops.nn.conv import conv_tokens, project_patches
from ..ops.selection.choose import Choice, choose
from ..ops.selection.content_hash import first_row, origin_keys
from ..ops.selection.plain import plain_norm
from .checks import check_image
from .frame import FrameFinder
from .patches import PatchCandidates, PatchLayer, of_columns, strided_conv


class AdaptiveTokenize(PatchLayer):
    """Patch embedding on the grid chosen by ``criterion``.

    Shift law: ``place(layer(S x)) == S place(layer(x))``. With ``anchor``, the values themselves are bit-identical for
    every shift, and so is everything computed from them.

    The choice is made on the projection before the norm: after it all tokens have the same energy.

    Args:
        in_chans: channels of the image.
        embed_dim: channels of the tokens.
        patch_size: stride of the grid.
        kernel_size: of the projection, at least the patch size, which is the default.
        padding: how far the kernel reaches before the patch.
        norm_layer: makes a norm over the tokens' channels, ``nn.LayerNorm`` for example.
        criterion: :class:`~trueshift.criteria.MaxNorm` of p = 2 by default.
        anchor: also choose which token is the first, on the wrap seam of the image.
        closed: what follows sees the border of the frame.
        padding_mode: ``"circular"``; ``"zeros"`` is for the ordinary network and breaks the shift law.
        circular: ``"width"``: columns alone choose, go around and are anchored, here and in later layers, and the
            shift law is for shifts of columns; rows are those of the ordinary network.

    >>> tokenize, image = trueshift.AdaptiveTokenize(3, 16, 4), torch.rand(1, 3, 32, 32)
    >>> tokenize(image).values.shape
    torch.Size([1, 8, 8, 16])
    >>> torch.equal(tokenize(image).values, tokenize(image.roll(1, 3)).values)
    True
    """

    grids = PatchCandidates
    fixed_rows = False

    def __init__(
        self,
        in_chans: int = 3,
        embed_dim: int = 96,
        patch_size: int | Pair = 4,
        kernel_size: int | Pair | None = None,
        padding: int | Pair = 0,
        norm_layer: Callable[[int], nn.Module] | None = None,
        criterion: Criterion | None = None,
        anchor: bool = True,
        padding_mode: str = "circular",
        bias: bool = True,
        closed: bool = False,
        circular: str = "both",
    ) -> None:
        super().__init__()
        self.fixed_rows = fixes_rows(circular)
        padding_mode = "circular_width" if self.fixed_rows and padding_mode == "circular" else padding_mode
        self.dim, self.padding, self.pad_mode = in_chans, pair(padding), padding_mode
        self.factor = self.patch_size = pair(patch_size)
        kernel = self.factor if kernel_size is None else pair(kernel_size)
        self.proj = strided_conv(in_chans, embed_dim, kernel, self.factor, self.padding, padding_mode, bias=bias)
        self.norm = norm_layer(embed_dim) if norm_layer else nn.Identity()
        self.criterion = criterion or MaxNorm()
        self.anchor, self.closed = anchor, closed
        self.frame = FrameFinder() if anchor and (closed or isinstance(self.criterion, Spot)) else None

    def merge(
        self, values: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"] | None = None
    ) -> Float[Tensor, "B h w D"]:
        """The projection of pixels."""
        if start is None:
            return conv_tokens(values, self.proj, (1, 1), self.padding, self.pad_mode)
        image = values.permute(0, 3, 1, 2)
        return project_patches(image, self.proj, start, self.factor, self.padding, self.pad_mode)

    def nearby(self, grids: int, device: torch.device | None = None) -> Int64[Tensor, "grids 2"]:
        """So many grids, as distances from one of them in pixels."""
        rows, columns = self.patch_size
        return displacements(grids, (1 if self.fixed_rows else rows, columns), device)

    def mean_over_grids(
        self, network: Callable[..., Any], image: Float[Tensor, "B C H W"], grids: int, *args: Any, **kwargs: Any
    ) -> Any:
        """The mean of a network's outputs on the chosen grid and on others at fixed distances from it, in one batch.

        Args:
            network: passes ``start`` on to this layer.
        """
        choice = self.choose(image)
        chosen = choice.offset if choice.spot is None else choice.spot
        start = (chosen[:, None] + self.nearby(grids, image.device)).flatten(0, 1)
        return mean_of_each(network(image.repeat_interleave(grids, 0), *args, start=start, **kwargs), grids)

    def anchor_offset(self, candidates: Candidates, offset: Int64[Tensor, "B 2"]) -> Int64[Tensor, "B 2"]:
        """The first token of the chosen grid after the image's wrap seam, usually the photograph's own corner.

        Where the border is closed the frame matters, so the seam is looked for with more care; in training it is the
        image's own. A grid that nothing chooses starts at the seam itself.
        """
        stride = candidates.phases if self.criterion.adaptive else (1, 1)
        return candidates.find_first(stride, offset)

    def choose(self, image: Float[Tensor, "B C H W"]) -> Choice:
        """Where the grid of tokens starts, in pixels."""
        return super().choose(Tokens.of_image(image, self.fixed_rows))

    def forward(self, image: Float[Tensor, "B C H W"], start: Int64[Tensor, "B 2"] | None = None) -> Tokens:
        """Tokens ``[B, H / patch, W / patch, embed_dim]`` and their grid.

        Args:
            start: the pixel at which the grid starts, where it is not to be chosen. For the shift law it must move
                with the image, as what :meth:`choose` gives does.
        """
        check_image(image, self.dim, self.factor)
        return super().forward(Tokens.of_image(image, self.fixed_rows), start)


class Anchor(nn.Module):
    """Roll the tokens so that the one with the largest norm is the first.

    Shift law: the values are bit-identical for every shift of the input; their position is in the grid. Of fixed rows
    only the columns are rolled, to the one that holds this token.

    Tokens after a norm are compared as they were before it.

    >>> tokens = trueshift.Tokens.of_image(torch.rand(1, 3, 8, 8))
    >>> trueshift.Anchor()(tokens).grid.anchored
    True
    """

    def choose(self, tokens: Tokens) -> Choice:
        """Which token becomes the first."""
        values, fixed_rows = tokens.scored, tokens.grid.fixed_rows
        with torch.no_grad(), without_autocast(values):
            if tokens.grid.anchored:  # scores need not be exact
                return choose((of_columns(plain_norm(values), fixed_rows),), None)
            norms = of_columns(token_norm(values), fixed_rows)
            return choose((norms,), lambda needed: first_row(origin_keys(values, needed), fixed_rows))

    def forward(self, tokens: Tokens) -> Tokens:
        """Roll values and grid together."""
        offset = self.choose(tokens).offset
        before_norm = None if tokens.before_norm is None else circular_shift(tokens.before_norm, offset)
        values = circular_shift(tokens.values, offset)
        return Tokens(values, tokens.grid.advance(offset, anchored=True), tokens.prefix, before_norm)
