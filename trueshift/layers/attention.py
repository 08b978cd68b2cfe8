r"""Self-attention that moves with the image: inside aligned windows, or over all tokens with distances on the circle.

.. math:: \text{SA}^{(\text{rel})}(T) = \text{softmax}\big(Q K^\top / \sqrt{D'} + E^{(\text{rel})}\big) V
"""

from math import log, log2

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.rel_pos import circular_distance
from ..ops.geometry.shift import Pair, pair
from ..ops.nn.window_attention import window_attention
from .linear import Linear, operands


class WindowAttention(nn.Module):
    """WSA: attention within windows, with the linear position bias of Swin, which never crosses a window's edge.

    Shift law: equivariant for shifts by multiples of the window; behind
    :class:`~trueshift.layers.align.AlignWindows`, for all, if windows do not stop at the border.

    Args:
        shifted: cut the windows half a window further on, along axes that hold more than one (SW-MSA).
        border: shifted windows that reach around the image stop at its border: the ordinary network. Otherwise they
            go around, as the image does.
    """

    relative_position_index: Tensor

    def __init__(
        self,
        dim: int,
        window_size: int | Pair,
        num_heads: int,
        qkv_bias: bool = True,
        shifted: bool = False,
        border: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.window_size = pair(window_size)
        self.num_heads = num_heads
        self.make_position_table()
        self.qkv = Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = Linear(dim, dim)
        self.shifted = shifted
        self.border = border
        self.attn_drop = attn_drop
        self.proj_drop = nn.Dropout(proj_drop)
        self.register_buffer("relative_position_index", window_distances(self.window_size), persistent=False)

    def make_position_table(self) -> None:
        """Parameters of the position bias: a table with a row per distance."""
        rows, columns = self.window_size
        table = torch.empty((2 * rows - 1) * (2 * columns - 1), self.num_heads)
        self.relative_position_bias_table = nn.Parameter(nn.init.trunc_normal_(table, std=0.02))

    def position_bias(self) -> Float[Tensor, "heads L L"]:
        """The bias between every two tokens of a window."""
        return self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)

    def project(self, x: Float[Tensor, "*any C"]) -> Float[Tensor, "*any C3"]:
        """Queries, keys and values of each token."""
        return self.qkv(x)

    def sharpness(self) -> Float[Tensor, "heads 1 1"] | None:
        """By what cosines are multiplied; None where attention goes by dot products."""
        return None

    def shift(self, size: Pair) -> Pair:
        """How far beyond the first token the first window starts."""
        rows, columns = (
            window // 2 if self.shifted and length > window else 0
            for length, window in zip(size, self.window_size, strict=True)
        )
        return rows, columns

    def forward(
        self, x: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"] | None = None
    ) -> Float[Tensor, "B H W C"]:
        """Attend within each window, the first of which begins at ``start``, or at the first token."""
        mixed = window_attention(
            x,
            self.project,
            self.position_bias(),
            self.sharpness(),
            start,
            self.window_size,
            self.shift((x.shape[1], x.shape[2])),
            self.border,
            self.attn_drop if self.training else 0.0,
        )
        return self.proj_drop(self.proj(mixed))


def window_distances(window: Pair) -> Int64[Tensor, "L L"]:
    """For every two tokens of a window, the row of a position table that holds their distance."""
    rows, columns = window
    row = torch.arange(rows)[:, None] - torch.arange(rows)[None, :] + rows - 1
    column = torch.arange(columns)[:, None] - torch.arange(columns)[None, :] + columns - 1
    index = row[:, None, :, None] * (2 * columns - 1) + column[None, :, None, :]
    return index.reshape(rows * columns, -1)


class CosineWindowAttention(WindowAttention):
    """The attention of SwinV2: cosines with a learned temperature, and a bias that a small network makes of distances.

    Shift law: as :class:`WindowAttention`.

    Args:
        trained_window: window size with which the weights were trained, if it was another one.
    """

    relative_coords_table: Tensor

    def __init__(
        self,
        dim: int,
        window_size: int | Pair,
        num_heads: int,
        qkv_bias: bool = True,
        shifted: bool = False,
        border: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        trained_window: int | Pair = 0,
    ) -> None:
        self.trained_window = pair(trained_window)
        super().__init__(dim, window_size, num_heads, False, shifted, border, attn_drop, proj_drop)
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), log(10)))
        self.q_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None
        self.v_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None

    def make_position_table(self) -> None:
        """A network of two layers, and the logarithmic distances it is asked about."""
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, self.num_heads, bias=False))
        self.register_buffer(
            "relative_coords_table", log_distances(self.window_size, self.trained_window), persistent=False
        )

    def position_bias(self) -> Float[Tensor, "heads L L"]:
        """The network's answers, between 0 and 16."""
        table = self.cpb_mlp(self.relative_coords_table)
        return 16 * table[self.relative_position_index].permute(2, 0, 1).sigmoid()

    def project(self, x: Float[Tensor, "*any C"]) -> Float[Tensor, "*any C3"]:
        """Queries, keys and values of each token; keys have no bias."""
        qkv_bias = None
        if self.q_bias is not None and self.v_bias is not None:
            qkv_bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        return F.linear(x, operands(self.qkv, x)[0], qkv_bias)

    def sharpness(self) -> Float[Tensor, "heads 1 1"]:
        """The learned temperature's inverse."""
        return self.logit_scale.clamp(max=log(100)).exp()


def log_distances(window: Pair, trained_window: Pair) -> Float[Tensor, "rows 2"]:
    """Every distance within a window on a logarithmic scale, 1 at the far end, signed."""
    axes = []
    for extent, trained in zip(window, trained_window, strict=True):
        reach = max((trained or extent) - 1, 1)
        steps = torch.arange(-(extent - 1), extent, dtype=torch.float32) / reach * 8
        axes.append(steps.sign() * (steps.abs() + 1).log2() / log2(8))
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 1)


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
        queries, keys, values = self.qkv(x.flatten(1, 2)).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values, bias.to(queries.dtype))
        return Tokens(self.proj(mixed.transpose(1, 2).flatten(2)).view_as(x), tokens.grid, tokens.prefix)


def check_heads(dim: int, heads: int) -> None:
    """Refuse channels that cannot be shared out among the heads."""
    if dim % heads:
        raise ValueError(f"{dim} channels: needs a multiple of the {heads} heads")
