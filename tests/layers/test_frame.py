"""The border of a photograph that was shifted around a circle."""

import math

import pytest
import torch

from trueshift.layers.frame import FrameFinder
from trueshift.ops.geometry.shift import circular_shift
from trueshift.ops.selection.quantised_image import Pixels
from trueshift.testing import hostile_images, photographs


def find(x):
    return FrameFinder()(Pixels(x))


def first_lines(x):
    return torch.stack([scores.argmax(1) for scores in find(x)], 1)


def test_scores_move_with_the_lines_bit_for_bit():
    torch.manual_seed(0)
    x = torch.stack([*hostile_images((24, 20)).values(), torch.rand(3, 24, 20)]).permute(0, 2, 3, 1)
    rows, columns = find(x)
    offset = torch.randint(0, 20, (len(x), 2))
    moved_rows, moved_columns = find(circular_shift(x, offset))
    for i, (row, column) in enumerate(offset.tolist()):
        assert torch.equal(moved_rows[i], rows[i].roll(-row))
        assert torch.equal(moved_columns[i], columns[i].roll(-column))


@pytest.mark.parametrize("size", [64, 128, 224])
def test_the_border_of_photographs_is_found(size):
    photos = torch.stack(list(photographs(size).values())).permute(0, 2, 3, 1)
    offset = (size // 3, size // 2)
    found = (first_lines(circular_shift(photos, offset)) + torch.tensor(offset)) % size
    assert (found == 0).all(1).double().mean() >= 0.8


def test_brightness_and_contrast_do_not_matter():
    photos = torch.stack(list(photographs(64).values())).permute(0, 2, 3, 1)
    assert torch.equal(first_lines(photos), first_lines(photos * 4 - 1))


def test_known_answer():
    """The definition, line by line, of an image with one column."""
    finder, values = FrameFinder(), torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
    image = values.view(1, 8, 1, 1)
    q = Pixels(image).integers().values.flatten().tolist()
    step = [q[n] - q[n - 1] for n in range(8)]
    lines = [
        [max(0, a * step[n - 1] + b * step[n] + c * step[(n + 1) % 8]) for n in range(8)] for a, b, c in finder.filters
    ]
    level = [[min(4095, math.floor(256 * math.sqrt(h * 8 / max(sum(line), 1)))) for h in line] for line in lines]
    score = []
    for n in range(8):
        near = [level[k][(n + t) % 8] for t in range(-2, 3) for k in range(len(lines))]
        hidden = [
            max(0, sum(w * v for w, v in zip(row, near, strict=True)) + 256 * bias)
            for row, bias in zip(finder.mixing.tolist(), finder.bias.tolist(), strict=True)
        ]
        score.append(sum(w * h for w, h in zip(finder.output.tolist(), hidden, strict=True)))
    assert find(image)[0][0].tolist() == score


def test_other_precisions_of_the_network_leave_it_alone():
    finder, photo = FrameFinder(), torch.stack(list(photographs(64).values())).permute(0, 2, 3, 1)
    for one, other in zip(finder(Pixels(photo)), FrameFinder().bfloat16()(Pixels(photo)), strict=True):
        assert torch.equal(one, other)
