"""Some images of a source: which, and that nothing else about them changes."""

import pickle

import numpy as np
import pytest

from trueshift.data import EmbeddedSample
from trueshift.data.source import Source
from trueshift.data.subset import Subset, evenly_spread, hold_out


class Numbered:
    """A source whose samples are their numbers; nothing in memory."""

    title, classes = "numbers", ["even", "odd"]

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def name(self, index):
        return f"number {index}"

    def __getitem__(self, index):
        return index


def numbers(source):
    return [source[index] for index in range(len(source))]


@pytest.mark.parametrize(("count", "limit"), [(100, 10), (100, 7), (9, 8), (5, 1)])
def test_a_limit_spreads_over_the_whole_source(count, limit):
    source = Numbered(count)
    taken = numbers(evenly_spread(source, limit))
    assert len(taken) == limit
    steps = np.diff([*taken, count])
    assert taken[0] == 0
    assert count // limit <= steps.min() <= steps.max() <= -(-count // limit)
    for no_limit in (0, count, count + 1):
        assert evenly_spread(source, no_limit) is source


@pytest.mark.parametrize(("count", "part"), [(100, 0.2), (100, 0.5), (101, 0.3), (10, 0.01), (3, 0.9 * 0.7)])
def test_what_is_held_out_and_the_rest_are_all_images_once(count, part):
    rest, out = hold_out(Numbered(count), part)
    assert len(out) == max(1, round(count * part))
    assert sorted(numbers(rest) + numbers(out)) == list(range(count))
    assert numbers(rest) == sorted(numbers(rest))
    assert np.ptp(np.diff([*numbers(out), count + numbers(out)[0]])) <= 1  # each stretch loses as many


def test_nothing_left_is_refused():
    with pytest.raises(ValueError, match=r"numbers has 2 images: holding out 0.9 of them leaves none"):
        hold_out(Numbered(2), 0.9)
    with pytest.raises(ValueError, match="no images of numbers are left"):
        Subset(Numbered(2), [])


def test_nothing_else_about_a_sample_changes():
    part = Subset(Numbered(10), [7, 2])
    assert isinstance(part, Source)
    assert (part.classes, part.name(0), hasattr(part, "pixels")) == (["even", "odd"], "number 7", False)
    assert numbers(pickle.loads(pickle.dumps(part))) == [7, 2]
    sample = EmbeddedSample()
    part = Subset(sample, [5, 399, 0])  # held in memory: so are these
    for index, of_all in enumerate((5, 399, 0)):
        assert np.array_equal(part.pixels[index], sample.pixels[of_all])
        assert np.array_equal(np.asarray(part[index].image), part.pixels[index])
        assert part[index].target == part.labels[index] == sample.labels[of_all]
