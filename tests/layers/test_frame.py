"""The border of a photograph that was shifted around a circle."""

import pytest
import torch

from trueshift.layers.frame import FrameFinder
from trueshift.ops.geometry.shift import circular_shift
from trueshift.ops.selection.frame_scores import COARSER
from trueshift.ops.selection.quantised_image import Pixels
from trueshift.ops.selection.seam import LONGEST, seam_scores
from trueshift.testing import hostile_images, photographs


def find(x):
    return FrameFinder()(Pixels(x))


def first_lines(x):
    return torch.stack([scores.argmax(1) for scores in find(x)], 1)


def photos_at(size):
    return torch.stack(list(photographs(size).values())).permute(0, 2, 3, 1)


@pytest.mark.parametrize(("scores", "channels"), [(find, 1), (find, 3), (find, 4), (seam_scores, 3)])
def test_scores_move_with_the_lines_bit_for_bit(scores, channels):
    x = torch.stack([*hostile_images((24, 20), channels).values(), torch.rand(channels, 24, 20)]).permute(0, 2, 3, 1)
    rows, columns = scores(x)
    offset = torch.randint(0, 20, (len(x), 2))
    moved_rows, moved_columns = scores(circular_shift(x, offset))
    for i, (row, column) in enumerate(offset.tolist()):
        assert torch.equal(moved_rows[i], rows[i].roll(-row))
        assert torch.equal(moved_columns[i], columns[i].roll(-column))


@pytest.mark.parametrize("size", [64, 128, pytest.param(224, marks=pytest.mark.slow)])
def test_the_border_of_photographs_is_found(size):
    offset = (size // 3, size // 2)
    found = (first_lines(circular_shift(photos_at(size), offset)) + torch.tensor(offset)) % size
    assert (found == 0).all(1).double().mean() >= 0.8


def test_brightness_and_contrast_do_not_matter():
    assert torch.equal(first_lines(photos_at(64)), first_lines(photos_at(64) * 4 - 1))


def test_weights_and_first_layer_fit_in_bytes_and_sums_in_float32():
    """As the kernels take them, and sums of a line in 32 bits; without kernels all sums are exact in float32."""
    finder = FrameFinder()
    assert max(part.abs().max() for part in (finder.filters, finder.pointwise, finder.mixing)) < 128
    filters = finder.filters.flatten(1)
    first = (127 * filters.clamp(min=0) - 128 * filters.clamp(max=0)).sum(1).max() // COARSER
    assert first < 128
    largest = (first * finder.pointwise.clamp(min=0)).sum(1) + finder.offset
    assert largest.max() * LONGEST < 2**31
    first = finder.filters.abs().sum((1, 2)) * 2**7
    second = finder.pointwise.abs() @ (first // COARSER) + finder.offset.abs()
    assert int(torch.cat([first, second]).max()) < 2**24


def around(x, before, after):
    """Each line of the first axis with those before and after it, around the circle, in a new second axis."""
    return torch.stack([x.roll(-step, 0) for step in range(-before, after + 1)], 1)


def test_known_answer():
    """The definition, in whole numbers, of a small image."""
    finder, image = FrameFinder(), torch.randint(256, (1, 8, 5, 3)) / 255
    quantised = Pixels(image).integers().values[0].div(128, rounding_mode="floor").long()  # H W colour
    patches = around(around(quantised.transpose(0, 1), 1, 1).transpose(0, 2), 2, 1)  # H lines columns W colour
    first = torch.einsum("hlkwc,dlkc->hwd", patches, finder.filters.unflatten(2, (3, 3))).clamp(min=0) // 1024
    sums = (first @ finder.pointwise.mT + finder.offset).clamp(min=0).sum(1)
    level = (256 * (sums * 8 / sums.sum(0).clamp(min=1)).double().sqrt()).long().clamp(max=4095)
    hidden = (around(level, 2, 2).flatten(1) @ finder.mixing.mT + 256 * finder.bias).clamp(min=0)
    assert torch.equal(find(image)[0][0], (hidden @ finder.output).double())


def test_other_precisions_of_the_network_leave_it_alone():
    both = zip(find(photos_at(64)), FrameFinder().bfloat16()(Pixels(photos_at(64))), strict=True)
    assert all(torch.equal(one, other) for one, other in both)
