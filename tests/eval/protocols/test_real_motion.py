"""What a camera does to an image, beside the formulas."""

import io
from itertools import pairwise

import numpy as np
import pytest
import torch
from known_models import ReadsOnePixel, answers_to
from PIL import Image

from trueshift.data import Preparation, read_ahead
from trueshift.data.arrays import EmbeddedSample
from trueshift.eval import PROTOCOLS, CropsApart, Jitter, Path, SubPixel, measure
from trueshift.eval.metrics.aggregate import LabelTally
from trueshift.eval.protocols.shifts import DIRECTIONS

SIZE = (12, 10)
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("largest", [1, 2, 8])
def test_crops_are_at_most_so_far_apart_and_cut_from_one_image(largest):
    motion = CropsApart(largest)
    shifts = motion.draw(RANDOM, None, SIZE)
    assert len(shifts) == (largest + 1) ** 2
    assert (shifts.amax(0) - shifts.amin(0)).tolist() == [largest, largest]
    rows, columns = motion.margin(SIZE)
    whole = torch.rand(3, SIZE[0] + 2 * rows, SIZE[1] + 2 * columns)
    for (down, right), view in zip(shifts.tolist(), motion.view(whole, shifts, SIZE), strict=True):
        top, left = rows - down, columns - right
        assert torch.equal(view, whole[:, top : top + SIZE[0], left : left + SIZE[1]])
    assert len(motion.draw(RANDOM, 100, SIZE)) == len(shifts)  # no more than there are


def test_a_path_is_a_line_of_single_pixels_in_every_direction():
    motion, seen = Path(8), set()
    for seed in range(64):
        shifts = motion.draw(np.random.default_rng(seed), 2, SIZE)
        steps = (shifts[1:] - shifts[:-1]).unique(dim=0)
        assert len(shifts) == 9
        assert len(steps) == 1
        assert shifts[4].tolist() == [0, 0]
        seen.add(tuple(steps[0].tolist()))
    assert seen == set(DIRECTIONS)


def test_parts_of_a_pixel_of_a_wave_are_the_wave_itself():
    """A band-limited image has one right answer between its pixels."""
    motion = SubPixel(4)
    rows, columns = motion.margin(SIZE)
    high, wide = SIZE[0] + 2 * rows, SIZE[1] + 2 * columns

    def wave(down, right):
        u = (torch.arange(high, dtype=torch.float64) - down)[:, None]
        v = (torch.arange(wide, dtype=torch.float64) - right)[None]
        return (torch.cos(2 * torch.pi * 3 * u / high) + torch.sin(2 * torch.pi * (2 * u / high + 4 * v / wide)))[None]

    shifts = motion.draw(RANDOM, None, SIZE)
    assert shifts.amax() == 2
    for (down, right), view in zip(shifts.tolist(), motion.view(wave(0, 0), shifts, SIZE), strict=True):
        expected = wave(down / 4, right / 4)[:, rows : rows + SIZE[0], columns : columns + SIZE[1]]
        torch.testing.assert_close(view, expected, rtol=0, atol=1e-9)


def test_bilinear_parts_of_a_pixel():
    motion = SubPixel(4, band_limited=False)
    rows, columns = motion.margin(SIZE)
    whole = torch.rand(1, SIZE[0] + 2 * rows, SIZE[1] + 2 * columns)
    (view,) = motion.view(whole, torch.tensor([[0, -1]]), SIZE)  # a quarter to the left: what is right comes in
    inside = slice(rows, rows + SIZE[0]), slice(columns, columns + SIZE[1])
    expected = 0.75 * whole[:, *inside] + 0.25 * whole.roll(-1, 2)[:, *inside]
    torch.testing.assert_close(view, expected)


def test_versions_of_an_image():
    canvas = torch.randint(256, (3, *SIZE), dtype=torch.uint8)
    plain, saved = Jitter(jpeg=90).repaint(canvas, RANDOM).split(SIZE[1], 2)
    file = io.BytesIO()
    Image.fromarray(canvas.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=90)
    assert torch.equal(plain, canvas)
    assert np.array_equal(saved.permute(1, 2, 0).numpy(), np.asarray(Image.open(file)))
    assert len(Jitter(jpeg=90).draw(RANDOM, 9, SIZE)) == 2
    versions = Jitter(noise=1, versions=4).repaint(canvas, RANDOM).split(SIZE[1], 2)
    changes = torch.stack(versions[1:]).int() - canvas.int()
    assert len(versions) == 4
    assert changes.unique().tolist() == [-1, 0, 1]
    assert not torch.equal(versions[1], versions[2])


TINY = Preparation((16, 16), 0.5, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def test_a_moving_crop_end_to_end():
    """A model that reads one pixel of its crop reads a line of the image."""
    (record,), (protocol,) = answers_to(ReadsOnePixel(), ["path-8"], 2, [3], TINY)
    answers = record.answers["path-8"]
    whole = TINY.normalise(TINY.canvas(EmbeddedSample()[3].image, (4, 4))).sum(0)
    expected = [int(whole[4 - down, 4 - right] > 0) for down, right in answers.shifts.tolist()]
    assert answers.labels.tolist() == expected
    assert len(expected) == 1 + 9
    tally = LabelTally(protocol, labelled=False)
    tally.add(record)
    changes = sum(a != b for a, b in pairwise(expected[1:]))
    assert tally.summary()["flicker"]["rate"] == pytest.approx(changes / 8)


def test_jitter_end_to_end():
    """The first version is the image itself, the second the saved one."""
    protocol = PROTOCOLS["jpeg"]
    images = read_ahead(EmbeddedSample(), [3], TINY, (2, 2))  # more than it needs: others may ask for more
    (record,) = measure(lambda views: views.flatten(1), images, [protocol], TINY, {"jpeg": None})
    answers = record.answers["jpeg"]
    assert answers.exact.tolist() == [True, True, False]
    canvas = TINY.canvas(EmbeddedSample()[3].image)
    saved = Jitter(jpeg=90).repaint(canvas, RANDOM)[:, :, 16:]
    change = (TINY.normalise(saved) - TINY.normalise(canvas)).abs().max()
    assert answers.change[2] == pytest.approx(float(change), abs=1e-5)
