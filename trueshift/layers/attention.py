r"""A-WSA: attention within windows that start where the content says.

.. math:: \text{A-WSA}(T) = \text{WSA}(S^{m^\star} T), \quad m^\star = \arg\max_{m < W} G(v_W^{(m)})

:class:`AlignWindows` chooses :math:`m^\star`; :class:`WindowAttention` is WSA, which may cut its windows from
:math:`m^\star` on instead of moving the tokens.
"""

from math import log
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..criteria import Candidates, Criterion, FixedOffset, MaxNorm
from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.polyphase import coset_sum
from ..ops.geometry.shift import Pair, circular_pad, circular_shift, fixes_rows, pair, shifted_views
from ..ops.geometry.windows import pad_to_windows, whole_windows
from ..ops.nn.window_attention import window_attention
from ..ops.selection.choose import Choice, choose_by_windows, values_on_grid
from .checks import check_heads, check_size
from .linear import Linear, operands


class WindowCandidates(Candidates):
    """The window partitions of a feature map. Their one feature is the window's mean token norm, :math:`v_W`.

    Its plain sum is the same for every partition, so a criterion must be nonlinear in it, as
    :class:`~trueshift.criteria.MaxNorm` with p > 1 is. A learned criterion sees the window's mean token instead.

    Where one window spans an axis of the grid, all offsets along that axis hold the same window. The first token is
    then chosen by the tokens' own energy, because a position bias depends on it.
    """

    def __init__(self, values: Float[Tensor, "B H W C"], window: Pair, p: float, grid: TokenGrid) -> None:
        super().__init__(values, window, grid)
        self.p = p

    def norms(self) -> Float[Tensor, "B H W"]:
        """The norm of each token."""
        return self.arithmetic.norm(self.content, self.p)

    def features(self) -> Float[Tensor, "B H W 1"]:
        """The energy of the window that starts at each token."""
        return self.arithmetic.window_mean(self.norms(), self.stride)[..., None]

    def dense(self) -> Float[Tensor, "B H W C"]:
        """The mean token of the window that starts at each token, differentiable."""
        rows, columns = self.stride
        padded = circular_pad(self.content, (0, rows - 1), (0, columns - 1))
        return F.avg_pool2d(padded.permute(0, 3, 1, 2), self.stride, 1).permute(0, 2, 3, 1)

    def learnable(self) -> Float[Tensor, "B H W C"]:
        """The same, by ``self.arithmetic``."""
        least = torch.float32 if self.anchored else torch.float64
        maps = self.content.to(torch.promote_types(self.content.dtype, least)).permute(0, 3, 1, 2)
        means = self.arithmetic.window_mean(maps.flatten(0, 1), self.stride)
        return means.unflatten(0, maps.shape[:2]).permute(0, 2, 3, 1)

    def choose_by_energy(self) -> Choice:
        """Window energies, sums and choice in one step."""
        return choose_by_windows(self.norms(), self.stride)

    def further_scores(self) -> tuple[Float[Tensor, "B sh sw"], ...]:
        """Token energies, where a window spans the grid."""
        rows, columns = self.content.shape[1:3]
        if self.stride[0] < rows and self.stride[1] < columns:
            return ()
        norms = self.norms()
        return (coset_sum(norms * norms, self.stride, self.arithmetic.sum),)


