r"""A-token: cut the image into patches on a grid that its content chooses, and choose which token is the first.

.. math:: \text{A-token}(x) = X^{(m^\star)} E, \quad m^\star = \arg\max_{m < L} F(X^{(m)} E)

After the choice of a phase, two shifted images hold the same tokens up to a roll. In floating point that is not enough:
a kernel may round a token differently at another position. An anchor rolls the tokens to a frame that moves with the
content, so all that follows is bit-identical on any kernel.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from ..criteria import Candidates, Criterion, MaxNorm, Spot
from ..ops.geometry.grid import Tokens, displacements, mean_of_each
from ..ops.geometry.polyphase import polyphase
from ..ops.geometry.shift import Pair, circular_shift, circular_take, fixes_rows, pair
from ..ops.geometry.windows import token_norm
from ..ops.nn.autocast import without_autocast
from ..ops.nn.conv import PADDINGS, conv_tokens, project_patches
from ..ops.selection.choose import Choice, choose, values_on_grid
from ..ops.selection.content_hash import first_row, origin_keys
from ..ops.selection.gram_energy import patch_energy
from ..ops.selection.plain import plain_norm
from ..ops.selection.projection_energy import projected_energy
from .frame import FrameFinder


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
                return choose((_of_columns(plain_norm(values), fixed_rows),), None)
            norms = _of_columns(token_norm(values), fixed_rows)
            return choose((norms,), lambda needed: first_row(origin_keys(values, needed), fixed_rows))

    def forward(self, tokens: Tokens) -> Tokens:
        """Roll values and grid together."""
        offset = self.choose(tokens).offset
        before_norm = None if tokens.before_norm is None else circular_shift(tokens.before_norm, offset)
        values = circular_shift(tokens.values, offset)
        return Tokens(values, tokens.grid.advance(offset, anchored=True), tokens.prefix, before_norm)


def _of_columns(norms: Float[Tensor, "B H W"], fixed_rows: bool) -> Float[Tensor, "B h W"]:
    """The largest of each column, where rows are fixed."""
    return norms.amax(1, keepdim=True) if fixed_rows else norms


class PatchLayer(nn.Module):
    """Choose a grid, project the patches on it, norm: what the tokenizer and all merges share.

    ``merge(values, start)`` projects patches side by side from ``start`` on, or the patch at every position if it is
    None.
    """

    dim: int  # channels of the input
    factor: Pair
    norm: nn.Module
    criterion: Criterion
    anchor: bool
    norm_position = "after"
    pad_mode = "circular"
    grids: Callable[[Any, Tokens], "PatchGrids"]
    merge: Callable[..., Tensor]

    def __prepare_scriptable__(self) -> Any:
        refuse_scripting()

    def scored_as_merged(self) -> bool:
        """Whether patches projected at every position are what the layer makes of them, wherever patches start."""
        return self.pad_mode == "circular"  # zeros surround the chosen frame

    def choose(self, tokens: Any) -> Choice:
        """Where the new grid starts, in tokens."""
        return self._chosen(tokens)[1]

    def _chosen(self, tokens: Tokens, start: Tensor | None = None) -> tuple["PatchGrids", Choice]:
        candidates = self.grids(self, tokens)
        if start is None:
            choice = self.criterion.choose(candidates)
        elif isinstance(self.criterion, Spot):
            choice = self.criterion.start_at(candidates, start)
        else:
            return candidates, Choice(start)
        # grids that are mixed have no first token, and those of a spot start at the border
        if self.anchor and choice.weights is None and choice.spot is None:
            with torch.no_grad(), without_autocast(tokens.values):
                choice = replace(choice, offset=self.anchor_offset(candidates, choice.offset))
        return candidates, choice

    def anchor_offset(self, candidates: Candidates, offset: Int64[Tensor, "B 2"]) -> Int64[Tensor, "B 2"]:
        """The token of the largest norm on the chosen grid."""
        grids, norms = candidates, token_norm(candidates.content)
        norms = _of_columns(circular_take(norms, offset, grids.stride), grids.fixed_rows)
        token = choose((norms,), lambda needed: circular_take(grids.keys(needed), offset, grids.phases)).offset
        return torch.stack([offset[:, i] + candidates.stride[i] * token[:, i] for i in (0, 1)], 1)

    def forward(self, tokens: Any, start: Int64[Tensor, "B 2"] | None = None) -> Tokens:
        """Tokens on a grid of ``factor`` times the stride: the chosen one, or the one that starts at ``start``.

        Where a spot chooses, ``start`` is another pixel to take for it.
        """
        check_size(tokens.grid.shape, self.factor)
        candidates, choice = self._chosen(tokens, start)
        merged = candidates.merged_at(choice)
        finished = self.norm(merged) if self.norm_position == "after" else merged
        anchored = self.anchor and choice.weights is None
        grid = tokens.grid.advance(choice.offset, self.factor, anchored, choice.spot)
        # a class token has no position on the new grid
        return Tokens(finished, grid, before_norm=None if finished is merged else merged)


class LayerGrids(Candidates):
    """The grids of a layer that may know the border of a photograph."""

    def __init__(self, layer: Any, tokens: Tokens) -> None:
        super().__init__(tokens.values, layer.factor, tokens.grid)
        self.layer, self.frame = layer, getattr(layer, "frame", None)

    def find_first(self, stride: Pair, offset: Int64[Tensor, "B 2"] | None = None) -> Int64[Tensor, "B 2"]:
        """Where a closed border is, the image's own while training."""
        if self.frame is not None and self.layer.closed and self.layer.training:
            return torch.zeros_like(self.grid.origin) if offset is None else offset
        return super().find_first(stride, offset)

    def border(self) -> tuple[Float64[Tensor, "B H"], Float64[Tensor, "B W"]]:
        """With more care, where the frame matters."""
        return super().border() if self.frame is None else self.frame(self.pixels)


