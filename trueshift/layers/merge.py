r"""A-PMerge: merge neighbouring tokens on a grid that their content chooses.

Patch merging is a convolution with a stride, so the stride is taken by adaptive polyphase sampling:

.. math:: \text{A-PMerge}(T) = \text{APS}^{(P)}(T \circledast h)
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..criteria import Criterion, MaxNorm, ScoringLinear
from ..ops.geometry.blocks import cut_blocks
from ..ops.geometry.shift import Pair, pair, shifted_views
from ..ops.nn.conv import conv_on_circle, conv_tokens
from ..ops.selection.projection_energy import projected_energy
from .checks import check_padding, check_size
from .patches import PatchCandidates, PatchGrids, PatchLayer, strided_conv


class _GatheredPatches(PatchGrids):
    layer: "AdaptiveMerge"

    def exact_features(self) -> Float[Tensor, "B H W D"]:
        gathered, norm = gather_patches(self.content, self.stride), self.layer.norm_before()
        if norm is not None:
            gathered = self.arithmetic.layer_norm(gathered, norm)
        merged = self.arithmetic.linear(gathered, self.layer.reduction.weight)
        bias = self.layer.reduction.bias
        return merged if bias is None else merged + bias.detach()

    def fused_energy(self) -> Float[Tensor, "parts B H W"] | None:
        weight, bias, norm = self.layer.projection(), self.layer.reduction.bias, self.layer.norm_before()
        return projected_energy(self.content, weight, bias, norm, (0, 0), self.precision)


class AdaptiveMerge(PatchLayer):
    """Concatenate patches of ``factor`` x ``factor`` tokens and project them (Swin's PatchMerging).

    Shift law: ``place(layer(S t)) == S place(layer(t))``, to rounding of the matrix kernel; bit-identical with
    ``anchor`` here or anywhere before.

    Args:
        dim: channels before.
        out_dim: channels after; twice as many by default.
        factor: P, how many tokens are merged along each axis.
        norm: ``"before"`` the projection (Swin), ``"after"`` it (SwinV2) or ``"none"``. The choice is made on the
            projection itself: after a norm all tokens have the same energy.
        criterion: :class:`~trueshift.criteria.MaxNorm` of p = 2 by default.
        anchor: also choose which token is the first. Not needed after an anchored layer.

    >>> tokens = trueshift.AdaptiveTokenize(3, 16, 4)(torch.rand(1, 3, 32, 32))
    >>> trueshift.AdaptiveMerge(16)(tokens).values.shape
    torch.Size([1, 4, 4, 32])
    """

    grids = _GatheredPatches

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
        # registered in the order of use, as in timm: optimizers go by it
        if norm == "before":
            self.norm = nn.LayerNorm(gathered)
        self.reduction = ScoringLinear(gathered, out_dim, bias=bias)
        if norm != "before":
            self.norm = nn.LayerNorm(out_dim) if norm == "after" else nn.Identity()
        self.criterion = criterion or MaxNorm()
        self.anchor = anchor

    def merge(
        self, values: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"] | None = None
    ) -> Float[Tensor, "B h w D"]:
        """Gather, norm if it comes before, project."""
        if start is None:
            gathered = gather_patches(values, self.factor)
        else:
            gathered = cut_blocks(values, self.factor, start, column_first=True).flatten(3)
        return self.reduction(self.norm(gathered) if self.norm_position == "before" else gathered)

    def scored_as_merged(self) -> bool:
        """Not where norm or projection was replaced or has hooks, which expect the patches of one grid."""
        modules = [self.reduction] if self.norm_position == "after" else [self.reduction, self.norm]
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
        made = self.norm_position != "before" or (type(self.norm) is nn.LayerNorm and self.norm_before() is not None)
        return made and type(self.reduction) is ScoringLinear and not hooked

    def norm_before(self) -> nn.LayerNorm | None:
        """The norm before the projection, if there is one; for scores, any but a LayerNorm with a bias is left out."""
        norm = self.norm if self.norm_position == "before" else None
        return norm if isinstance(norm, nn.LayerNorm) and norm.weight is not None and norm.bias is not None else None

    def projection(self) -> Float[Tensor, "D rows columns C"]:
        """The weights of the projection, which has the tokens of a patch column by column, in the grid's order."""
        rows, columns = self.factor
        return self.reduction.weight.unflatten(1, (columns, rows, -1)).transpose(1, 2)


def gather_patches(values: Float[Tensor, "B H W C"], patch: Pair) -> Float[Tensor, "B H W PPC"]:
    """The tokens of the patch that starts at every position, column by column as in timm."""
    views = shifted_views(values, patch)
    return torch.cat([row[column] for column in range(patch[1]) for row in views], 3)


class AdaptiveConvMerge(PatchLayer):
    """Merge tokens by a strided convolution whose kernel may overlap its neighbours (CvT, MViTv2).

    Shift law: as :class:`AdaptiveMerge`. Without an anchor, its own or one in front, the choice is exact and values are
    equal to rounding: on some CPUs a convolution rounds equal windows differently at other places.

    Args:
        dim: channels before.
        out_dim: channels after.
        factor: stride, in tokens.
        kernel_size: at least the stride.
        padding: how far the kernel reaches before the nominal start of its patch.
        groups: ``dim`` for a depthwise convolution.
        padding_mode: ``"circular"``; on fixed rows ``"circular_width"``; ``"zeros"`` is for the ordinary network and
            breaks the shift law.
        norm_layer: makes a norm over the channels, after the choice.

    >>> tokens = trueshift.AdaptiveTokenize(3, 16, 4)(torch.rand(1, 3, 32, 32))
    >>> trueshift.AdaptiveConvMerge(16, 24)(tokens).values.shape
    torch.Size([1, 4, 4, 24])
    """

    grids = PatchCandidates

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
        self.dim, self.factor, self.padding, self.pad_mode = dim, pair(factor), pair(padding), padding_mode
        self.norm = norm_layer(out_dim) if norm_layer else nn.Identity()
        self.proj = strided_conv(dim, out_dim, pair(kernel_size), self.factor, self.padding, padding_mode, groups, bias)
        self.criterion = criterion or MaxNorm()
        self.anchor = anchor

    def merge(
        self, values: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"] | None = None
    ) -> Float[Tensor, "B h w D"]:
        """The convolution from ``start`` on, or at stride 1."""
        stride = (1, 1) if start is None else self.factor
        return conv_tokens(values, self.proj, stride, self.padding, self.pad_mode, start)


class CircularConv2d(nn.Conv2d):
    """``nn.Conv2d`` that keeps the size and continues the image around its border.

    Shift law: ``conv(S x) == S conv(x)`` at stride 1, to rounding: kernels may round by position (depthwise ones do),
    so for bit-identical values put an :class:`~trueshift.layers.tokenize.Anchor` before it. At stride s the law holds
    for shifts by multiples of s; :class:`AdaptiveConvMerge` makes it hold for all.

    Args:
        padding: how far the kernel reaches before each position; half the kernel by default.
        padding_mode: ``"circular_width"`` continues columns alone; above and below are zeros.

    >>> conv, image = trueshift.CircularConv2d(3, 8, 3), torch.rand(1, 3, 8, 8)
    >>> torch.allclose(conv(image.roll(1, 3)), conv(image).roll(1, 3), atol=1e-6)
    True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair | None = None,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "circular",
    ) -> None:
        kernel = pair(kernel_size)
        super().__init__(in_channels, out_channels, kernel, pair(stride), 0, groups=groups, bias=bias)
        self.reach = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2) if padding is None else pair(padding)
        check_padding(kernel, self.reach, padding_mode)
        self.pad_mode = padding_mode

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Convolve images ``[B, C, H, W]`` whose size is a multiple of the stride."""
        step = pair(self.stride)
        check_size(tuple(input.shape[2:]), step)
        return conv_on_circle(input, self, step, self.reach, self.pad_mode)
