"""Every measure against numbers worked out by hand, and against plain loops over images, pairs and pixels."""

from fractions import Fraction
from functools import partial
from itertools import combinations, groupby, pairwise
from math import isnan, nan

import pytest
import torch
from known_metrics import every_metric
from torch.nn.functional import one_hot
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassJaccardIndex

from trueshift.eval.metrics.consistency import (
    BitExactFraction,
    FlickerRate,
    LargestLogitChange,
    LongestRun,
    MeanIoU,
    SegmentationConsistency,
    ShiftConsistency,
    TopOne,
    WorstCaseAccuracy,
    WorstCaseConsistency,
    bit_identical,
    logit_change,
    pixel_agreement,
    wilson_interval,
)

FIXED_POINT = 2**-32
AgainstFirst = partial(ShiftConsistency, against_first=True)


def share(answers):
    answers = list(answers)
    return Fraction(sum(answers), len(answers))


# what one image adds, from its labels under all shifts and its class
OF_ONE_IMAGE = {
    ShiftConsistency: lambda seen, right: share(a == b for a, b in combinations(seen, 2)),
    AgainstFirst: lambda seen, right: share(label == seen[0] for label in seen[1:]),
    WorstCaseConsistency: lambda seen, right: Fraction(len(set(seen)) == 1),
    WorstCaseAccuracy: lambda seen, right: Fraction(set(seen) == {right}),
    FlickerRate: lambda seen, right: share(a != b for a, b in pairwise(seen)),
    LongestRun: lambda seen, right: Fraction(max(len(list(run)) for _, run in groupby(seen)), len(seen)),
}
over_views = pytest.mark.parametrize("make", OF_ONE_IMAGE, ids=lambda make: getattr(make, "__name__", "AgainstFirst"))


def value(make, *inputs):
    metric = make()
    metric.update(*inputs)
    return metric.compute()


def of_views(make, predictions, target):
    return value(make, predictions, *([target] if make is WorstCaseAccuracy else []))


def as_logits(labels, classes=3):
    return one_hot(labels, classes) + torch.rand(*labels.shape, classes) * 0.9


def some_views(images=40, count=3, classes=3):
    return torch.randint(classes, (images, count)), torch.randint(classes, (images,))


@over_views
@pytest.mark.parametrize("count", range(2, 8))
def test_rates_are_those_of_plain_loops(make, count):
    for classes in (2, 4):
        seen, right = some_views(60, count, classes)
        seen[::5] = right[::5, None]  # else hardly any image is right seven times
        expected = [OF_ONE_IMAGE[make](*image) for image in zip(seen.tolist(), right.tolist(), strict=True)]
        assert of_views(make, seen, right) == pytest.approx(float(share(expected)), abs=FIXED_POINT)


@over_views
def test_logits_count_as_the_label_of_the_largest(make):
    seen, right = some_views()
    assert of_views(make, as_logits(seen), right) == of_views(make, seen, right)


@pytest.mark.parametrize("predictions", [torch.tensor([2, 0, 1, 1]), torch.eye(3)[[2, 0, 1, 1]]])
def test_top_one(predictions):
    assert value(TopOne, predictions, torch.tensor([2, 0, 1, 0])) == 0.75


def test_logits_that_are_not_numbers_are_no_answer():
    logits = torch.zeros(2, 3, 4)
    logits[0, 1:, 2] = nan  # two of three views of the first image
    target = torch.zeros(2, dtype=torch.int64)
    wanted = {ShiftConsistency: 1 / 2, AgainstFirst: 1 / 2, WorstCaseConsistency: 1 / 2, WorstCaseAccuracy: 1 / 2}
    for make, rate in {**wanted, FlickerRate: 1 / 2}.items():
        assert of_views(make, logits, target) == rate
    assert value(TopOne, logits[:, 1], target) == 1 / 2


def test_the_number_of_views_may_change_between_updates():
    metric = ShiftConsistency()
    metric.update(torch.tensor([[1, 1]]))
    metric.update(torch.tensor([[1, 1, 2, 2]]))
    assert metric.compute() == pytest.approx((1 + 2 / 6) / 2, abs=FIXED_POINT)


# bits, and differences of logits


