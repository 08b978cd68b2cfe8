"""The tester is tested: it must reject what does not move with the image, and say where."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.ops.geometry.shift import pair
from trueshift.testing import assert_equivariant, assert_invariant, hostile_images, photographs

FIXED = ts.FixedOffset()
STRIDED = ts.AdaptiveTokenize(3, 8, 4, criterion=FIXED, anchor=False)
GRID = ts.TokenGrid((4, 4), torch.tensor([[1, 2], [3, 0]]), (32, 32))
TOKENS = ts.Tokens(torch.rand(2, 8, 8, 6), GRID)
SMALL = torch.rand(2, 3, 16, 16)
STRIPES = (torch.arange(8) % 2 == 0).float().expand(1, 3, 8, 8)
ONE_PIXEL = torch.zeros(1, 1, 8, 8)
ONE_PIXEL[0, 0, 0, 0] = 1
BUFFER = torch.zeros(1, 1)
rejects = partial(pytest.raises, AssertionError)


def first(image):
    return image[:, 0, 0, :1]


def in_plain_float32(image):
    """A choice by a rounded sum is right nearly always, and that is not enough."""
    best = image.square().sum(1).view(-1, 8, 4, 8, 4).sum((1, 3)).flatten(1).argmax(1)
    offset = torch.stack([best // 4, best % 4], 1)
    values = ts.circular_shift(image, offset, (2, 3)).permute(0, 2, 3, 1)[:, ::4, ::4]
    return ts.Tokens(values, ts.TokenGrid.of_image(image).advance(offset, 4))


def nearly(image):
    """Wrong for one shift of all."""
    return image + (image[:, 0, 3, 5] == 1).float().view(-1, 1, 1, 1) * 1e-3


def not_a_number(image):
    return image.masked_fill(image[:, :1, :1, :1] == image.amax(), float("nan"))


@pytest.mark.parametrize(
    ("right", "wrong", "x", "options", "message"),
    [
        (None, STRIDED, None, {"shifts": 8}, r"does not hold for \d+ of 8 shifts"),
        (None, in_plain_float32, None, {"shifts": 40}, "does not hold"),
        (None, nearly, ONE_PIXEL, {"shifts": "all"},
         r"1 of 64 shifts.*\n.*image 0 shifted by \(5, 3\), output 0.*expected .*, got "),
        (None, not_a_number, torch.rand(1, 1, 4, 4), {"shifts": "all"}, "nan"),
        *((ts.AlignWindows(window), ts.AlignWindows(window, criterion=ts.FixedOffset(1)), TOKENS, {"shifts": 16},
           "does not hold")
          for window in (4, 8, (4, 8))),
        (ts.AdaptiveMerge(6), ts.AdaptiveMerge(6, criterion=FIXED), TOKENS, {"shifts": "all"}, "does not hold"),
        (*(nn.Conv2d(3, 8, 3, padding=1, padding_mode=mode) for mode in ("circular", "zeros")), SMALL,
         {"tolerance": 1e-6}, "does not hold"),
        # an input that repeats may choose any of its equal grids, but no other
        (ts.AdaptiveTokenize(3, 8, 4, anchor=False), None, STRIPES, {"shifts": "all"}, ""),
        (None, STRIDED, STRIPES + ONE_PIXEL, {"shifts": "all"}, "does not hold"),
    ],
)  # fmt: skip
def test_what_moves_with_the_image_and_what_does_not(right, wrong, x, options, message):
    if right is not None:
        assert_equivariant(right, x, **options)
    if wrong is not None:
        with rejects(match=message):
            assert_equivariant(wrong, x, **options)


def test_a_wrong_invariant_names_the_image():
    with rejects(match="one bright pixel"):
        assert_invariant(lambda x: x[:, :, 3, 5])


def test_accepts_lists_numbers_and_modules_that_write_into_their_input():
    tokenize = ts.AdaptiveTokenize(3, 8, 2)
    assert_equivariant(lambda x: [tokenize(x), (x, ts.Tokens.of_image(x))], shifts=16)
    assert_invariant(lambda image: image.amax((1, 2, 3)))
    before = SMALL.clone()
    assert_equivariant(nn.SiLU(inplace=True), SMALL)
    assert torch.equal(SMALL, before)


@pytest.mark.parametrize("criterion", [ts.MaxNorm(), ts.Spot()])
def test_anchored_tokens_may_move_and_their_spot_moves_along(criterion):
    images = torch.stack(list(hostile_images(32).values())[::3])
    tokens = ts.AdaptiveTokenize(3, 16, 2, criterion=criterion)(images)
    assert tokens.grid.anchored
    assert_equivariant(ts.AdaptiveMerge(16, criterion=criterion), tokens, shifts=12, tolerance=1e-5)
    with rejects(match="does not hold"):
        assert_equivariant(ts.AdaptiveMerge(16, criterion=FIXED), tokens, shifts=4, tolerance=1e-5)


def test_class_tokens_and_tokens_before_a_norm_are_given_and_compared():
    tokens = ts.Tokens(torch.ones(2, 8, 8, 6), GRID, torch.rand(2, 1, 6), torch.rand(2, 8, 8, 6))
    align = ts.AlignWindows(4)
    assert_equivariant(lambda x: align(replace(x, values=x.values.mul_(2) + x.before_norm)), tokens, shifts=8)
    assert (tokens.values == 1).all()
    for assert_law in (assert_equivariant, assert_invariant):
        assert_law(lambda x: replace(x, prefix=2 * x.prefix), tokens, shifts=4)
        with rejects(match="output 1 at"):
            assert_law(lambda x: replace(x, prefix=x.before_norm[:, 0]), tokens, shifts=4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda image: torch.complex(first(image) * 0, first(image)),
        lambda image: 2**60 + (100 * first(image)).long(),
        lambda image: BUFFER.copy_(first(image)),
        lambda image: [],
        lambda image: image.sum(),
        lambda image: [first(image)] * (1 + int(first(image)[0, 0] > 0.5)),
    ],
    ids=["imaginary part", "large integers", "one buffer", "nothing", "a number", "another number of outputs"],
)
def test_rejects_what_only_looks_invariant(wrong):
    with rejects():
        assert_invariant(wrong, torch.tensor([[[[0.2, 0.9], [0.6, 0.4]]]]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: assert_equivariant(lambda x: x, torch.rand(3, 4, 4)), ValueError, r"needs images \[B, C, H, W\]"),
        (lambda: assert_equivariant(lambda x: x, shifts=0), ValueError, "positive number or 'all'"),
        (lambda: assert_equivariant(lambda x: x, shifts="some"), ValueError, "positive number or 'all'"),
        (lambda: assert_equivariant(lambda x: "text"), TypeError, "returned str"),
        (lambda: assert_equivariant(lambda x: x[..., ::2]), AssertionError, "return Tokens"),
    ],
)
def test_misuse(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(("size", "channels"), [(16, 1), ((8, 24), 3), ((41, 7), 5)])
def test_images_have_the_size_asked_for(size, channels):
    images = torch.stack(list(hostile_images(size, channels).values()))
    assert images.shape[1:] == (channels, *pair(size))
    assert len(images) > 35
    assert images.isfinite().all()
    photos = torch.stack(list(photographs(64).values()))
    assert photos.shape == (6, 3, 64, 64)
    assert photos.flatten(1).std(1).min() > 0.02
