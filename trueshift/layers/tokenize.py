r"""A-token: cut the image into patches on a grid that its content chooses.

.. math:: \text{A-token}(x) = X^{(m^\star)} E, \quad m^\star = \arg\max_{m < L} F(X^{(m)} E)
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..criteria import Candidates, Criterion, MaxNorm, values_on_grid
from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.polyphase import polyphase
from ..ops.geometry.shift import Pair, pair
from ..ops.nn.conv import PADDINGS, conv_on_circle, conv_tokens, project_patches
from ..ops.selection.choose import Choice
from ..ops.selection.gram_energy import patch_energy
from ..ops.selection.projection_energy import projected_energy
from .anchor import anchor_on_seam


class PatchCandidates(Candidates):
    """The tokenizations of an image (or of tokens) by one strided convolution, at each of its phases."""

    def __init__(
        self, content: Float[Tensor, "B H W C"], conv: nn.Conv2d, stride: Pair, padding: Pair, anchored: bool = False
    ) -> None:
        super().__init__(content, stride, anchored)
        self.conv, self.padding = conv, padding

    def features(self) -> Float[Tensor, "B H W D"]:
        """The projection of the patch that starts at each pixel."""
        features = self.arithmetic.conv(self.content, self.conv.weight, self.padding, self.conv.groups)
        return features if self.conv.bias is None else features + self.conv.bias.detach()

    def dense(self) -> Float[Tensor, "B H W D"]:
        """The same convolution at stride 1."""
        return conv_tokens(self.content, self.conv, (1, 1), self.padding)

    def fused_energy(self) -> Float[Tensor, "parts B H W"] | None:
        """By one product."""
        if self.conv.groups > 1:
            return None
        weight = self.conv.weight.permute(0, 2, 3, 1)
        return projected_energy(self.content, weight, self.conv.bias, None, self.padding, self.precision)

    def energy(self) -> Float[Tensor, "B sh sw"]:
        """All phases from the products of neighbouring pixels, unless the tokens of all phases are less work."""
        if self.anchored or self.conv.groups > 1 or self._work_by_tokens() < self._work_by_products():
            return super().energy()
        return patch_energy(self.content, self.conv.weight, self.conv.bias, self.stride, self.padding, self.pixels)

    def _work_by_tokens(self) -> int:
        """Multiplications to project the patch at every position."""
        return self.content.shape[1] * self.content.shape[2] * self.conv.weight.numel()

    def _work_by_products(self) -> int:
        """Multiplications to correlate neighbouring pixels, and to weigh the correlations for every phase."""
        (sh, sw), (kh, kw), (_, height, width, channels) = self.stride, self.conv.kernel_size, self.content.shape
        correlate = height * width * channels * (sh + kh - 1) * (sw + 2 * kw - 2) * channels
        weigh = 4 * (sh * sw) * (kh * kw) * kh * (2 * kw - 1) * channels**2  # two digits of each factor
        return correlate + weigh


class AdaptiveTokenize(nn.Module):
    """Patch embedding on the grid chosen by ``criterion``.

    Shift law: ``place(layer(S x)) == S place(layer(x))``. With ``anchor``, the values themselves are bit-identical for
    every shift, and so is everything computed from them.

    The choice is made on the projection before the norm: after it all tokens have the same energy.

    Args:
        in_chans, embed_dim: channels of the image and of the tokens.
        patch_size: stride of the grid.
        kernel_size: of the projection; the patch size if not given, never smaller.
        padding: how far the kernel reaches before the patch.
        norm_layer: makes a norm over the tokens' channels, ``nn.LayerNorm`` for example.
        criterion: :class:`~trueshift.criteria.MaxNorm` of p = 2 if not given.
        anchor: also choose which token is the first, on the wrap seam of the image.
        padding_mode: ``"circular"``; ``"zeros"`` is for the ordinary network and breaks the shift law.
    """

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
    ) -> None:
        super().__init__()
        self.patch_size = pair(patch_size)
        self.padding = pair(padding)
        self.proj = strided_conv(
            in_chans, embed_dim, kernel_size, self.patch_size, self.padding, padding_mode, bias=bias
        )
        self.norm = norm_layer(embed_dim) if norm_layer else nn.Identity()
        self.criterion = criterion or MaxNorm()
        self.anchor = anchor
        self.pad_mode = padding_mode

    def choose(self, image: Float[Tensor, "B C H W"]) -> Choice:
        """Where the grid of tokens starts."""
        candidates = PatchCandidates(image.permute(0, 2, 3, 1), self.proj, self.patch_size, self.padding)
        choice = self.criterion.choose(candidates)
        return anchor_on_seam(choice, candidates) if self.anchor else choice

    def forward(self, image: Float[Tensor, "B C H W"]) -> Tokens:
        """Tokens ``[B, H / patch, W / patch, embed_dim]`` and the grid they stand on."""
        check_image(image, self.proj.in_channels, self.patch_size)
        choice = self.choose(image)

        values = values_on_grid(
            choice,
            lambda: project_patches(image, self.proj, choice.offset, self.patch_size, self.padding, self.pad_mode),
            lambda: polyphase(self._project_everywhere(image), self.patch_size),
        )
        normed = self.norm(values)
        anchored = self.anchor and choice.weights is None
        grid = TokenGrid.of_image(image).advance(choice.offset, self.patch_size, anchored)
        return Tokens(normed, grid, before_norm=None if normed is values else values)

    def _project_everywhere(self, image: Tensor) -> Tensor:
        return conv_on_circle(image, self.proj, (1, 1), self.padding, self.pad_mode).permute(0, 2, 3, 1)


def strided_conv(
    in_channels: int,
    out_channels: int,
    kernel_size: int | Pair | None,
    stride: Pair,
    padding: Pair,
    padding_mode: str,
    groups: int = 1,
    bias: bool = True,
) -> nn.Conv2d:
    """The projection of patches as a convolution, after a look at its sizes."""
    kernel = stride if kernel_size is None else pair(kernel_size)
    if kernel[0] < stride[0] or kernel[1] < stride[1]:
        raise ValueError(f"kernel {kernel}: needs to be at least the stride {stride}, or pixels are skipped")
    if not (0 <= padding[0] < kernel[0] and 0 <= padding[1] < kernel[1]):
        raise ValueError(f"padding {padding}: needs to be less than the kernel {kernel}")
    if padding_mode not in PADDINGS:
        raise ValueError(f"padding_mode {padding_mode!r}: needs one of {PADDINGS}")
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=bias)


def check_image(image: Tensor | torch.fx.Proxy, channels: int, multiple: Pair) -> None:
    """Refuse what cannot be tokenized, and say what could."""
    if isinstance(image, torch.fx.Proxy):
        raise NotImplementedError(
            "torch.fx traces without an image, and sizes and choices go by the image: needs features_only=True, "
            "forward_intermediates, forward hooks or torch.export.export"
        )
    if image.dim() != 4:
        raise ValueError(f"an image batch of shape {tuple(image.shape)}: needs [B, {channels}, H, W]")
    if image.shape[0] == 0:
        raise ValueError("an empty batch: needs at least one image")
    if image.shape[1] != channels:
        raise ValueError(f"{image.shape[1]} channels: this layer was made for {channels}")
    if not image.is_floating_point():
        raise TypeError(f"an image of {image.dtype}: needs a floating-point type, e.g. image.float() / 255")
    check_size(tuple(image.shape[2:]), multiple)


def check_size(size: tuple[int, ...], multiple: Pair) -> None:
    """Refuse a size that a grid of this stride does not divide, and name the nearest ones that it does."""
    for name, length, step in zip(("height", "width"), size, multiple, strict=True):
        if length % step or length == 0:
            below, above = length // step * step, (length // step + 1) * step
            near = f"{below} or {above}" if below else f"{above}"
            raise ValueError(f"{name} {length}: needs a multiple of {step}, e.g. {near}")
