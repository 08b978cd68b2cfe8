"""Bad input is refused, in words that name what would be right."""

import numpy as np
import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.ops.geometry.shift import circular_shift

pytestmark = pytest.mark.usefixtures("our_errors")


def tokens(*shape):
    return ts.Tokens.of_image(torch.rand(*shape))


def bad_pixel(value):
    image = torch.rand(2, 3, 32, 32)
    image[1, 2, 3, 4] = value
    return image


class Forgot(ts.Criterion):
    def position_scores(self, features):
        return features.abs()  # of each channel


GRID = ts.TokenGrid.of_image(torch.rand(1, 1, 4, 4))
FIXED = ts.TokenGrid.of_image(torch.rand(1, 1, 4, 4), fixed_rows=True)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (torch.rand(1, 3, 30, 32), ValueError, "height 30: needs a multiple of 4, e.g. 28 or 32"),
        (torch.rand(1, 3, 32, 3), ValueError, "width 3: needs a multiple of 4, e.g. 4"),
        (torch.rand(3, 32, 32), ValueError, r"needs \[B, 3, H, W\]"),
        (torch.rand(1, 4, 32, 32), ValueError, "4 channels: this layer was made for 3"),
        (torch.rand(0, 3, 32, 32), ValueError, "empty batch"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), TypeError, "floating-point"),
        (bad_pixel(float("nan")), ValueError, "NaN or infinity"),
        (bad_pixel(float("inf")), ValueError, "NaN or infinity"),
    ],
)
def test_tokenize(image, error, message):
    with pytest.raises(error, match=message):
        ts.AdaptiveTokenize(3, 8, 4)(image)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ts.AdaptiveMerge(3)(ts.Tokens.of_image(bad_pixel(float("nan")))), "NaN or infinity"),
        (lambda: ts.AlignWindows(8)(ts.Tokens.of_image(bad_pixel(float("nan")))), "NaN or infinity"),
        (lambda: ts.AdaptiveMerge(3)(tokens(1, 3, 7, 8)), "height 7: needs a multiple of 2, e.g. 6 or 8"),
        (lambda: ts.AdaptiveMerge(4)(tokens(1, 3, 8, 8)), "tokens of 3 channels: this layer was made for 4"),
        (lambda: ts.AlignWindows(7)(tokens(1, 3, 14, 16)), "width 16: needs a multiple of 7, e.g. 14 or 21"),
        (lambda: ts.AlignWindows(16)(tokens(1, 3, 8, 8)), "height 8: needs a multiple of 16, e.g. 16"),
        (lambda: ts.WindowAttention(4, 3, 2)(torch.rand(1, 8, 9, 4)), "height 8: needs a multiple of 3, e.g. 6 or 9"),
        (lambda: ts.WindowAttention(5, 3, 2), "5 channels: needs a multiple of the 2 heads"),
        (lambda: ts.CircularAttention(3, 1, 5)(tokens(1, 3, 8, 8)), "height 8: needs a multiple of the 5 steps"),
        (lambda: ts.CircularConv2d(3, 3, 3, stride=2)(torch.rand(1, 3, 7, 8)), "height 7: needs a multiple of 2"),
        (lambda: ts.AdaptiveTokenize(3, 8, 4, kernel_size=3), "needs to be at least the stride"),
        (lambda: ts.AdaptiveTokenize(3, 8, 4, kernel_size=7, padding=7), "less than the kernel"),
        (lambda: ts.AdaptiveTokenize(3, 8, 4, padding_mode="reflect"), "needs one of"),
        (lambda: ts.AdaptiveMerge(3, norm="twice"), "needs 'before', 'after' or 'none'"),
        (lambda: ts.MaxNorm(0.5), "p >= 1"),
        (lambda: ts.MaxNorm(float("nan")), "p >= 1"),
        (lambda: ts.AlignWindows(4, criterion=ts.MaxNorm(1)), "needs p > 1"),
        (lambda: ts.AlignWindows(4, p=0), "p = 0: needs p > 0"),
        (lambda: ts.CircularConv2d(3, 3, 3, padding=3), "less than the kernel"),
        (lambda: ts.LearnedScore(3, mode="hard"), "needs 'straight_through' or 'soft'"),
        (lambda: ts.LearnedScore(3, temperature=0.0), "needs to be positive"),
        (lambda: ts.LearnedScore(3, final_temperature=0), "final_temperature 0: needs to be positive"),
        (
            lambda: ts.CircularRelativePosition(4, 2)(GRID, ts.Tokens.of_image(torch.rand(1, 3, 4, 4), True).grid),
            "both",
        ),
        (lambda: ts.AdaptiveTokenize(3, 8, 4, criterion=Forgot())(bad_pixel(0)), r"needs \(2, 32, 32\), one for each"),
        (lambda: ts.AlignWindows(8, criterion=Forgot())(tokens(1, 3, 8, 8)), r"needs \(1, 8, 8\), one for each"),
        (lambda: ts.Tokens(torch.rand(1, 4, 4), GRID), r"needs \[B, h, w, C\]"),
        (lambda: ts.Tokens(torch.rand(1, 4, 5, 2), GRID), "tokens on a grid of"),
        (lambda: circular_shift(torch.rand(2, 4, 4, 1), torch.zeros(3, 2, dtype=torch.int64)), r"needs \[2, 2\]"),
        (lambda: ts.resample(tokens(1, 3, 8, 8), ts.TokenGrid.of_image(torch.rand(1, 3, 4, 8))), "same image"),
        (lambda: ts.resample(tokens(1, 3, 8, 8), tokens(1, 3, 8, 8).grid, mode="cubic"), "'bilinear' or 'nearest'"),
    ],
)
def test_the_error_names_what_would_be_right(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_criterion_without_scores():
    with pytest.raises(NotImplementedError, match="Criterion needs position_scores"):
        ts.AlignWindows(4, criterion=ts.Criterion())(tokens(1, 3, 8, 8))


@pytest.mark.parametrize("make", [lambda: ts.AdaptiveTokenize(3, 8, 4), lambda: ts.canonicalize(nn.Identity())])
def test_what_is_no_tensor(make):
    with pytest.raises(TypeError, match=r"an image of the type ndarray: needs a tensor \[B, 3, H, W\]"):
        make()(np.zeros((1, 3, 32, 32), np.float32))
