"""What the tokenizer and all merges share: choose a grid of patches, project the patches on it, norm."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from ..criteria import Candidates, Criterion, Spot
from ..ops.geometry.grid import Tokens
from ..ops.geometry.polyphase import polyphase
from ..ops.geometry.shift import Pair, circular_take, modulo
from ..ops.geometry.windows import token_norm
from ..ops.nn.autocast import network_precision, without_autocast
from ..ops.selection.choose import Choice, choose, values_on_grid
from ..ops.selection.gram_energy import patch_energy
from ..ops.selection.projection_energy import projected_energy
from .checks import check_padding, check_size, refuse_scripting


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
            return candidates, Choice(modulo(start, tokens.grid.shape))  # kernels do not wrap around below 0
        # grids that are mixed have no first token, and those of a spot start at the border
        if self.anchor and choice.weights is None and choice.spot is None:
            with torch.no_grad(), without_autocast(tokens.values):
                choice = replace(choice, offset=self.anchor_offset(candidates, choice.offset))
        return candidates, choice

    def anchor_offset(self, candidates: Candidates, offset: Int64[Tensor, "B 2"]) -> Int64[Tensor, "B 2"]:
        """The token of the largest norm on the chosen grid."""
        stride, phases = candidates.stride, candidates.phases
        norms = of_columns(circular_take(token_norm(candidates.content), offset, stride), candidates.fixed_rows)
        token = choose((norms,), lambda needed: circular_take(candidates.keys(needed), offset, phases)).offset
        return torch.stack([offset[:, axis] + stride[axis] * token[:, axis] for axis in (0, 1)], 1)

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
        self.precision = network_precision(self.content)  # of the layer, in which anchored content is scored
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


def of_columns(norms: Float[Tensor, "B H W"], fixed_rows: bool) -> Float[Tensor, "B h W"]:
    """The largest of each column, where rows are fixed."""
    return norms.amax(1, keepdim=True) if fixed_rows else norms


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