class AlignWindows(nn.Module):
    """Roll the tokens so that cutting them into windows from the first token on gives the chosen windows.

    Shift law: ``place(layer(S t)) == S place(layer(t))``, bit for bit: values are only moved. Windows hold the same
    tokens whatever the shift, in the same order.

    Tokens after a norm are scored as they were before it: a norm makes their energies equal.

    After an anchor, windows need not divide the grid: they are then masked at its border, and the last are cut off.

    Args:
        window_size: W, of the attention that follows.
        p: of the token norm in the window energy.
        criterion: G; :class:`~trueshift.criteria.MaxNorm` of p = 2 (sum of squared window energies) by default.
        closed: windows are masked at the border, so one that spans the grid starts there.

    >>> tokens = trueshift.AdaptiveTokenize(3, 16, 4)(torch.rand(1, 3, 32, 32))
    >>> aligned = trueshift.AlignWindows(4)(tokens)  # now cut windows of 4 x 4 from the first token on
    """

    def __init__(
        self, window_size: int | Pair, p: float = 2, criterion: Criterion | None = None, closed: bool = False
    ) -> None:
        super().__init__()
        self.window_size = pair(window_size)
        self.p, self.closed = p, closed
        self.criterion = criterion or MaxNorm()
        if not p > 0:
            raise ValueError(f"p = {p}: needs p > 0")
        if type(self.criterion) is MaxNorm and self.criterion.p == 1:
            raise ValueError("MaxNorm(p=1) of windows: needs p > 1, their plain sum is the same wherever they start")

    def choose(self, tokens: Tokens) -> Choice:
        """Where the first window starts, in tokens."""
        grid, window = tokens.grid, self.window_size
        if not grid.anchored:
            check_size(grid.shape, window)
        choice = self.criterion.choose(WindowCandidates(pad_to_windows(tokens.scored, window), window, self.p, grid))
        if not self._stop_at_border(grid):
            return choice
        if choice.weights is not None:
            raise ValueError(
                "a learned choice of windows that stop at a border: needs border='circular', and a size that windows "
                f"of {window[0]} x {window[1]} tokens divide, or another criterion for 'align'"
            )
        return Choice(self.first_window(choice.offset, grid), choice.scores)

    def first_window(self, offset: Int64[Tensor, "B 2"], grid: TokenGrid) -> Int64[Tensor, "B 2"]:
        """Where the first window starts if a criterion chose ``offset``.

        Windows that stop at the border start there along an axis that one of them spans.
        """
        if not self._stop_at_border(grid):
            return offset
        inside = [side < length for side, length in zip(self.window_size, grid.shape, strict=True)]
        return torch.stack([offset[:, axis] * inside[axis] for axis in (0, 1)], 1)

    def _stop_at_border(self, grid: TokenGrid) -> bool:
        chosen = slice(int(grid.fixed_rows), 2)  # the axes along which windows may start anywhere
        return self.closed or whole_windows(grid.shape, self.window_size)[chosen] != grid.shape[chosen]

    def start(self, tokens: Tokens) -> tuple[Tokens, Int64[Tensor, "B 2"] | None]:
        """The tokens, not moved, and where the first window starts (None: at the first token).

        While a criterion is learned, the tokens are a mixture of rolled ones, which starts at the first token.
        """
        choice = self.choose(tokens)
        if choice.weights is not None:
            return self._aligned(tokens, choice), None
        at_first = type(self.criterion) is FixedOffset and self.criterion.offset == (0, 0)
        return tokens, None if at_first else choice.offset

    def forward(self, tokens: Tokens) -> Tokens:
        """The same tokens on the grid that starts at the first window."""
        return self._aligned(tokens, self.choose(tokens))

    def _aligned(self, tokens: Tokens, choice: Choice) -> Tokens:
        def all_shifts() -> Float[Tensor, "B sh sw H W C"]:
            views = [view for row in shifted_views(tokens.values, self.window_size) for view in row]
            return torch.stack(views, 1).unflatten(1, self.window_size)

        values = values_on_grid(choice, lambda: circular_shift(tokens.values, choice.offset), all_shifts)
        return Tokens(values, tokens.grid.advance(choice.offset, window=self.window_size), tokens.prefix)