def test_bits_tell_the_two_zeros_apart_and_know_a_nan_again():
    first = torch.tensor([[0.0, nan, 1.0]])
    others = torch.tensor([[0.0, nan, 1.0], [-0.0, nan, 1.0], [0.0, nan, 1.0 + 2**-23]])
    assert bit_identical(first, others).tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bits_are_compared_in_every_precision(dtype):
    first = torch.rand(1, 4, dtype=torch.float64).to(dtype)
    last_bit = torch.nextafter(first.float(), torch.ones(())) if dtype == torch.float32 else first * 1.02
    others = torch.stack([first[0], last_bit[0].to(dtype)])
    assert bit_identical(first, others).tolist() == [True, False]


def test_bits_of_a_view_into_other_memory():
    logits = torch.rand(4, 3).t()
    assert bit_identical(logits[:1], logits).tolist() == [True, False, False]


@pytest.mark.parametrize("count", range(2, 8))
def test_exact_fraction_and_largest_change_are_those_of_plain_loops(count):
    logits = torch.randint(2, (30, count, 2)).float() + torch.randint(2, (30, count, 1)) * 1e-3
    images = logits.tolist()
    shares = [share(view == image[0] for view in image[1:]) for image in images]
    assert value(BitExactFraction, logits) == pytest.approx(float(share(shares)), abs=FIXED_POINT)
    pairs = [(a, b) for image in images for view in image[1:] for a, b in zip(view, image[0], strict=True)]
    assert value(LargestLogitChange, logits) == max(abs(a - b) for a, b in pairs)


def test_comparisons_made_beforehand_count_the_same():
    logits = torch.randint(2, (20, 4, 2)).float()
    for make, compare in ((BitExactFraction, bit_identical), (LargestLogitChange, logit_change)):
        assert value(make, logits) == value(make, compare(logits[:, :1], logits[:, 1:])) > 0


def test_a_nan_is_not_lost_among_changes():
    metric = LargestLogitChange()
    for value in (1.0, nan, 2.0):
        metric.update(torch.tensor([[[0.0], [value]]]))
    assert isnan(metric.compute())


# masks


def test_mean_iou_worked_out_by_hand():
    # class 0: 1 of 3 pixels, class 1: 2 of 3, class 2: predicted for nothing, class 3: nowhere, so it does not count
    target = torch.tensor([[[0, 0, 0], [1, 1, 255]]])
    seen = torch.tensor([[[0, 2, 1], [1, 1, 0]]])
    metric = MeanIoU(4, ignore_index=255)
    metric.update(seen, target)
    assert metric.by_class().tolist() == pytest.approx([1 / 3, 2 / 3, 0, nan], nan_ok=True)
    assert metric.compute() == pytest.approx(1 / 3)
    counted = MeanIoU(4)
    counted.update(seen, target.where(target != 255, 3))
    assert counted.by_class().tolist() == pytest.approx([1 / 4, 2 / 3, 0, 0])


def naive_iou(seen, target, classes, ignored):
    pairs = [(p, t) for p, t in zip(seen.flatten().tolist(), target.flatten().tolist(), strict=True) if t != ignored]
    shares = []
    for label in set(range(classes)) - {ignored}:
        either = [p == t for p, t in pairs if label in (p, t)]
        shares += [share(either)] if either else []
    return float(sum(shares) / len(shares))


@pytest.mark.parametrize("ignored", [None, 255, -1, 0, 3])
@pytest.mark.parametrize("present", [2, 4, 6])
def test_mean_iou_is_that_of_plain_loops_and_of_torchmetrics(ignored, present):
    seen, target = torch.randint(present, (2, 3, 7, 5))
    if ignored is not None:
        target[torch.rand(3, 7, 5) < 0.2] = ignored
    ours, theirs = MeanIoU(6, ignored), MulticlassJaccardIndex(6, average="macro", ignore_index=ignored)
    for image in range(3):
        ours.update(seen[image : image + 1], target[image : image + 1])
        theirs.update(seen[image : image + 1], target[image : image + 1])
    assert ours.compute() == pytest.approx(naive_iou(seen, target, 6, ignored), abs=1e-12)
    assert ours.compute() == pytest.approx(float(theirs.compute()), abs=1e-6)


@pytest.mark.parametrize("ignored", [-100, 255, 300])
def test_masks_of_bytes_lose_no_class_to_a_label_that_bytes_cannot_hold(ignored):
    target = torch.tensor([[[156, 44, 3, 255]]], dtype=torch.uint8)  # -100 + 256 and 300 - 256
    metric = MeanIoU(256, ignored)
    metric.update(target.long(), target)
    assert metric.occurring.nonzero().flatten().tolist() == [3, 44, 156, 255][: 3 if ignored == 255 else 4]


