r"""A-PMerge: merge neighbouring tokens on a grid that their content chooses.

Patch merging is a convolution with a stride, so the stride is taken by adaptive polyphase sampling:

.. math:: \text{A-PMerge}(T) = \text{APS}^{(P)}(T \circledast h)
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..criteria import Candidates, Criterion, MaxNorm, ScoringLinear, values_on_grid
from ..ops.geometry.blocks import cut_blocks
from ..ops.geometry.grid import Tokens
from ..ops.geometry.polyphase import polyphase
from ..ops.geometry.shift import Pair, circular_take, pair, shifted_views
from ..ops.nn.conv import conv_tokens
from ..ops.nn.fold_layernorm import project_patches_everywhere
from ..ops.selection.choose import Choice
from ..ops.selection.projection_energy import projected_energy
from .anchor import anchor_on_norm
from .tokenize import PatchCandidates, check_size, strided_conv


class _Merge(nn.Module):
    """Choose, merge, advance the grid: what all merges share."""

    factor: Pair
    criterion: Criterion
    anchor: bool

    def candidates(self, tokens: Tokens) -> "_Merged":
        """The grids of merged tokens to choose from."""
        raise NotImplementedError

    def merge(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W D"]:
        """Merged tokens, before a norm that comes after the choice, for the patch that starts at every position."""
        raise NotImplementedError

    def merge_from(self, values: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"]) -> Float[Tensor, "B h w D"]:
        """The same for the patches from ``start`` on, side by side."""
        raise NotImplementedError

    def merge_for_scores(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W D"]:
        """:meth:`merge` in float32 and without gradient, in whatever way is faster."""
        return self.merge(values)

    def finish(self, merged: Float[Tensor, "B h w D"]) -> Float[Tensor, "B h w D"]:
        """What follows the choice."""
        return merged

    def choose(self, tokens: Tokens) -> Choice:
        """Where the grid of merged tokens starts, counted in tokens."""
        return self._choose(self.candidates(tokens))

    def _choose(self, candidates: Candidates) -> Choice:
        choice = self.criterion.choose(candidates)
        return anchor_on_norm(choice, candidates) if self.anchor else choice

    def forward(self, tokens: Tokens) -> Tokens:
        """Merged tokens on a grid of ``factor`` times the stride."""
        check_size(tokens.grid.shape, self.factor)
        candidates = self.candidates(tokens)
        choice = self._choose(candidates)
        merged = candidates.merged_at(choice)
        finished = self.finish(merged)
        before_norm = None if finished is merged else merged
        grid = tokens.grid.advance(choice.offset, self.factor, anchored=self.anchor and choice.weights is None)
        return Tokens(finished, grid, before_norm=before_norm)  # a class token has no place on the new grid


class _Merged(Candidates):
    """Grids of merged tokens. In float32, patches that were merged to be scored are not merged once more."""

    layer: _Merge
    reusable = False
    _merged: Tensor | None = None

    def belongs_to(self, layer: _Merge, circular: bool) -> "_Merged":
        """Zero padding depends on the chosen frame, so what was merged without it cannot be reused."""
        self.layer = layer
        plain = self.anchored and circular and self.precision == torch.float32
        self.reusable = plain and not torch.is_grad_enabled()
        return self

    def features(self) -> Float[Tensor, "B H W D"]:
        if not self.reusable:
            return self.patch_features()
        if self._merged is None:
            self._merged = self.layer.merge_for_scores(self.content)
        return self._merged

    def patch_features(self) -> Float[Tensor, "B H W D"]:
        """The features by ``self.arithmetic``."""
        raise NotImplementedError

    def dense(self) -> Float[Tensor, "B H W D"]:
        return self.layer.merge(self.content)

    def merged_at(self, choice: Choice) -> Float[Tensor, "B h w D"]:
        """The merged tokens on the chosen grid."""
        if self._merged is not None:
            return circular_take(self._merged, choice.offset, self.stride)
        return values_on_grid(
            choice,
            lambda: self.layer.merge_from(self.content, choice.offset),
            lambda: polyphase(self.layer.merge(self.content), self.stride),
        )


class AdaptiveMerge(_Merge):
    """Concatenate patches of ``factor`` x ``factor`` tokens and project them (Swin's PatchMerging).

    Shift law: ``place(layer(S t)) == S place(layer(t))``, to rounding of the matrix kernel; bit-identical with
    ``anchor`` here or anywhere before.

    Args:
        dim, out_dim: channels before and after; twice as many after if not given.
        factor: P, how many tokens are merged along each axis.
        norm: ``"before"`` the projection (Swin), ``"after"`` it (SwinV2) or ``"none"``. The choice is made on the
            projection itself: after a norm all tokens have the same energy.
        criterion: :class:`~trueshift.criteria.MaxNorm` of p = 2 if not given.
        anchor: also choose which token is the first. Not needed behind an anchored layer.
    """

    def __init__(
        self,
        dim: int,
        out_dim: int | None = None,
        factor: int | Pair = 2,
        norm: str = "before",
        criterion: Criterion | None = None,
        anchor: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if norm not in ("before", "after", "none"):
            raise ValueError(f"norm {norm!r}: needs 'before', 'after' or 'none'")
        self.factor = pair(factor)
        gathered = dim * self.factor[0] * self.factor[1]
        self.dim, out_dim = dim, out_dim or 2 * dim
        self.norm_position = norm
        # in the order in which they are applied, as timm has them: optimizers go by it
        if norm == "before":
            self.norm: nn.Module = nn.LayerNorm(gathered)
        self.reduction = ScoringLinear(gathered, out_dim, bias=bias)
        if norm != "before":
            self.norm = nn.LayerNorm(out_dim) if norm == "after" else nn.Identity()
        self.criterion = criterion or MaxNorm()
        self.anchor = anchor

    def candidates(self, tokens: Tokens) -> _Merged:
        """Patches of neighbouring tokens."""
        if tokens.values.shape[3] != self.dim:
            raise ValueError(f"tokens of {tokens.values.shape[3]} channels: this layer was made for {self.dim}")
        return _PatchCandidates(tokens.values, self.factor, tokens.grid.anchored).belongs_to(self, circular=True)

    def merge(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W D"]:
        """Gather, norm if it comes before, project."""
        return self._project(gather_patches(values, self.factor))

    def merge_for_scores(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W D"]:
        """With a norm that comes before folded into the projection, so that no patches are gathered.

        Not where somebody has put another projection in place, or listens by hooks: neither module is called.
        """
        heard = any(module._forward_hooks or module._forward_pre_hooks for module in (self.norm, self.reduction))
        replaced = type(self.reduction) is not ScoringLinear
        if heard or replaced or not values.is_cpu or torch.compiler.is_compiling():
            return self.merge(values)
        weight, bias = self.projection(), self.reduction.bias
        return project_patches_everywhere(values, weight, bias, self.norm_before(), column_first=True)

    def norm_before(self) -> nn.LayerNorm | None:
        """The norm before the projection, if there is one."""
        return self.norm if self.norm_position == "before" and isinstance(self.norm, nn.LayerNorm) else None

    def projection(self) -> Float[Tensor, "D rows columns C"]:
        """The projection, which knows the tokens of a patch column by column, in the order of the grid."""
        rows, columns = self.factor
        return self.reduction.weight.unflatten(1, (columns, rows, -1)).transpose(1, 2)

    def merge_from(self, values: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"]) -> Float[Tensor, "B h w D"]:
        """Gather from ``start`` on, norm if it comes before, project."""
        return self._project(cut_blocks(values, self.factor, start, column_first=True).flatten(3))

    def _project(self, gathered: Float[Tensor, "B h w PPC"]) -> Float[Tensor, "B h w D"]:
        return self.reduction(self.norm(gathered) if self.norm_position == "before" else gathered)

    def finish(self, merged: Float[Tensor, "B h w D"]) -> Float[Tensor, "B h w D"]:
        """The norm, if it comes after."""
        return self.norm(merged) if self.norm_position == "after" else merged


class _PatchCandidates(_Merged):
    layer: AdaptiveMerge

    def patch_features(self) -> Float[Tensor, "B H W D"]:
        gathered, norm = gather_patches(self.content, self.stride), self.layer.norm_before()
        if norm is not None:
            gathered = self.arithmetic.layer_norm(gathered, norm)
        merged = self.arithmetic.linear(gathered, self.layer.reduction.weight)
        bias = self.layer.reduction.bias
        return merged if bias is None else merged + bias.detach()

    def fused_energy(self) -> Float[Tensor, "parts B H W"] | None:
        weight, bias, norm = self.layer.projection(), self.layer.reduction.bias, self.layer.norm_before()
        return projected_energy(self.content, weight, bias, norm, (0, 0), self.precision, column_first=True)


def gather_patches(values: Float[Tensor, "B H W C"], patch: Pair) -> Float[Tensor, "B H W PPC"]:
    """The tokens of the patch that starts at every position, column by column as in timm."""
    views = shifted_views(values, patch)
    return torch.cat([row[column] for column in range(patch[1]) for row in views], 3)


class _ConvCandidates(_Merged, PatchCandidates):
    def patch_features(self) -> Float[Tensor, "B H W D"]:
        return PatchCandidates.features(self)


class AdaptiveConvMerge(_Merge):
    """Merge tokens by a strided convolution whose kernel may overlap its neighbours (CvT, MViTv2).

    Shift law: as :class:`AdaptiveMerge`.

    Args:
        dim, out_dim: channels before and after.
        factor: stride, in tokens.
        kernel_size: at least the stride.
        padding: how far the kernel reaches before the nominal start of its patch.
        groups: ``dim`` for a depthwise convolution.
        padding_mode: ``"circular"``; ``"zeros"`` is for the ordinary network and breaks the shift law.
        norm_layer: makes a norm over the channels, after the choice.
    """

    def __init__(
        self,
        dim: int,
        out_dim: int,
        factor: int | Pair = 2,
        kernel_size: int | Pair = 3,
        padding: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
        criterion: Criterion | None = None,
        anchor: bool = False,
        padding_mode: str = "circular",
        norm_layer: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.factor, self.padding = pair(factor), pair(padding)
        self.norm = norm_layer(out_dim) if norm_layer else nn.Identity()
        self.proj = strided_conv(dim, out_dim, kernel_size, self.factor, self.padding, padding_mode, groups, bias)
        self.criterion = criterion or MaxNorm()
        self.anchor = anchor
        self.pad_mode = padding_mode

    def candidates(self, tokens: Tokens) -> _Merged:
        """Strided convolutions at each phase."""
        values, wanted = tokens.values, self.proj.in_channels
        if values.shape[3] != wanted:
            raise ValueError(f"tokens of {values.shape[3]} channels: this layer was made for {wanted}")
        found = _ConvCandidates(values, self.proj, self.factor, self.padding, tokens.grid.anchored)
        return found.belongs_to(self, self.pad_mode == "circular")

    def merge(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W D"]:
        """The convolution at stride 1."""
        return conv_tokens(values, self.proj, (1, 1), self.padding, self.pad_mode)

    def merge_from(self, values: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"]) -> Float[Tensor, "B h w D"]:
        """The convolution from ``start`` on."""
        return conv_tokens(values, self.proj, self.factor, self.padding, self.pad_mode, start)

    def finish(self, merged: Float[Tensor, "B h w D"]) -> Float[Tensor, "B h w D"]:
        """The norm."""
        return self.norm(merged)