class PatchGrids(LayerGrids):
    """The grids of a layer's patches. In float32, patches that were projected to be scored are not projected again."""

    def __init__(self, layer: Any, tokens: Tokens) -> None:
        channels = tokens.values.shape[3]
        if channels != layer.dim:
            raise ValueError(f"tokens of {channels} channels: this layer was made for {layer.dim}")
        super().__init__(layer, tokens)
        self._merged: Tensor | None = None
        plain = self.anchored and self.precision == torch.float32 and not torch.is_grad_enabled()
        self.reusable = plain and layer.scored_as_merged()

    @abstractmethod
    def exact_features(self) -> Float[Tensor, "B H W D"]:
        """The projection of the patch that starts at each position, by ``self.arithmetic``."""

    def features(self) -> Float[Tensor, "B H W D"]:
        """The same, by the layer where it can be reused."""
        if not self.reusable:
            return self.exact_features()
        if self._merged is None:
            self._merged = self.dense()
        return self._merged

    def dense(self) -> Float[Tensor, "B H W D"]:
        """The same by the layer itself."""
        return self.layer.merge(self.content)

    def merged_at(self, choice: Choice) -> Float[Tensor, "B h w D"]:
        """The projected patches on the chosen grid."""
        if self._merged is not None:
            return circular_take(self._merged, choice.offset, self.stride)
        return values_on_grid(
            choice,
            lambda: self.layer.merge(self.content, choice.offset),
            lambda: polyphase(self.layer.merge(self.content), self.stride),
        )