def test_mean_iou_takes_logits():
    seen, target = torch.randint(3, (2, 2, 4, 5))
    make = partial(MeanIoU, 3)
    assert value(make, seen, target) == value(make, as_logits(seen).permute(0, 3, 1, 2), target)


def naive_pixel_agreement(seen, covered):
    pairs = []
    for first, second in combinations(range(len(seen)), 2):
        pixels = [
            seen[first][u][v] == seen[second][u][v]
            for u in range(len(seen[0]))
            for v in range(len(seen[0][0]))
            if covered[first][u][v] and covered[second][u][v]
        ]
        pairs.append(share(pixels))
    return share(pairs)


@pytest.mark.parametrize("count", range(2, 8))
def test_segmentation_consistency_is_that_of_plain_loops(count):
    seen, covered = torch.randint(3, (6, count, 5, 4)), torch.rand(6, count, 5, 4) < 0.8
    for given in (None, covered):
        visible = covered if given is not None else torch.ones_like(covered)
        expected = share(map(naive_pixel_agreement, seen.tolist(), visible.tolist()))
        assert value(SegmentationConsistency, seen, given) == pytest.approx(float(expected), abs=FIXED_POINT)


# order, parts, torchmetrics


def test_neither_order_nor_parts_change_a_number():
    for make, inputs in every_metric(41).values():
        at_once = value(make, *inputs)
        for _ in range(5):
            in_parts = make()
            for part in torch.randperm(41).tensor_split(sorted(torch.randint(42, (6,)).tolist())):
                in_parts.update(*(values[part] for values in inputs))
            assert torch.equal(in_parts.compute(), at_once), make


def test_an_image_adds_the_same_beside_others_as_alone():
    # a sum over pairs may be rounded differently at another place in a batch
    seen, covered = torch.randint(3, (37, 12, 3, 5)), torch.rand(37, 12, 3, 5) < 0.9
    alone = [pixel_agreement(seen[i : i + 1], covered[i : i + 1]) for i in range(37)]
    assert torch.equal(pixel_agreement(seen, covered), torch.cat(alone))


def test_forward_gives_the_batch_and_reset_forgets_everything():
    for make, inputs in every_metric(41).values():
        metric = make()
        for part in torch.arange(41).split((30, 11)):
            batch = [values[part] for values in inputs]
            assert torch.equal(metric(*batch), value(make, *batch))
        assert torch.equal(metric.compute(), value(make, *inputs))
        metric.reset()
        metric.update(*batch)
        assert torch.equal(metric.compute(), value(make, *batch))


def test_a_collection_keeps_measures_apart_that_began_alike():
    # torchmetrics takes measures for one and the same whose states are equal after the first update
    made = {make: make() for make in (ShiftConsistency, AgainstFirst, WorstCaseConsistency, WorstCaseAccuracy)}
    together = MetricCollection({str(number): metric for number, metric in enumerate(made.values())})
    together.update(predictions=torch.tensor([[1, 1, 1]]), target=torch.tensor([1]))
    together.update(predictions=torch.tensor([[1, 0, 0], [1, 1, 1]]), target=torch.tensor([1, 0]))
    assert [float(rate) for rate in together.compute().values()] == pytest.approx([7 / 9, 2 / 3, 2 / 3, 1 / 3])


def test_a_collection_keeps_ious_apart_that_ignore_other_labels():
    seen = torch.tensor([[[0, 1], [1, 1]]])
    masks = torch.tensor([[[0, 1], [1, 0]]]), torch.tensor([[[0, 1], [1, 2]]])  # nothing to ignore in the first
    together = MetricCollection({"all": MeanIoU(3), "without 2": MeanIoU(3, ignore_index=2)})
    apart = {"all": MeanIoU(3), "without 2": MeanIoU(3, ignore_index=2)}
    for mask in masks:
        together.update(seen, mask)
        for metric in apart.values():
            metric.update(seen, mask)
    found = {name: float(value) for name, value in together.compute().items()}
    assert found == {name: float(metric.compute()) for name, metric in apart.items()}
    assert found["all"] < found["without 2"]


def test_no_image_is_not_a_rate():
    metric = ShiftConsistency()
    metric.update(torch.zeros(0, 3, dtype=torch.int64))
    assert isnan(metric.compute())
    assert metric.interval() == (0.0, 1.0)


# intervals


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


