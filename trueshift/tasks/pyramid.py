"""The decoder of UperNet: features of all stages, pooled, added from coarse to fine, and fused at the finest grid.

The ordinary network works in the frame of the image. The equivariant one works in the frame of the coarsest tokens,
which an anchor has rolled, because pooling bins and rounding depend on where a map begins. Finer tokens are rolled to
the same start by whole tokens, since each grid was chosen among those of the stage before.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..layers.merge import CircularConv2d
from ..layers.tokenize import Anchor
from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.interpolate import enlarge
from ..ops.geometry.resample import start_at
from ..ops.geometry.shift import Pair, circular_pad

BINS = (1, 2, 3, 6)


class ConvNormRelu(nn.Sequential):
    """Convolution that keeps the size, batch norm, ReLU."""

    def __init__(self, inside: int, outside: int, kernel: int, padding: str) -> None:
        conv: nn.Conv2d
        if padding != "zeros" and kernel > 1:
            conv = CircularConv2d(inside, outside, kernel, bias=False, padding_mode=padding)
        else:
            conv = nn.Conv2d(inside, outside, kernel, padding=kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outside), nn.ReLU(inplace=True))

    def within_margin(self, padded: Float[Tensor, "B C PH PW"]) -> Float[Tensor, "B D h w"]:
        """The same of a map that is padded already."""
        weight = self[0].weight
        assert isinstance(weight, Tensor)
        return self[2](self[1](F.conv2d(padded, weight)))


class PyramidPooling(nn.Module):
    """Means over 1, 2 x 2, 3 x 3 and 6 x 6 parts of the map, spread over it again and fused with it.

    Shift law: none of its own: parts begin at the first token, so the tokens must come from an anchor.

    Args:
        circular: spread the means around the circle, so that there is no seam where the map begins; of rows and of
            columns, or one for both.
    """

    def __init__(
        self, inside: int, outside: int, bins: Sequence[int], padding: str, circular: bool | tuple[bool, bool]
    ) -> None:
        super().__init__()
        self.circular = circular
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(count), ConvNormRelu(inside, outside, 1, padding)) for count in bins
        )
        self.out_conv = ConvNormRelu(inside + len(bins) * outside, outside, 3, padding)

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B D h w"]:
        """Fuse each token with its surroundings at every scale."""
        size = (x.shape[2], x.shape[3])
        return self.out_conv(torch.cat([x, *(self._spread(block(x), size) for block in self.blocks)], 1))

    def _spread(self, means: Float[Tensor, "B D n n"], size: Pair) -> Float[Tensor, "B D h w"]:
        if means.shape[2] == 1:
            return means.expand(-1, -1, *size)
        return _as_maps(enlarge(means.permute(0, 2, 3, 1), size, self.circular))


class UperNetDecoder(nn.Module):
    """From the tokens of all stages to tokens on the finest of their grids.

    Shift law, with ``adaptive``: the values do not change when the image moves, bit for bit after an anchored
    backbone; the grid moves with it.

    Args:
        inside: channels of the stages, from fine to coarse.
        channels: of everything in the decoder.
        padding: of convolutions, ``"circular"``, ``"circular_width"`` or ``"zeros"``.
        adaptive: work in a frame that the content chooses, and interpolate around the border.
        fixed_rows: but not around that of rows.
    """

    def __init__(
        self,
        inside: Sequence[int],
        channels: int,
        padding: str,
        adaptive: bool,
        bins: Sequence[int] = BINS,
        fixed_rows: bool = False,
    ) -> None:
        super().__init__()
        if len(inside) < 2:
            raise ValueError(f"{len(inside)} stage: a pyramid needs at least 2")
        self.adaptive, self.circular = adaptive, (adaptive and not fixed_rows, adaptive)
        self.anchor = Anchor()
        self.feature_norms = nn.ModuleList(nn.LayerNorm(count, eps=1e-6) for count in inside)
        self.psp = PyramidPooling(inside[-1], channels, bins, padding, self.circular)
        coarse_to_fine = inside[-2::-1]
        self.fpn_lateral_blocks = nn.ModuleList(
            nn.Sequential(OrderedDict(conv_norm_relu=ConvNormRelu(count, channels, 1, padding)))
            for count in coarse_to_fine
        )
        self.fpn_conv_blocks = nn.ModuleList(ConvNormRelu(channels, channels, 3, padding) for _ in coarse_to_fine)
        self.fusion_block = ConvNormRelu(len(inside) * channels, channels, 3, padding)

    def forward(self, features: Sequence[Tokens]) -> Tokens:
        """Pool the coarsest stage, add from coarse to fine, fuse."""
        maps, grid = self._at_the_finest(features)
        stacked = torch.cat(maps[::-1], 1)
        del maps  # four maps of the finest size: nothing else in the decoder is as large
        fused = self.fusion_block.within_margin(stacked) if all(self.circular) else self.fusion_block(stacked)
        return Tokens(fused.permute(0, 2, 3, 1), grid)

    def _at_the_finest(self, features: Sequence[Tokens]) -> tuple[list[Float[Tensor, "B D H W"]], TokenGrid]:
        """The decoder's map of each stage, coarse to fine, on the finest grid; on a circle with a margin."""
        *finer, (top_norm, top) = zip(self.feature_norms, features, strict=True)
        top = self.anchor(top) if self.adaptive else top
        finest = replace(features[0].grid, origin=top.grid.origin)
        margin = 1 if all(self.circular) else 0
        state, grid = self.psp(_as_maps(top_norm(top.values))), top.grid
        maps = [self.refine(state, grid, finest, margin)]
        stages = zip(finer[::-1], self.fpn_lateral_blocks, self.fpn_conv_blocks, strict=True)
        for (norm, tokens), lateral, conv in stages:
            level = self.in_frame(tokens, finest)
            state = lateral(_as_maps(norm(level.values))) + self.refine(state, grid, level.grid)
            grid = level.grid
            if margin and grid.stride == finest.stride and not self.training:  # a norm would count the margin twice
                assert isinstance(conv, ConvNormRelu)
                maps.append(conv.within_margin(_padded(state, 2)))
            else:
                maps.append(self.refine(conv(state), grid, finest, margin))
        return maps, finest

    def in_frame(self, tokens: Tokens, grid: TokenGrid) -> Tokens:
        """Tokens of a stage, starting where a grid of the decoder starts."""
        return start_at(tokens, grid.origin) if self.adaptive else tokens

    def refine(
        self, x: Float[Tensor, "B C h w"], grid: TokenGrid, onto: TokenGrid, margin: int = 0
    ) -> Float[Tensor, "B C H W"]:
        """Interpolate to a finer grid; around the border if adaptive, otherwise held at it."""
        if grid.stride != onto.stride:
            return _as_maps(enlarge(x.permute(0, 2, 3, 1), onto.shape, self.circular, margin))
        return _padded(x, margin) if margin else x


def _padded(x: Float[Tensor, "B C h w"], margin: int) -> Float[Tensor, "B C PH PW"]:
    return _as_maps(circular_pad(x.permute(0, 2, 3, 1), (margin, margin), (margin, margin)))


def _as_maps(values: Float[Tensor, "B h w C"]) -> Float[Tensor, "B C h w"]:
    return values.permute(0, 3, 1, 2)