class PatchCandidates(PatchGrids):
    """The tokenizations of an image (or of tokens) by one strided convolution, at each of its phases."""

    def __init__(self, layer: Any, tokens: Tokens) -> None:
        super().__init__(layer, tokens)
        self.conv, self.padding = layer.proj, layer.padding

    def exact_features(self) -> Float[Tensor, "B H W D"]:
        """The convolution at stride 1."""
        features = self.arithmetic.conv(self.content, self.conv.weight, self.padding, self.conv.groups)
        return features if self.conv.bias is None else features + self.conv.bias.detach()

    def fused_energy(self) -> Float[Tensor, "parts B H W"] | None:
        """By one product."""
        if self.conv.groups > 1:
            return None
        weight = self.conv.weight.permute(0, 2, 3, 1)
        return projected_energy(self.content, weight, self.conv.bias, None, self.padding, self.precision)

    def energy(self) -> Float[Tensor, "B sh sw"]:
        """All phases from the products of neighbouring pixels, unless the tokens of all phases are less work."""
        (sh, sw), (kh, kw), (_, height, width, channels) = self.stride, self.conv.kernel_size, self.content.shape
        by_tokens = height * width * self.conv.weight.numel()
        correlate = height * width * channels * (sh + kh - 1) * (sw + 2 * kw - 2) * channels
        weight = 4 * (sh * sw) * (kh * kw) * kh * (2 * kw - 1) * channels**2  # two digits of each factor
        if self.anchored or self.conv.groups > 1 or by_tokens < correlate + weight:
            return super().energy()
        return patch_energy(self.content, self.conv.weight, self.conv.bias, self.stride, self.padding, self.pixels)


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


def strided_conv(
    in_channels: int,
    out_channels: int,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    padding_mode: str,
    groups: int = 1,
    bias: bool = True,
) -> nn.Conv2d:
    """The projection of patches as a convolution, its sizes checked."""
    if kernel[0] < stride[0] or kernel[1] < stride[1]:
        raise ValueError(f"kernel {kernel}: needs to be at least the stride {stride}, or pixels are skipped")
    check_padding(kernel, padding, padding_mode)
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=bias)


def check_padding(kernel: Pair, padding: Pair, mode: str) -> None:
    """Refuse a kernel that would not reach over its own position, and padding of another kind."""
    if not (0 <= padding[0] < kernel[0] and 0 <= padding[1] < kernel[1]):
        raise ValueError(f"padding {padding}: needs to be at least 0 and less than the kernel {kernel}")
    if mode not in PADDINGS:
        raise ValueError(f"padding_mode {mode!r}: needs one of {PADDINGS}")


def refuse_scripting() -> NoReturn:
    """For ``__prepare_scriptable__``, which ``torch.jit.script`` calls first."""
    raise NotImplementedError(
        "torch.jit.script does not know the types of this network: needs torch.export.export, torch.compile or "
        "trueshift.export_onnx; of an ordinary network torch.jit.trace"
    )


def check_image(image: Tensor | torch.fx.Proxy, channels: int, multiple: Pair) -> None:
    """Refuse what cannot be tokenized, and name what could."""
    if isinstance(image, torch.fx.Proxy):
        raise NotImplementedError(
            "torch.fx traces without an image, and sizes and choices go by the image: needs features_only=True, "
            "forward_intermediates, forward hooks or torch.export.export"
        )
    if not isinstance(image, Tensor):
        raise TypeError(f"an image of the type {type(image).__name__}: needs a tensor [B, {channels}, H, W]")
    if image.dim() != 4:
        raise ValueError(f"an image batch of shape {tuple(image.shape)}: needs [B, {channels}, H, W]")
    if image.shape[0] == 0:
        raise ValueError("an empty batch: needs at least one image")
    if image.shape[1] != channels:
        raise ValueError(f"{image.shape[1]} channels: this layer was made for {channels}")
    if not image.is_floating_point():
        raise TypeError(f"an image of {image.dtype}: needs a floating-point type, e.g. image.float() / 255")
    check_size(tuple(image.shape[2:]), multiple)


def check_size(size: tuple[int, ...], multiple: Pair, what: str = "", otherwise: str = "") -> None:
    """Refuse a size that a grid of this stride does not divide; name the nearest between ``what`` and ``otherwise``."""
    for name, length, step in zip(("height", "width"), size, multiple, strict=True):
        if length % step or length == 0:
            below, above = length // step * step, (length // step + 1) * step
            near = f"{below} or {above}" if below else f"{above}"
            raise ValueError(f"{what}{name} {length}: needs a multiple of {step}, e.g. {near}{otherwise}")
