"""Colours changed at random: as the standard library's colours say, by each image alone, and by no other chance."""

import colorsys

import numpy as np
import pytest
import torch

from trueshift.train.data.photometric import Distortion, distort


def by(count=1, **changes):
    nothing = {"brightness": 0.0, "contrast_first": 1.0, "saturation": 1.0, "hue": 0.0, "contrast_last": 1.0}
    return Distortion(**{key: torch.full((count,), value) for key, value in {**nothing, **changes}.items()})


def one_of(distortion, number):
    return Distortion(**{key: value[number : number + 1] for key, value in vars(distortion).items()})


def images(count=1, height=9, width=11):
    pixels = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)
    pixels[:, :, 0, 0], pixels[:, :, 0, 1] = 0, 255
    pixels[:, :, 0, 2] = 77  # grey
    pixels[:, :, 0, 3] = torch.tensor([255, 0, 0])
    pixels[:, :, 0, 4] = torch.tensor([0, 0, 255])
    pixels[:, :, 0, 5] = torch.tensor([9, 200, 200])  # two are largest
    pixels[:, :, 0, 6] = torch.tensor([200, 9, 200])
    return pixels


def pixel_by_pixel(image, distortion):
    """The slow way, in Python's own numbers."""
    brightness, first, saturation, hue, last = (float(value) for value in vars(distortion).values())
    result = np.empty(image.shape)
    for row in range(image.shape[1]):
        for column in range(image.shape[2]):
            colour = [min(max(float(value) + brightness, 0), 255) for value in image[:, row, column]]
            colour = [min(value * first, 255) for value in colour]
            h, s, v = colorsys.rgb_to_hsv(*(value / 255 for value in colour))
            colour = colorsys.hsv_to_rgb((h + hue) % 1, min(s * saturation, 1), v)
            result[:, row, column] = [min(value * 255 * last, 255) for value in colour]
    return result


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"brightness": 31.0},
        {"brightness": -31.0},
        {"contrast_first": 1.5},
        {"contrast_first": 0.5},
        {"saturation": 1.5},
        {"saturation": 0.5},
        {"hue": 0.1},
        {"hue": -0.1},
        {"contrast_last": 1.4},
        {"brightness": -20.0, "contrast_first": 1.3, "saturation": 1.2, "hue": -0.05},
        {"brightness": 20.0, "contrast_last": 0.7, "saturation": 0.6, "hue": 0.08},
        {"brightness": 32.0, "contrast_first": 1.5, "saturation": 1.5, "hue": 0.1, "contrast_last": 1.5},
    ],
    ids=str,
)
def test_colours_are_those_of_the_standard_library(changes):
    pixels = images()
    found = distort(pixels, by(**changes))
    assert found.dtype == torch.float32
    assert 0 <= found.min() <= found.max() <= 255
    assert np.abs(found[0].numpy() - pixel_by_pixel(pixels[0], by(**changes))).max() < 1e-3
    assert changes or torch.equal(found, pixels.float())


def test_drawn_changes_are_those_of_the_standard_library():
    pixels = images(6, 4, 8)
    drawn = Distortion.drawn(5, 2, np.arange(6))
    found = distort(pixels, drawn)
    for number in range(6):
        expected = pixel_by_pixel(pixels[number], one_of(drawn, number))
        assert np.abs(found[number].numpy() - expected).max() < 1e-3


def test_an_image_does_not_depend_on_its_batch():
    pixels = images(7, 13, 17)
    numbers = np.array([40, 3, 8, 1000, 77, 5, 12])
    together = distort(pixels, Distortion.drawn(1, 2, numbers))
    for position, number in enumerate(numbers):
        alone = distort(pixels[position : position + 1], Distortion.drawn(1, 2, np.array([number])))
        assert torch.equal(alone[0], together[position])
    order = torch.randperm(7)
    assert torch.equal(distort(pixels[order], Distortion.drawn(1, 2, numbers[order])), together[order])
    # each pixel is changed by itself
    moved = torch.roll(pixels, (2, -5), (2, 3))
    assert torch.equal(distort(moved, Distortion.drawn(1, 2, numbers)), torch.roll(together, (2, -5), (2, 3)))
    assert torch.equal(distort(pixels[:, :, 3:9, 4:11], Distortion.drawn(1, 2, numbers)), together[:, :, 3:9, 4:11])


def test_nothing_counts_but_seed_epoch_and_image():
    def drawn(*numbers):
        return torch.stack(list(vars(Distortion.drawn(*numbers[:2], np.array([numbers[2]]))).values()))

    first = drawn(1, 2, 3)
    torch.rand(5)
    assert torch.equal(drawn(1, 2, 3), first)
    others = [torch.stack(list(vars(Distortion.drawn(1, 2, np.arange(4, 60))).values())) for _ in range(2)]
    assert torch.equal(*others)
    assert not any(torch.equal(drawn(*numbers), first) for numbers in [(2, 2, 3), (1, 3, 3), (1, 2, 5)])


def test_changes_are_as_frequent_and_as_large_as_they_should_be():
    count = 4000
    drawn = Distortion.drawn(0, 0, np.arange(count))
    contrast = drawn.contrast_first * drawn.contrast_last
    assert ((drawn.contrast_first == 1) | (drawn.contrast_last == 1)).all()  # once, at the beginning or at the end
    for values, nothing, least, most in [
        (drawn.brightness, 0, -32, 32),
        (contrast, 1, 0.5, 1.5),
        (drawn.saturation, 1, 0.5, 1.5),
        (drawn.hue, 0, -0.1, 0.1),
    ]:
        some = values[values != nothing]
        assert abs(len(some) / count - 0.5) < 0.04
        assert least <= some.min() < least + 0.01 * (most - least)
        assert most - 0.01 * (most - least) < some.max() <= most
        assert abs(some.mean() - nothing) < 0.03 * (most - least)
    changed = torch.stack([drawn.brightness != 0, contrast != 1, drawn.saturation != 1, drawn.hue != 0]).float()
    assert (torch.corrcoef(changed) - torch.eye(4)).abs().max() < 0.08
    first = (drawn.contrast_first != 1).sum() / (contrast != 1).sum()
    assert abs(first - 0.5) < 0.06
