"""All layers under test, by name."""

from collections.abc import Callable

from torch import nn

import trueshift as ts
from trueshift.ops.selection.exact import exact_sum


class Busiest(ts.Criterion):
    """What a user would write: a few lines, one function of one position, which knows nothing of axes."""

    def position_scores(self, features):
        return exact_sum(features.abs().sqrt(), (3,))


class OnPixels(nn.Module):
    """Apply a layer of tokens to the pixels of an image."""

    def __init__(self, layer: nn.Module, fixed_rows: bool = False) -> None:
        super().__init__()
        self.layer, self.fixed_rows = layer, fixed_rows

    def forward(self, image):
        return self.layer(ts.Tokens.of_image(image, self.fixed_rows))


class InWindows(nn.Module):
    """A Tensor -> Tensor block on tokens, as a residual."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, tokens):
        return ts.Tokens(tokens.values + self.block(tokens.values), tokens.grid)


def make_layers(size: int) -> dict[str, Callable[[], nn.Module]]:
    """Layers whose output is bit-identical under every circular shift of an image of ``size`` (a multiple of 8)."""
    return {
        "tokenize": lambda: ts.AdaptiveTokenize(3, 24, 4, norm_layer=nn.LayerNorm),
        "tokenize, no anchor": lambda: ts.AdaptiveTokenize(3, 24, 4, anchor=False),
        "tokenize, overlapping": lambda: ts.AdaptiveTokenize(3, 24, 4, kernel_size=7, padding=2),
        "tokenize, oblong": lambda: ts.AdaptiveTokenize(3, 8, (2, 8), anchor=False),
        "tokenize, p = 2.5": lambda: ts.AdaptiveTokenize(3, 8, 2, criterion=ts.MaxNorm(2.5), anchor=False),
        "tokenize, p = inf": lambda: ts.AdaptiveTokenize(3, 8, 2, criterion=ts.MaxNorm(float("inf"))),
        "tokenize, learned": lambda: ts.AdaptiveTokenize(3, 8, 2, criterion=ts.LearnedScore(8)),
        "align": lambda: OnPixels(ts.AlignWindows(8)),
        "align, one window": lambda: OnPixels(ts.AlignWindows(size)),
        "align, one window high": lambda: OnPixels(ts.AlignWindows((size, 8), p=1)),
        "align, learned": lambda: OnPixels(ts.AlignWindows(8, criterion=ts.LearnedScore(3))),
        "merge, norm before": lambda: OnPixels(ts.AdaptiveMerge(3)),
        "merge, norm after": lambda: OnPixels(ts.AdaptiveMerge(3, norm="after", anchor=True)),
        "merge, convolution": lambda: OnPixels(ts.AdaptiveConvMerge(3, 8)),
        "merge, depthwise": lambda: OnPixels(ts.AdaptiveConvMerge(3, 3, groups=3, anchor=True)),
        "anchor": lambda: OnPixels(ts.Anchor()),
        "anchored attention": lambda: nn.Sequential(
            ts.AdaptiveTokenize(3, 16, 8), ts.CircularAttention(16, 2, size // 8)
        ),
        "stages": lambda: nn.Sequential(
            ts.AdaptiveTokenize(3, 16, 2, norm_layer=nn.LayerNorm),
            ts.AlignWindows(4),
            InWindows(ts.WindowAttention(16, 4, 2)),
            ts.AdaptiveMerge(16),
            ts.AlignWindows(size // 4),
            InWindows(ts.WindowAttention(32, size // 4, 2)),
        ),
    }


LAYERS = tuple(make_layers(32))
