"""Models whose consistency is known beforehand."""

import pytest
import torch
from known_models import TINY, Constant, ReadsOnePixel, answers_to, subject

import trueshift
from trueshift.data import EmbeddedSample
from trueshift.eval.metrics.aggregate import LabelTally
from trueshift.models.registry import CIFAR_MEAN, CIFAR_STD

# the others take the same path; that none changes its logits is in test_model_shift_laws.py
OTHERS = [pytest.param(f"{name}_mini", marks=pytest.mark.slow) for name in ("swinv2", "cvt", "mvitv2")]


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


def expected_rate(image: torch.Tensor) -> float:
    """How often two different pixels lie on the same side of the middle."""
    bright = int((image.sum(0) > 0).sum())
    dark = 1024 - bright
    return (bright * (bright - 1) + dark * (dark - 1)) / (1024 * 1023)


def test_a_classifier_that_reads_one_pixel_has_the_rate_of_its_pixels():
    images = range(0, 400, 100)
    expected = [expected_rate(TINY.normalise(TINY.canvas(EmbeddedSample()[index].image))) for index in images]
    result = measured(ReadsOnePixel(), ["circular"], None, images)["circular"]
    assert result["consistency"]["rate"] == pytest.approx(sum(expected) / len(expected), abs=1e-9)


def test_sampled_pairs_estimate_that_rate():
    expected = [expected_rate(TINY.normalise(TINY.canvas(EmbeddedSample()[index].image))) for index in range(60)]
    rate = measured(ReadsOnePixel(), ["circular"], 2, range(60))["circular"]["consistency"]
    assert rate["low"] < sum(expected) / 60 < rate["high"]


def twins(family):
    torch.manual_seed(0)
    ordinary = trueshift.create_model(family).eval()
    return subject(ordinary), subject(trueshift.adapt(ordinary))


@pytest.mark.parametrize("family", ["swin_mini", *OTHERS])
def test_adaptive_models_never_change_their_answer_and_their_defaults_do(family):
    preparation = trueshift.data.Preparation((32, 32), 1.0, CIFAR_MEAN, CIFAR_STD)
    names = ["circular", "flipped", "erased-70"]
    ordinary, adaptive = (
        measured(model.forward, names, 4, range(0, 400, 80), preparation=preparation, batch_size=25)
        for model in twins(family)
    )
    for found in adaptive.values():
        assert found["consistency"]["rate"] == found["bit_exact"]["rate"] == 1
        assert found["largest_logit_change"] == 0
    assert ordinary["circular"]["consistency"]["rate"] < 0.95
    assert ordinary["circular"]["bit_exact"]["rate"] < 0.1
