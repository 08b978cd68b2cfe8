r"""Attention over all tokens, with relative positions on the circle (adaptive RPE).

.. math:: \text{SA}^{(\text{rel})}(T) = \text{softmax}\big(Q K^\top / \sqrt{D'} + E^{(\text{rel})}\big) V
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.rel_pos import circular_distance
from ..ops.geometry.shift import Pair, pair
from ..ops.nn.attention import fused_attention
from .checks import check_heads


class CircularRelativePosition(nn.Module):
    r"""Adaptive RPE: a bias for each pair of tokens, by their distance on the circle.

    .. math:: E[i, j] = B\big[(p^{(Q)}_i - p^{(K)}_j) \bmod M\big]

    in rows and in columns. Queries and keys may lie on different grids of the same image.

    Shift law: the bias between two tokens does not change when the image moves.

    Args:
        table_size: M, steps around the image in rows and columns.

    >>> grid = trueshift.TokenGrid.of_image(torch.rand(1, 3, 4, 4))
    >>> trueshift.CircularRelativePosition(4, num_heads=2)(grid, grid).shape
    torch.Size([1, 2, 16, 16])
    """

    def __init__(self, table_size: int | Pair, num_heads: int) -> None:
        super().__init__()
        self.table_size = pair(table_size)
        self.table = nn.Parameter(nn.init.trunc_normal_(torch.empty(*self.table_size, num_heads), std=0.02))

    def forward(self, query: TokenGrid, key: TokenGrid) -> Float[Tensor, "B heads Q K"]:
        """The bias from every query to every key, row by row."""
        if query.fixed_rows or key.fixed_rows:
            raise ValueError("distances around the rows of tokens that have fixed rows: needs circular='both'")
        for name, size, steps in zip(("height", "width"), key.image_size, self.table_size, strict=True):
            if size % steps:
                raise ValueError(f"image {name} {size}: needs a multiple of the {steps} steps of the table")
        units = [size // steps for size, steps in zip(key.image_size, self.table_size, strict=True)]
        row = circular_distance(query, key, 0, units[0])[:, :, None, :, None]
        column = circular_distance(query, key, 1, units[1])[:, None, :, None, :]
        bias = self.table[row, column]  # B hq wq hk wk heads
        return bias.permute(0, 5, 1, 2, 3, 4).flatten(4).flatten(2, 3)


class CircularAttention(nn.Module):
    """Attention over all tokens, with circular relative positions.

    Shift law: ``place(layer(S t)) == S place(layer(t))`` to rounding: a softmax sums the tokens in the order in which
    they come. Bit-identical after an :class:`~trueshift.layers.tokenize.Anchor`.

    >>> tokens = trueshift.AdaptiveTokenize(3, 16, 4)(torch.rand(1, 3, 32, 32))
    >>> trueshift.CircularAttention(16, num_heads=2, table_size=8)(tokens).values.shape
    torch.Size([1, 8, 8, 16])
    """

    def __init__(self, dim: int, num_heads: int, table_size: int | Pair, qkv_bias: bool = True) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.position = CircularRelativePosition(table_size, num_heads)

    def forward(self, tokens: Tokens) -> Tokens:
        """Attend over all tokens of each image."""
        x = tokens.values
        bias = self.position(tokens.grid, tokens.grid)
        queries, keys, values = self.qkv(x.flatten(1, 2)).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = fused_attention(queries, keys, values, bias)
        return Tokens(self.proj(mixed.transpose(1, 2).flatten(2)).view_as(x), tokens.grid, tokens.prefix)
