"""Models whose consistency is known beforehand."""

import pytest
from known_models import TINY, Constant, ReadsOnePixel, answers_to

from trueshift.data import EmbeddedSample
from trueshift.eval.metrics.aggregate import LabelTally


def measured(forward, names, shifts, images, **options):
    records, protocols = answers_to(forward, names, shifts, images, **options)
    results = {}
    for protocol in protocols:
        tally = LabelTally(protocol, labelled=True)
        for record in records:
            tally.add(record)
        results[protocol.name] = tally.summary()
    return results


def test_a_constant_classifier_is_consistent_under_everything():
    names = ["cifar", "imagenet-standard", "magnitude", "erased", "flips"]
    labels = [EmbeddedSample().labels[index] for index in range(4)]
    for result in measured(Constant(), names, 2, range(4)).values():
        assert result["consistency"]["rate"] == result["worst_case"]["rate"] == result["bit_exact"]["rate"] == 1
        assert result["largest_logit_change"] == 0
        assert result["top1"]["rate"] == labels.count(3) / 4 > 0


def expected_rate(images) -> float:
    """How often two different pixels of an image lie on the same side of the middle."""
    source, rates = EmbeddedSample(), []
    for index in images:
        bright = int((TINY.normalise(TINY.canvas(source[index].image)).sum(0) > 0).sum())
        dark = 1024 - bright
        rates.append((bright * (bright - 1) + dark * (dark - 1)) / (1024 * 1023))
    return sum(rates) / len(rates)


def test_a_classifier_that_reads_one_pixel_has_the_rate_of_its_pixels():
    images = range(0, 400, 100)
    result = measured(ReadsOnePixel(), ["circular"], None, images)["circular"]
    assert result["consistency"]["rate"] == pytest.approx(expected_rate(images), abs=1e-9)


def test_sampled_pairs_estimate_that_rate():
    rate = measured(ReadsOnePixel(), ["circular"], 2, range(60))["circular"]["consistency"]
    assert rate["low"] < expected_rate(range(60)) < rate["high"]
