"""How images move and what is done to them first, against plain loops over pixels."""

import numpy as np
import pytest
import torch

from trueshift.eval.protocols.registry import EraseSquare
from trueshift.eval.protocols.shifts import Circular, Cropped, Neighbourhood, ZeroPadded

SIZE = (6, 5)
MOTIONS = [Circular(), Circular(0.5), Neighbourhood(side=3), ZeroPadded(0.4), Cropped(0.4)]
every_motion = pytest.mark.parametrize("motion", MOTIONS, ids=str)


def all_shifts(motion):
    return motion.draw(np.random.default_rng(0), None, SIZE)


@every_motion
def test_views_are_those_of_a_loop(motion):
    shifts, (height, width), (rows, columns) = all_shifts(motion), SIZE, motion.margin(SIZE)
    image = torch.rand(3, height + 2 * rows, width + 2 * columns)
    if circular := isinstance(motion, Circular):  # also around and back
        shifts = torch.cat([shifts, torch.tensor([[-1, -2], [6, 5], [-13, 27], [0, 0]])])
    for view, (down, right) in zip(motion.view(image, shifts, SIZE), shifts.tolist(), strict=True):
        for u in range(height):
            for v in range(width):
                row, column = u - down + rows, v - right + columns
                if circular:
                    row, column = row % height, column % width
                inside = 0 <= row < height + 2 * rows and 0 <= column < width + 2 * columns
                assert torch.equal(view[:, u, v], image[:, row, column] if inside else torch.zeros(3))


@pytest.mark.parametrize("motion", [Circular(), ZeroPadded(0.4), ZeroPadded(1.0)], ids=str)
def test_moving_back_finds_every_pixel_that_stayed_in_view(motion):
    labels = torch.arange(1, 31).view(1, *SIZE)
    shifts = all_shifts(motion)
    back, covered = motion.undo(motion.view(labels, shifts, SIZE)[:, 0], shifts)
    assert back.shape == covered.shape == (len(shifts), *SIZE)
    for index, (down, right) in enumerate(shifts.tolist()):
        for u in range(6):
            for v in range(5):
                stayed = isinstance(motion, Circular) or (0 <= u + down < 6 and 0 <= v + right < 5)
                assert covered[index, u, v] == stayed
                assert not stayed or back[index, u, v] == labels[0, u, v]


# drawing


@every_motion
def test_shifts_drawn_are_different_and_without_a_count_all_in_order(motion):
    rows, columns = motion.steps(SIZE)
    everything, random = [[down, right] for down in rows for right in columns], np.random.default_rng(0)
    assert all_shifts(motion).tolist() == everything
    total = len(everything)
    for count in (1, 2, total - 1, total):
        shifts = motion.draw(random, count, SIZE).tolist()
        assert all(shift in everything and shifts.count(shift) == 1 for shift in shifts)
        assert len(shifts) == count
    with pytest.raises(ValueError, match=f"{total + 1} shifts: .* has only {total} different ones at 6 x 5 pixels"):
        motion.draw(random, total + 1, SIZE)


@pytest.mark.parametrize(
    ("motion", "rows", "columns"),
    [
        (Circular(), (0, 223), (0, 31)),
        (Circular(0.25), (0, 56), (0, 8)),
        (Neighbourhood(side=40), (-20, 19), (-16, 15)),
        (ZeroPadded(1 / 8), (-28, 28), (-4, 4)),
        (Cropped(16 / 224), (-16, 16), (-2, 2)),
    ],
    ids=str,
)
def test_the_range_is_a_part_of_the_size(motion, rows, columns):
    assert [(along[0], along[-1]) for along in motion.steps((224, 32))] == [rows, columns]


@every_motion
def test_every_shift_is_as_likely_as_any_other_in_every_place(motion):
    random, draws = np.random.default_rng(0), 4000
    drawn = torch.stack([motion.draw(random, 2, SIZE) for _ in range(draws)])
    rows, columns = motion.steps(SIZE)
    total = len(rows) * len(columns)
    for place in (0, 1):
        number = (drawn[:, place, 0] - rows[0]) * len(columns) + drawn[:, place, 1] - columns[0]
        seen = torch.bincount(number, minlength=total).double()
        chi_square = ((seen - draws / total) ** 2 / (draws / total)).sum()
        # mean and variance of chi-square are the degrees of freedom and twice that; five deviations never happen
        assert abs(chi_square - (total - 1)) < 5 * (2 * (total - 1)) ** 0.5


# distortions


def test_exactly_one_square_is_erased():
    size, random, sides, gaps = (12, 30), np.random.default_rng(0), set(), []
    image = torch.rand(3, *size) + 1
    before = image.clone()
    for _ in range(400):
        erased = EraseSquare(0.5)(image, random)
        assert torch.equal(image, before)
        gone = (erased == 0).all(0)
        rows, columns = gone.any(1).nonzero().flatten(), gone.any(0).nonzero().flatten()
        assert len(rows) == len(columns)
        sides.add(len(rows))
        if len(rows):
            gaps.append([rows[0], columns[0], size[0] - 1 - rows[-1], size[1] - 1 - columns[-1]])
            square = torch.zeros(size, dtype=torch.bool)
            square[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
            assert torch.equal(gone, square)
        assert torch.equal(erased[:, ~gone], before[:, ~gone])
    assert sides == set(range(7))
    assert torch.tensor(gaps).amin(0).tolist() == [0, 0, 0, 0]  # it reaches all four borders
