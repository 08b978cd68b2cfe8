r"""Self-attention that moves with the image: inside aligned windows, or over all tokens with distances on the circle.

.. math:: \text{SA}^{(\text{rel})}(T) = \text{softmax}\big(Q K^\top / \sqrt{D'} + E^{(\text{rel})}\big) V
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..ops.grid import TokenGrid, Tokens
from ..ops.rel_pos import circular_distance
from ..ops.shift import Pair, pair
from ..ops.windows import window_partition, window_reverse


def attend(
    x: Float[Tensor, "N L C"],
    qkv: nn.Linear,
    proj: nn.Linear,
    heads: int,
    bias: Float[Tensor, "#N heads L L"],
) -> Float[Tensor, "N L C"]:
    """Multi-head self-attention with an additive bias."""
    queries, keys, values = qkv(x).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias.to(queries.dtype))
    return proj(attended.transpose(1, 2).flatten(2))


class WindowAttention(nn.Module):
    """WSA: attention within windows, with the linear position bias of Swin, which never crosses a window's edge.

    Shift law: equivariant for shifts by multiples of the window; behind
    :class:`~trueshift.layers.align.AlignWindows`, for all.
    """

    relative_position_index: Tensor

    def __init__(self, dim: int, window_size: int | Pair, num_heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.window_size = pair(window_size)
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        rows, columns = self.window_size
        self.relative_position_bias_table = nn.Parameter(torch.empty((2 * rows - 1) * (2 * columns - 1), num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        row = torch.arange(rows)[:, None] - torch.arange(rows)[None, :] + rows - 1
        column = torch.arange(columns)[:, None] - torch.arange(columns)[None, :] + columns - 1
        index = row[:, None, :, None] * (2 * columns - 1) + column[None, :, None, :]
        self.register_buffer("relative_position_index", index.reshape(rows * columns, -1), persistent=False)

    def forward(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
        """Attend within each window, cut from the first token on."""
        windows = window_partition(x, self.window_size)
        bias = self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)
        attended = attend(windows.flatten(1, 2), self.qkv, self.proj, self.num_heads, bias[None])
        return window_reverse(attended.view_as(windows), (x.shape[1], x.shape[2]))


class CircularRelativePosition(nn.Module):
    r"""Adaptive RPE: a bias for each pair of tokens, by their distance on the circle.

    .. math:: E[i, j] = B\big[(p^{(Q)}_i - p^{(K)}_j) \bmod M\big]

    in rows and in columns. Queries and keys may stand on different grids of the same image.

    Shift law: the bias between two tokens is the same wherever the image has moved.

    Args:
        table_size: M, steps around the image in rows and columns.
    """

    def __init__(self, table_size: int | Pair, num_heads: int) -> None:
        super().__init__()
        self.table_size = pair(table_size)
        self.table = nn.Parameter(torch.empty(*self.table_size, num_heads))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, query: TokenGrid, key: TokenGrid) -> Float[Tensor, "B heads Q K"]:
        """The bias from every query to every key, row by row."""
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

    Shift law: ``place(layer(S t)) == S place(layer(t))`` to rounding: a softmax over all tokens sums them in the order
    in which they stand. Bit-identical behind an :class:`~trueshift.layers.anchor.Anchor`.
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
        attended = attend(x.flatten(1, 2), self.qkv, self.proj, self.num_heads, bias)
        return Tokens(attended.view_as(x), tokens.grid)


def check_heads(dim: int, heads: int) -> None:
    """Refuse channels that cannot be shared out among the heads."""
    if dim % heads:
        raise ValueError(f"{dim} channels: needs a multiple of the {heads} heads")
