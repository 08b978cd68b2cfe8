"""The tester is tested: it must reject what does not move with the image, and say where."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import trueshift as ts
from trueshift.testing import assert_equivariant, assert_invariant, hostile_images, photographs


def test_rejects_a_strided_convolution():
    with pytest.raises(AssertionError, match=r"does not hold for \d+ of 8 shifts"):
        assert_equivariant(ts.AdaptiveTokenize(3, 8, 4, criterion=ts.FixedOffset(), anchor=False), shifts=8)


def test_rejects_windows_that_do_not_follow_the_content():
    tokens = ts.Tokens(torch.rand(2, 8, 8, 6), ts.TokenGrid((4, 4), torch.tensor([[1, 2], [3, 0]]), (32, 32)))
    for window in (4, 8, (4, 8)):
        assert_equivariant(ts.AlignWindows(window), tokens, shifts=100)
        with pytest.raises(AssertionError, match="does not hold"):
            assert_equivariant(ts.AlignWindows(window, criterion=ts.FixedOffset(1)), tokens)


def test_rejects_selection_in_plain_float32():
    """A choice by a rounded sum is right nearly always, and that is not enough."""

    def rounded(image):
        energy = image.square().sum(1).view(-1, 8, 4, 8, 4).sum((1, 3)).flatten(1)
        best = energy.argmax(1)
        offset = torch.stack([best // 4, best % 4], 1)
        grid = ts.TokenGrid.of_image(image).advance(offset, 4)
        values = ts.circular_shift(image, offset, (2, 3)).permute(0, 2, 3, 1)[:, ::4, ::4]
        return ts.Tokens(values, grid)

    with pytest.raises(AssertionError, match="does not hold"):
        assert_equivariant(rounded, shifts=40)


def test_rejects_zero_padding_and_accepts_circular():
    zeros, circular = (nn.Conv2d(3, 8, 3, padding=1, padding_mode=mode) for mode in ("zeros", "circular"))
    assert_equivariant(circular, torch.rand(2, 3, 16, 16), tolerance=1e-6)
    with pytest.raises(AssertionError, match="does not hold"):
        assert_equivariant(zeros, torch.rand(2, 3, 16, 16), tolerance=1e-6)


def test_one_wrong_shift_of_all_is_found_and_named():
    def nearly(image):
        wrong = (image[:, 0, 3, 5] == 1).float() * 1e-3
        return image + wrong.view(-1, 1, 1, 1)

    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 0, 0] = 1
    with pytest.raises(
        AssertionError, match=r"1 of 64 shifts.*\n.*image 0 shifted by \(5, 3\), output 0.*expected .*, got "
    ):
        assert_equivariant(nearly, image, shifts="all")


def test_a_wrong_invariant_names_the_image():
    with pytest.raises(AssertionError, match="one bright pixel"):
        assert_invariant(lambda x: x[:, :, 3, 5])


def test_nan_is_never_equal_to_a_number():
    with pytest.raises(AssertionError, match="nan"):
        assert_equivariant(
            lambda x: x.masked_fill(x[:, :1, :1, :1] == x.amax(), float("nan")), torch.rand(1, 1, 4, 4), shifts="all"
        )


def test_accepts_tokens_lists_and_tokens_as_input():
    first = ts.AdaptiveTokenize(3, 8, 2)
    assert_equivariant(lambda x: [first(x), (x, ts.Tokens.of_image(x))], shifts=16)
    tokens = ts.Tokens(torch.rand(2, 8, 8, 6), ts.TokenGrid((4, 4), torch.tensor([[1, 2], [3, 0]]), (32, 32)))
    assert_equivariant(ts.AdaptiveMerge(6), tokens, shifts="all")
    with pytest.raises(AssertionError, match="does not hold"):
        assert_equivariant(ts.AdaptiveMerge(6, criterion=ts.FixedOffset()), tokens)


@pytest.mark.parametrize("criterion", [ts.MaxNorm(), ts.Spot()])
def test_anchored_tokens_may_move_and_their_spot_moves_along(criterion):
    images = torch.stack(list(hostile_images(32).values()))
    tokens = ts.AdaptiveTokenize(3, 16, 2, criterion=criterion)(images)
    assert tokens.grid.anchored
    merge = ts.AdaptiveMerge(16, criterion=criterion)
    assert_equivariant(merge, tokens, shifts=24, tolerance=1e-5)
    with pytest.raises(AssertionError, match="does not hold"):
        assert_equivariant(ts.AdaptiveMerge(16, criterion=ts.FixedOffset()), tokens, tolerance=1e-5)


def test_class_tokens_and_tokens_before_a_norm_are_given_and_compared():
    grid = ts.TokenGrid((4, 4), torch.tensor([[1, 2], [3, 0]]), (32, 32))
    tokens = ts.Tokens(torch.ones(2, 8, 8, 6), grid, torch.rand(2, 1, 6), torch.rand(2, 8, 8, 6))
    align = ts.AlignWindows(4)
    assert_equivariant(lambda x: align(replace(x, values=x.values.mul_(2) + x.before_norm)), tokens, shifts=16)
    assert (tokens.values == 1).all()
    for assert_law in (assert_equivariant, assert_invariant):
        assert_law(lambda x: replace(x, prefix=2 * x.prefix), tokens, shifts=16)
        with pytest.raises(AssertionError, match="output 1 at"):
            assert_law(lambda x: replace(x, prefix=x.before_norm[:, 0]), tokens, shifts=16)


def test_an_input_that_repeats_may_choose_any_of_its_equal_grids_but_no_other():
    stripes = (torch.arange(8) % 2 == 0).float().expand(1, 3, 8, 8).clone()
    assert_equivariant(ts.AdaptiveTokenize(3, 8, 4, anchor=False), stripes, shifts="all")
    stripes[0, 0, 0, 0] += 1  # no longer repeats: a fixed grid does not move with it
    strided = ts.AdaptiveTokenize(3, 8, 4, criterion=ts.FixedOffset(), anchor=False)
    with pytest.raises(AssertionError, match="does not hold"):
        assert_equivariant(strided, stripes, shifts="all")


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


@pytest.mark.parametrize("size", [16, (8, 24), (41, 7)])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_hostile_images_have_the_size_asked_for(size, channels):
    images = hostile_images(size, channels)
    shape = (channels, size, size) if isinstance(size, int) else (channels, *size)
    assert len(images) > 35
    assert all(
        image.shape == shape and image.dtype == torch.float32 and image.isfinite().all() for image in images.values()
    )


def test_photographs_come_with_the_package():
    photos = photographs(64)
    assert set(photos) == {"astronaut", "camera", "chelsea", "coffee", "hubble_deep_field", "rocket"}
    assert all(photo.shape == (3, 64, 64) and photo.std() > 0.02 for photo in photos.values())


BUFFER = torch.zeros(1, 1)


def corner(image):
    return image[:, 0, 0, :1]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda image: torch.complex(corner(image) * 0, corner(image)),
        lambda image: 2**60 + (100 * corner(image)).long(),
        lambda image: BUFFER.copy_(image[:, 0, 0, :1]),
        lambda image: [],
        lambda image: image.sum(),
        lambda image: [corner(image)] * (1 + int(corner(image)[0, 0] > 0.5)),
    ],
    ids=["imaginary part", "large integers", "one buffer", "nothing", "a number", "another number of outputs"],
)
def test_rejects_what_only_looks_invariant(wrong):
    image = torch.tensor([[[[0.2, 0.9], [0.6, 0.4]]]])
    with pytest.raises(AssertionError):
        assert_invariant(wrong, image)


def test_takes_one_number_for_each_image_and_modules_that_write_into_their_input():
    assert_invariant(lambda image: image.amax((1, 2, 3)))
    image = torch.randn(2, 1, 8, 8)
    before = image.clone()
    assert_equivariant(nn.SiLU(inplace=True), image)
    assert torch.equal(image, before)