class WindowAttention(nn.Module):
    """WSA: attention within windows, with Swin's linear position bias, which never crosses a window's edge.

    Shift law: equivariant for shifts by multiples of the window; after :class:`AlignWindows`, for all, unless windows
    stop at the border.

    Args:
        shifted: start the windows half a window later, along axes that hold more than one (SW-MSA).
        border: shifted windows stop at the border of the image (the ordinary network) instead of wrapping around it.
        cut_off: windows need not divide the grid: they stop at its border and the last are cut off. For tokens after
            an anchor, whose frame moves with the content.
        circular: ``"width"``: windows stop above and below in any case.

    >>> trueshift.WindowAttention(16, window_size=4, num_heads=2)(torch.rand(1, 8, 8, 16)).shape
    torch.Size([1, 8, 8, 16])
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
        cut_off: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        circular: str = "both",
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.window_size = pair(window_size)
        self.num_heads = num_heads
        self.make_position_table()
        self.qkv = Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = Linear(dim, dim)
        self.shifted = shifted
        self.border, self.cut_off, self.fixed_rows = border, cut_off, fixes_rows(circular)
        self.attn_drop = attn_drop
        self.proj_drop = nn.Dropout(proj_drop)
        self.register_buffer("relative_position_index", distance_index(self.window_size), persistent=False)

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
        """The factor of cosine attention; None for dot products."""
        return None

    def shift(self, size: Pair) -> Pair:
        """The offset of shifted windows on a grid of this size."""
        rows, columns = (
            window // 2 if self.shifted and length > window else 0
            for length, window in zip(size, self.window_size, strict=True)
        )
        return rows, columns

    def forward(
        self, x: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"] | None = None
    ) -> Float[Tensor, "B H W C"]:
        """Attend within windows, the first of which begins at ``start``, or at the first token.

        Of fixed rows, windows begin in the first one.
        """
        size = (x.shape[1], x.shape[2])
        if not self.cut_off:
            check_size(size, self.window_size)
        shift, rolled = self.shift(size), None
        if self.fixed_rows and not self.border and size[1] % self.window_size[1] == 0:
            # rolled to where windows begin, no column is beyond the border at which they stop
            begin = x.new_zeros(1, 2, dtype=torch.int64) if start is None else start
            rolled = torch.stack([torch.zeros_like(begin[:, 1]), begin[:, 1] + shift[1]], 1).expand(x.shape[0], -1)
            x, start, shift = circular_shift(x, rolled), None, (shift[0], 0)
        mixed = window_attention(
            x,
            self.project,
            self.position_bias(),
            self.sharpness(),
            start,
            self.window_size,
            shift,
            self.border or self.fixed_rows,
            self.attn_drop if self.training else 0.0,
        )
        mixed = mixed if rolled is None else circular_shift(mixed, -rolled)
        return self.proj_drop(self.proj(mixed))


class CosineWindowAttention(WindowAttention):
    """The attention of SwinV2: cosines with a learned temperature, and a position bias from a small network.

    Shift law: as :class:`WindowAttention`.

    Args:
        trained_window: window size with which the weights were trained, if it was another one.
        more: as for :class:`WindowAttention`.

    >>> trueshift.CosineWindowAttention(16, window_size=4, num_heads=2)(torch.rand(1, 8, 8, 16)).shape
    torch.Size([1, 8, 8, 16])
    """

    relative_coords_table: Tensor

    def __init__(
        self,
        dim: int,
        window_size: int | Pair,
        num_heads: int,
        qkv_bias: bool = True,
        *more: Any,
        trained_window: int | Pair = 0,
        **named: Any,
    ) -> None:
        self.trained_window = pair(trained_window)
        super().__init__(dim, window_size, num_heads, False, *more, **named)
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), log(10)))
        self.q_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None
        self.v_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None

    def make_position_table(self) -> None:
        """A network of two layers, and the logarithmic distances that are its input."""
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, self.num_heads, bias=False))
        table = log_distances(self.window_size, self.trained_window)
        self.register_buffer("relative_coords_table", table, persistent=False)

    def position_bias(self) -> Float[Tensor, "heads L L"]:
        """The network's output, between 0 and 16."""
        table = self.cpb_mlp(self.relative_coords_table)
        return 16 * table[self.relative_position_index].permute(2, 0, 1).sigmoid()

    def project(self, x: Float[Tensor, "*any C"]) -> Float[Tensor, "*any C3"]:
        """Queries, keys and values of each token; keys have no bias."""
        qkv_bias = None
        if self.q_bias is not None and self.v_bias is not None:
            qkv_bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        return F.linear(x, operands(self.qkv, x)[0], qkv_bias)

    def sharpness(self) -> Float[Tensor, "heads 1 1"]:
        """The inverse of the learned temperature."""
        return self.logit_scale.clamp(max=log(100)).exp()


def distance_index(window: Pair) -> Int64[Tensor, "L L"]:
    """Which row of a table of all distances within a window belongs to each two tokens."""
    rows, columns = (torch.arange(size)[:, None] - torch.arange(size) + size - 1 for size in window)
    index = rows[:, None, :, None] * (2 * window[1] - 1) + columns[:, None]
    return index.flatten(2).flatten(0, 1)


def log_distances(window: Pair, trained_window: Pair) -> Float[Tensor, "rows 2"]:
    """Every distance within a window on a logarithmic scale, 1 at the far end, signed."""
    rows, columns = (max(trained or own, 2) for own, trained in zip(window, trained_window, strict=True))
    table = 8 * torch.cartesian_prod(*(torch.arange(1.0 - size, size) for size in window))
    table /= torch.tensor((rows - 1, columns - 1))
    return table.sign() * (1 + table.abs()).log2() / 3