def test_the_rate_lies_inside():
    for images in range(1, 300):
        for hits in {0, 1, images - 1, images // 2, images}:
            low, high = wilson_interval(hits / images, images)
            assert 0 <= low <= hits / images <= high <= 1
            assert high - low > 1 / (images + 5)


@pytest.mark.parametrize("confidence", [0, 1, 95, -0.1, nan])
def test_a_confidence_is_between_0_and_1(confidence):
    with pytest.raises(ValueError, match=r"between 0 and 1, e.g. 0.95"):
        wilson_interval(0.5, 10, confidence)


def test_a_measures_interval_counts_images_not_views():
    metric = ShiftConsistency()
    metric.update(torch.tensor([[1, 1, 1, 1]] * 8 + [[0, 1, 2, 3]] * 2))
    assert metric.interval() == wilson_interval(0.8, 10)
    assert metric.interval(0.5) == wilson_interval(0.8, 10, 0.5)


# bad input


def labels(*shape):
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("metric", "inputs", "message"),
    [
        (TopOne(), (labels(4, 3), labels(4)), "needs integer labels with 1 dimensions"),
        (TopOne(), (torch.rand(4), labels(4)), "needs integer labels with 1 dimensions"),
        (TopOne(), (labels(4), labels(1)), r"needs one per image, \[4\]"),
        (ShiftConsistency(), (labels(4),), r"predictions of shape \(4,\)"),
        (ShiftConsistency(), (torch.rand(4, 3),), "needs integer labels with 2 dimensions"),
        (ShiftConsistency(), (labels(4, 1),), "at least 2 shifts"),
        (AgainstFirst(), (labels(4, 1),), "at least 2 shifts"),
        (WorstCaseConsistency(), (torch.rand(4, 1, 3),), "at least 2 shifts"),
        (WorstCaseAccuracy(), (torch.rand(4, 3), labels(4)), "needs integer labels with 2 dimensions"),
        (WorstCaseAccuracy(), (labels(4, 3), labels(1)), r"needs one per image, \[4\]"),
        (WorstCaseAccuracy(), (labels(4, 0), labels(4)), "0 views"),
        (BitExactFraction(), (torch.rand(4, 1, 3),), "at least 2 shifts"),
        (BitExactFraction(), (labels(4, 0).bool(),), "at least 2 shifts"),
        (BitExactFraction(), (torch.rand(4, 3),), r"needs \[N, K, classes\]"),
        (LargestLogitChange(), (torch.rand(4, 1, 3),), "at least 2 shifts"),
        (LargestLogitChange(), (torch.rand(4, 2, 3, 3),), r"needs \[N, K, classes\]"),
        (FlickerRate(), (labels(4, 1),), "at least 2"),
        (MeanIoU(3), (labels(1, 4, 4), labels(1, 4, 5)), "need one size"),
        (MeanIoU(3), (torch.rand(1, 4, 4), labels(1, 4, 4)), "needs integer labels"),
        (MeanIoU(3), (labels(1, 4, 4) + 3, labels(1, 4, 4)), "a prediction has labels 3 to 3: needs 0 to 2"),
        (MeanIoU(3), (labels(1, 4, 4) - 1, labels(1, 4, 4)), "a prediction has labels -1 to -1: needs 0 to 2"),
        (MeanIoU(3), (labels(1, 4, 4), labels(1, 4, 4) + 3), r"a mask has labels 3 to 3: needs 0 to 2$"),
        (MeanIoU(3, 255), (labels(1, 4, 4), labels(1, 4, 4) + 3), "a mask has labels 3 to 3: .* or 255 to ignore"),
        (SegmentationConsistency(), (labels(4, 1, 2, 2),), "at least 2 shifts"),
        (SegmentationConsistency(), (torch.rand(4, 2, 3, 5, 5),), r"needs integer labels \[N, K, H, W\]"),
        (SegmentationConsistency(), (labels(4, 2, 2),), r"needs integer labels \[N, K, H, W\]"),
        (SegmentationConsistency(), (labels(4, 2, 2, 2), labels(1, 2, 2, 2).bool()), "needs the same"),
        (SegmentationConsistency(), (labels(4, 2, 2, 2), labels(4, 2, 2, 2).bool()), "no pixel in common"),
    ],
)
def test_the_error_says_what_was_wrong(metric, inputs, message, our_errors):
    with pytest.raises(ValueError, match=message):
        metric.update(*inputs)
