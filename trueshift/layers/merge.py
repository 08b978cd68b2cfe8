r"""A-PMerge: merge neighbouring tokens on a grid that their content chooses.

Patch merging is a convolution with a stride, so the stride is taken by adaptive polyphase sampling:

.. math:: \text{A-PMerge}(T) = \text{APS}^{(P)}(T \circledast h)
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..criteria import Candidates, Criterion, MaxNorm, ScoringLinear, follow
from ..ops import kernels
from ..ops.geometry.blocks import cut_blocks
from ..ops.geometry.grid import Tokens
from ..ops.geometry.polyphase import polyphase, take_phase
from ..ops.geometry.shift import Pair, pair, shifted_views
from ..ops.nn import dense_conv as all_phases
from ..ops.nn.autocast import network_precision
from ..ops.nn.fold_layernorm import fold_norm, patch_variance
from ..ops.selection.choose import Choice
from ..ops.selection.projection_energy import projected_energy
from .anchor import anchor_on_norm
from .conv import conv_tokens
from .tokenize import PatchCandidates, check_size, strided_conv


class _Merge(nn.Module):
    """Choose, merge, advance the grid: what all merges share."""

    factor: Pair
    criterion: Criterion
    anchor: bool

    def candidates(self, tokens: Tokens) -> Candidates:
        """The grids of merged tokens to choose from."""
        raise NotImplementedError

    def merge(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W D"]:
        """Merged tokens, before a norm that comes after the choice, for the patch that starts at every position."""
        raise NotImplementedError

    def merge_from(self, values: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"]) -> Float[Tensor, "B h w D"]:
        """The same for the patches from ``start`` on, side by side."""
        raise NotImplementedError

    def merge_phases(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B sh sw h w D"]:
        """The same on all grids, without gradient."""
        return polyphase(self.merge(values), self.factor)

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
        if self._merges_all(tokens):
            candidates.phases = self.merge_phases(tokens.values)
            choice = self._choose(candidates)
            merged = take_phase(candidates.phases, choice.offset)
        else:
            choice = self._choose(candidates)
            merged = follow(
                choice,
                lambda: self.merge_from(tokens.values, choice.offset),
                lambda: polyphase(self.merge(tokens.values), self.factor),
            )
        finished = self.finish(merged)
        before_norm = None if finished is merged else merged
        grid = tokens.grid.advance(choice.offset, self.factor, anchored=self.anchor and choice.weights is None)
        return Tokens(finished, grid, before_norm=before_norm)  # a class token has no place on the new grid

    def _merges_all(self, tokens: Tokens) -> bool:
        """Whether all patches are merged as the layer does it, to be scored and to be chosen from.

        In float32, and without kernels that score without merging, this saves merging the chosen ones once more.
        """
        plain = tokens.grid.anchored and not self.anchor and network_precision(tokens.values) == torch.float32
        scored = isinstance(self.criterion, MaxNorm) and self.criterion.p == 2
        return plain and scored and not torch.is_grad_enabled() and not kernels.usable(tokens.values)


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

    def candidates(self, tokens: Tokens) -> Candidates:
        """Patches of neighbouring tokens."""
        if tokens.values.shape[3] != self.dim:
            raise ValueError(f"tokens of {tokens.values.shape[3]} channels: this layer was made for {self.dim}")
        return _MergeCandidates(tokens.values, self, tokens.grid.anchored)

    def merge(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W D"]:
        """Gather, norm if it comes before, project."""
        return self._project(gather_patches(values, self.factor))

    def merge_phases(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B sh sw h w D"]:
        """With a norm that comes before folded into the projection, so that no patches are gathered.

        Not where somebody has put another projection in place, or listens by hooks: neither module is called.
        """
        parts = (self.norm, self.reduction)
        heard = any(module._forward_hooks or module._forward_pre_hooks for module in parts)
        if heard or type(self.reduction) is not ScoringLinear or not all_phases.fits(values, self.factor, self.factor):
            return super().merge_phases(values)
        bias = self.reduction.bias
        if isinstance(self.norm, nn.LayerNorm) and self.norm_position == "before":
            weight, added = fold_norm(self._weight(), bias, self.norm, column_first=True)
            scale = (patch_variance(values, self.factor) + self.norm.eps).rsqrt()
            phases = all_phases.convolution_phases(values, weight, (0, 0))
            return torch.addcmul(added, phases, polyphase(scale, self.factor)[..., None], out=phases)
        phases = all_phases.convolution_phases(values, self._weight(), (0, 0))
        return phases if bias is None else phases.add_(bias)

    def _weight(self) -> Float[Tensor, "D rows columns C"]:
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


class _MergeCandidates(Candidates):
    def __init__(self, values: Tensor, layer: AdaptiveMerge, anchored: bool) -> None:
        super().__init__(values, layer.factor, anchored)
        self.layer = layer

    def features(self) -> Float[Tensor, "B H W D"]:
        gathered = gather_patches(self.content, self.stride)
        if isinstance(self.layer.norm, nn.LayerNorm) and self.layer.norm_position == "before":
            gathered = self.arithmetic.layer_norm(gathered, self.layer.norm)
        merged = self.arithmetic.linear(gathered, self.layer.reduction.weight)
        bias = self.layer.reduction.bias
        return merged if bias is None else merged + bias.detach()

    def position_energy(self) -> Float[Tensor, "parts B H W"]:
        layer = self.layer
        norm = layer.norm if layer.norm_position == "before" and isinstance(layer.norm, nn.LayerNorm) else None
        return projected_energy(self.content, layer._weight(), layer.reduction.bias, norm, (0, 0), column_first=True)

    def dense(self) -> Float[Tensor, "B H W D"]:
        return self.layer.merge(self.content)


def gather_patches(values: Float[Tensor, "B H W C"], patch: Pair) -> Float[Tensor, "B H W PPC"]:
    """The tokens of the patch that starts at every position, column by column as in timm."""
    views = shifted_views(values, patch)
    return torch.cat([row[column] for column in range(patch[1]) for row in views], 3)


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

    def candidates(self, tokens: Tokens) -> Candidates:
        """Strided convolutions at each phase."""
        values, wanted = tokens.values, self.proj.in_channels
        if values.shape[3] != wanted:
            raise ValueError(f"tokens of {values.shape[3]} channels: this layer was made for {wanted}")
        image = values.permute(0, 3, 1, 2)
        return PatchCandidates(image, self.proj, self.factor, self.padding, tokens.grid.anchored)

    def merge(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W D"]:
        """The convolution at stride 1."""
        return conv_tokens(values, self.proj, (1, 1), self.padding, self.pad_mode)

    def merge_phases(self, values: Float[Tensor, "B H W C"]) -> Float[Tensor, "B sh sw h w D"]:
        """The convolution at stride 1, in the way that is faster here."""
        conv = self.proj
        if conv.groups > 1 or not all_phases.fits(values, pair(conv.kernel_size), self.factor):
            return super().merge_phases(values)
        phases = all_phases.convolution_phases(values, conv.weight.permute(0, 2, 3, 1), self.padding)
        return phases if conv.bias is None else phases.add_(conv.bias)

    def merge_from(self, values: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"]) -> Float[Tensor, "B h w D"]:
        """The convolution from ``start`` on."""
        return conv_tokens(values, self.proj, self.factor, self.padding, self.pad_mode, start)

    def finish(self, merged: Float[Tensor, "B h w D"]) -> Float[Tensor, "B h w D"]:
        """The norm."""
        return self.norm(merged)

    def _merges_all(self, tokens: Tokens) -> bool:
        """Zeros are put around the frame that was chosen, and the others know nothing of it."""
        return self.pad_mode == "circular" and super()._merges_all(tokens)
