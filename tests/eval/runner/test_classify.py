"""Every view of every image is shown and compared, whatever the batch and the other protocols."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from known_models import TINY, ReadsOnePixel, Watched, answers_to, subject

from trueshift.data import EmbeddedSample, Prepared, Unreadable, read_ahead
from trueshift.eval import EvalOptions, find_protocols, run_evaluation
from trueshift.eval.protocols.registry import Circular, EraseSquare, ShiftProtocol, ZeroPadded
from trueshift.eval.runner.classify import measure

PROTOCOLS = ("circular", "cifar-standard", "imagenet-standard", "magnitude-8", "erased-70", "flipped")
ALL = find_protocols(PROTOCOLS)


def test_every_view_is_the_image_after_its_shift():
    watched = Watched()
    (record,), (protocol,) = answers_to(watched, ["circular"], 5, [7], seed=3, batch_size=6)
    assert record.answers["circular"].shifts[1:].tolist() == protocol.shifts(7, 5, (32, 32), seed=3).tolist()
    image = TINY.normalise(TINY.canvas(EmbeddedSample()[7].image))
    for view, shift in zip(*watched.batches, record.answers["circular"].shifts, strict=True):
        assert torch.equal(view, torch.roll(image, tuple(shift.tolist()), (1, 2)))


def test_the_unshifted_image_is_shown_once_for_all_protocols_that_share_it():
    watched = Watched()
    records, _ = answers_to(watched, PROTOCOLS, 3, [0])
    (views,) = watched.batches
    needed = 6 * 3 + 3  # three shifts each; the image as it is, erased, and upside down
    assert len(views) == 32
    assert not torch.equal(views[needed - 1], views[0])
    assert torch.equal(views[needed:], views[:1].expand(32 - needed, -1, -1, -1))  # copies fill up the last batch
    assert all(len(said.labels) == 4 and said.exact[0] for said in records[0].answers.values())


@pytest.mark.parametrize("batch_size", [1, 5])
def test_answers_do_not_depend_on_the_batch(batch_size):
    class Sums(torch.nn.Module):
        def forward(self, views):  # a number for each view that is the same in any batch
            corner = views[:, :, :3, :3].double().sum((1, 2, 3))
            return torch.stack([corner, -corner], 1)

    records, _ = answers_to(Sums(), PROTOCOLS, 3, batch_size=batch_size)
    watched = Watched(Sums())
    others, _ = answers_to(watched, PROTOCOLS, 3, batch_size=17)
    assert set(map(len, watched.batches)) == {17}
    for record, other in zip(records, others, strict=True):
        assert record.index == other.index
        for name, said in record.answers.items():
            np.testing.assert_array_equal(said.shifts, other.answers[name].shifts)
            np.testing.assert_array_equal(said.labels, other.answers[name].labels)
            np.testing.assert_array_equal(said.change, other.answers[name].change)


def test_change_and_exactness_are_those_against_the_unshifted_image():
    (record,), _ = answers_to(ReadsOnePixel(), ["circular"], 20, [3])
    image = TINY.normalise(TINY.canvas(EmbeddedSample()[3].image)).sum(0)
    said = record.answers["circular"]
    for shift, label, change, exact in zip(said.shifts, said.labels, said.change, said.exact, strict=True):
        value = image[-shift[0] % 32, -shift[1] % 32]
        assert label == int(value > 0)
        assert change == pytest.approx(float((value - image[0, 0]).abs()), abs=1e-5)
        assert exact == bool(value == image[0, 0])


class RoundsByPlace:
    """Answers by the content alone, but for the last rows of a batch, which it rounds differently."""

    def __init__(self, wrong=lambda views: torch.zeros(len(views), dtype=torch.bool)):
        self.calls, self.wrong = 0, wrong

    def __call__(self, views):
        self.calls += 1
        levels = (views.double() * 2**20).round()  # sums of integers are the same in any order
        logits = torch.stack([levels.sum((1, 2, 3)), levels.square().sum((1, 2, 3))], 1) * 2.0**-20
        logits[-7:] += 2.0**-10
        logits[self.wrong(views)] += 2.0**-12
        return logits


@pytest.mark.parametrize(("batch_size", "batches"), [(64, 3), (61, 4)])
def test_a_model_that_rounds_by_the_place_in_the_batch_is_exact_all_the_same(batch_size, batches):
    model = RoundsByPlace()
    records, _ = answers_to(model, ["circular"], 8, range(20), batch_size=batch_size)
    said = [record.answers["circular"] for record in records]
    assert all(each.exact.all() and not each.change.any() for each in said)
    assert batches < model.calls <= 2 * batches


def test_a_view_that_differs_in_its_own_place_is_not_exact():
    def bright_corner(views):
        return (views[:, 0, 0, 0] > 1.5) & (views[:, 0, 0, 1] > 1.5)

    source = EmbeddedSample()
    records, _ = answers_to(RoundsByPlace(bright_corner), ["circular"], 8, range(20), source=source, batch_size=64)
    for record in records:
        image = TINY.normalise(TINY.canvas(source[record.index].image))
        said = record.answers["circular"]
        moved = torch.stack([torch.roll(image, tuple(shift.tolist()), (1, 2)) for shift in said.shifts])
        wrong = bright_corner(moved).numpy()
        np.testing.assert_array_equal(said.exact, wrong == wrong[0])
    assert not all(record.answers["circular"].exact.all() for record in records)


def test_an_ordinary_model_is_asked_once():
    watched = Watched(ReadsOnePixel())
    answers_to(watched, ["circular"], 8, range(20), batch_size=63)
    assert len(watched.batches) == 3


def test_an_image_that_cannot_be_read_keeps_its_place():
    bright, dark = ({(0, 0): torch.full((3, 32, 32), level, dtype=torch.uint8)} for level in (255, 0))
    images = [Prepared(0, "a", 1, bright), Unreadable(1, "b", "torn"), Prepared(2, "c", None, dark)]
    first, torn, last = measure(ReadsOnePixel(), images, ALL[:1], TINY, {"circular": 2}, batch_size=4)
    assert (torn, first.index, last.index) == (images[1], 0, 2)
    assert [record.answers["circular"].labels.tolist() for record in (first, last)] == [[1] * 3, [0] * 3]


@pytest.mark.parametrize("answer", [lambda views: views, lambda views: torch.zeros(3, 2), lambda views: "cat"])
def test_an_answer_that_is_not_logits_is_refused(answer):
    with pytest.raises(ValueError, match=r"needs logits of shape \[32, classes\]"):
        answers_to(answer, ["circular"], 2)


# what a protocol measures does not depend on which others are asked for


@pytest.mark.parametrize("crop_pct", [0.9, 0.875])
def test_an_evaluation_of_each_protocol_alone_is_that_of_all(crop_pct):
    model = subject(ReadsOnePixel(), preparation=replace(TINY, crop_pct=crop_pct))
    settings = EvalOptions(limit=8, batch_size=16, workers=1)
    together = run_evaluation(model, EmbeddedSample(), ALL, settings)["measured"]
    assert list(together) == [protocol.name for protocol in ALL]
    for protocol in ALL:
        alone = run_evaluation(model, EmbeddedSample(), [protocol], settings)["measured"]
        assert alone[protocol.name] == together[protocol.name]


def test_an_image_is_read_once_for_all_canvases():
    class Counted(EmbeddedSample):
        asked: ClassVar[list[int]] = []

        def __getitem__(self, index):
            self.asked.append(index)
            return super().__getitem__(index)

    run_evaluation(subject(ReadsOnePixel()), Counted(), ALL, EvalOptions(limit=3, batch_size=16, workers=0))
    assert Counted.asked == [0, 133, 266]


@pytest.mark.parametrize("distortion", [EraseSquare(0.5), None])
@pytest.mark.parametrize("motion", [Circular(0.25), ZeroPadded(0.125)])
def test_protocols_with_one_distortion_each_see_their_own_image(distortion, motion):
    first = ShiftProtocol("first", "first", Circular(), distortion)
    second = ShiftProtocol("second", "second", motion, distortion, against_unshifted=True)
    pixels = torch.nn.Flatten()

    def answers(protocols):
        pictures = read_ahead(EmbeddedSample(), range(6), TINY)
        shifts = {"first": 2, "second": 3}
        return [record.answers["second"] for record in measure(pixels, pictures, protocols, TINY, shifts, 0, 8)]

    for alone, beside in zip(answers([second]), answers([first, second]), strict=True):
        np.testing.assert_array_equal(alone.labels, beside.labels)
        np.testing.assert_array_equal(alone.change, beside.change)
        np.testing.assert_array_equal(alone.exact, beside.exact)
