"""Wilson's interval against published numbers, its promise, and the metric that reports it."""

from math import comb, nan

import pytest
import torch

from trueshift.eval.metrics.consistency import ShiftConsistency, wilson_interval


@pytest.mark.parametrize(
    ("rate", "count", "confidence", "low", "high"),
    [
        (0.8, 10, 0.95, 0.4902, 0.9433),
        (0.95, 100, 0.95, 0.8882, 0.9785),
        (0.0, 20, 0.95, 0.0, 0.1611),  # z² / (n + z²)
        (0.5, 4, 0.90, 0.1824, 0.8176),  # 1/2 ± z / 2 sqrt(n + z²)
        (1.0, 1000, 0.99, 0.9934, 1.0),
    ],
)
def test_intervals_worked_out_by_hand(rate, count, confidence, low, high):
    assert wilson_interval(rate, count, confidence) == pytest.approx((low, high), abs=5e-5)


def test_an_interval_holds_its_rate_and_has_a_width():
    for count in range(1, 300):
        for rate in {0, 1, count - 1, count // 2, count}:
            low, high = wilson_interval(rate / count, count)
            assert 0 <= low <= rate / count <= high <= 1
            assert high - low > 1 / (count + 5)


def test_the_true_rate_lies_inside_as_often_as_promised():
    count, coverages = 60, []
    for rate in torch.linspace(0.05, 0.95, 37).tolist():
        chance = [comb(count, hits) * rate**hits * (1 - rate) ** (count - hits) for hits in range(count + 1)]
        intervals = [wilson_interval(hits / count, count) for hits in range(count + 1)]
        inside = zip(chance, intervals, strict=True)
        coverages.append(sum(p for p, (low, high) in inside if low <= rate <= high))
    assert min(coverages) > 0.91
    assert 0.945 < sum(coverages) / len(coverages) < 0.965


@pytest.mark.parametrize("confidence", [0, 1, 95, -0.1, nan])
def test_a_confidence_is_between_0_and_1(confidence):
    with pytest.raises(ValueError, match=r"between 0 and 1, e.g. 0.95"):
        wilson_interval(0.5, 10, confidence)


def test_a_measures_interval_counts_images_not_views():
    metric = ShiftConsistency()
    metric.update(torch.tensor([[1, 1, 1, 1]] * 8 + [[0, 1, 2, 3]] * 2))
    assert metric.interval() == wilson_interval(0.8, 10)
    assert metric.interval(0.5) == wilson_interval(0.8, 10, 0.5)
