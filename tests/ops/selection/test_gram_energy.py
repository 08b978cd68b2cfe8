import pytest
import torch
import torch.nn.functional as F

from trueshift.ops.geometry.shift import circular_shift
from trueshift.ops.selection.gram_energy import patch_energy
from trueshift.ops.selection.quantised_image import to_integers
from trueshift.testing import photographs


def direct(image, weight, bias, stride, padding):
    """The definition: a convolution at every pixel, squared and summed over each phase, in float64."""
    rows, columns = weight.shape[2] - 1 - padding[0], weight.shape[3] - 1 - padding[1]
    wide = F.pad(image.permute(0, 3, 1, 2).double(), (padding[1], columns, padding[0], rows), mode="circular")
    tokens = F.conv2d(wide, weight.double(), None if bias is None else bias.double())
    squared = tokens.square().sum(1)
    return squared.unflatten(2, (-1, stride[1])).unflatten(1, (-1, stride[0])).sum((1, 3))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "channels", "size"),
    [
        ((4, 4), (4, 4), (0, 0), 3, (32, 48)),
        ((7, 7), (4, 4), (2, 2), 3, (16, 32)),
        ((3, 3), (2, 2), (1, 1), 5, (14, 14)),
        ((2, 2), (2, 2), (0, 0), 1, (8, 8)),
        ((16, 16), (16, 16), (0, 0), 1, (64, 32)),
        ((4, 6), (4, 2), (0, 2), 2, (16, 16)),
        ((11, 11), (4, 4), (3, 3), 1, (8, 8)),  # wider than the image
        ((4, 4), (4, 4), (0, 0), 3, (4, 4)),  # a single token
    ],
)
@pytest.mark.parametrize("with_bias", [True, False])
def test_matches_the_definition(kernel, stride, padding, channels, size, with_bias):
    image = torch.randn(3, *size, channels)
    projection = torch.randn(24, channels, *kernel), torch.randn(24) if with_bias else None, stride, padding
    energy, integers = patch_energy(image, *projection), to_integers(image)
    rounded = integers.values * integers.unit.view(-1, 1, 1, 1) + integers.centre.view(-1, 1, 1, 1)
    # of the image as rounded to 14 bits, to the last digits; of the image itself, as well as so few pixels average out
    torch.testing.assert_close(energy, direct(rounded, *projection), rtol=1e-9, atol=0)
    torch.testing.assert_close(energy, direct(image, *projection), rtol=2e-4, atol=0)
    offset = torch.stack([torch.randint(n, (3,)) for n in size], 1)
    assert torch.equal(patch_energy(circular_shift(image, offset), *projection), circular_shift(energy, offset))


def test_low_contrast_under_a_filter_that_removes_the_mean():
    """Nearly everything cancels; what remains still decides, though with fewer digits."""
    photos = torch.stack(list(photographs(64).values())).permute(0, 2, 3, 1)
    weight = torch.randn(32, 3, 4, 4)
    projection = weight - weight.mean((2, 3), keepdim=True), None, (4, 4), (0, 0)
    for contrast, accuracy in ((1.0, 1e-4), (1e-2, 1e-4), (1e-4, 1e-3)):
        image = 5 + contrast * photos
        energy, naive = patch_energy(image, *projection), direct(image, *projection)
        assert ((energy - naive).abs() / naive).max() < accuracy
        assert torch.equal(energy.flatten(1).argmax(1), naive.flatten(1).argmax(1))
