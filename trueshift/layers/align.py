r"""A-WSA's choice: roll the tokens so that attention windows begin where the content says.

.. math:: \text{A-WSA}(T) = \text{WSA}(S^{m^\star} T), \quad m^\star = \arg\max_{m < W} G(v_W^{(m)})
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..criteria import Candidates, Criterion, FixedOffset, MaxNorm, values_on_grid
from ..ops.geometry.grid import Tokens
from ..ops.geometry.polyphase import coset_sum
from ..ops.geometry.shift import Pair, circular_pad, circular_shift, pair, shifted_views
from ..ops.selection.choose import Choice, choose_by_windows
from .tokenize import check_size


class WindowCandidates(Candidates):
    """The window partitions of a feature map. Their one feature is the window's mean token norm, :math:`v_W`.

    Its plain sum is the same for every partition, so a criterion must be nonlinear in it, as
    :class:`~trueshift.criteria.MaxNorm` with p > 1 is. A small network is not, where all norms are on one side of its
    kinks: a learned criterion looks at the window's mean token instead.

    Where one window spans an axis of the grid, all its offsets along that axis hold the same window. There the token
    that comes first is chosen by the tokens' own energy: attention with a position bias sees which one is first.
    """

    def __init__(self, values: Float[Tensor, "B H W C"], window: Pair, p: float, anchored: bool = False) -> None:
        super().__init__(values, window, anchored)
        self.p = p

    def features(self) -> Float[Tensor, "B H W 1"]:
        """The energy of the window that starts at each token."""
        return self.arithmetic.window_mean(self.arithmetic.norm(self.content, self.p), self.stride)[..., None]

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
        return choose_by_windows(self.arithmetic.norm(self.content, self.p), self.stride)

    def further_scores(self) -> tuple[Float[Tensor, "B sh sw"], ...]:
        """Token energies, where a window spans the grid."""
        rows, columns = self.content.shape[1:3]
        if self.stride[0] < rows and self.stride[1] < columns:
            return ()
        norms = self.arithmetic.norm(self.content, self.p)
        return (coset_sum(norms * norms, self.stride, self.arithmetic.sum),)


class AlignWindows(nn.Module):
    """Roll the tokens so that cutting them into windows from the first token on gives the chosen windows.

    Shift law: ``place(layer(S t)) == S place(layer(t))``, bit for bit: values are only moved. Windows hold the same
    tokens whatever the shift, each token at the same place of its window.

    Tokens that come out of a norm are scored as they were before it: a norm makes their energies equal.

    Args:
        window_size: W, of the attention that follows.
        p: of the token norm in the window energy.
        criterion: G; :class:`~trueshift.criteria.MaxNorm` of p = 2 (sum of squared window energies) if not given.
    """

    def __init__(self, window_size: int | Pair, p: float = 2, criterion: Criterion | None = None) -> None:
        super().__init__()
        self.window_size = pair(window_size)
        self.p = p
        self.criterion = criterion or MaxNorm()
        if type(self.criterion) is MaxNorm and self.criterion.p == 1:
            raise ValueError("MaxNorm(p=1) of windows: needs p > 1, their plain sum is the same wherever they start")

    def choose(self, tokens: Tokens) -> Choice:
        """Where the first window starts, counted in tokens."""
        scored = tokens.values if tokens.before_norm is None else tokens.before_norm
        return self.criterion.choose(WindowCandidates(scored, self.window_size, self.p, tokens.grid.anchored))

    def start(self, tokens: Tokens) -> tuple[Tokens, Int64[Tensor, "B 2"] | None]:
        """Tokens in which nothing was moved, and where the first window starts: for an attention that cuts there.

        None says at the first token. While a criterion is learned the tokens are a mixture that starts there.
        """
        check_size(tokens.grid.shape, self.window_size)
        choice = self.choose(tokens)
        if choice.weights is not None:
            return self._aligned(tokens, choice), None
        at_first = type(self.criterion) is FixedOffset and self.criterion.offset == (0, 0)
        return tokens, None if at_first else choice.offset

    def forward(self, tokens: Tokens) -> Tokens:
        """The same tokens on the grid that starts at the first window."""
        check_size(tokens.grid.shape, self.window_size)
        return self._aligned(tokens, self.choose(tokens))

    def _aligned(self, tokens: Tokens, choice: Choice) -> Tokens:
        values = values_on_grid(
            choice,
            lambda: circular_shift(tokens.values, choice.offset),
            lambda: _all_shifts(tokens.values, self.window_size),
        )
        return Tokens(values, tokens.grid.advance(choice.offset), tokens.prefix)


def _all_shifts(values: Float[Tensor, "B H W C"], window: Pair) -> Float[Tensor, "B sh sw H W C"]:
    """The tokens as seen from each offset of a window, W x W times as many."""
    views = [view for row in shifted_views(values, window) for view in row]
    return torch.stack(views, 1).unflatten(1, window)
