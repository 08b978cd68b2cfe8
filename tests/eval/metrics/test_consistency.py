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


def value(make, *inputs):
    metric = make()
    metric.update(*inputs)
    return metric.compute()


def of_views(make, predictions, target):
    return value(make, predictions, *([target] if make is WorstCaseAccuracy else []))


def as_logits(labels, classes):
    return one_hot(labels, classes) + torch.rand(*labels.shape, classes) * 0.9


@pytest.mark.parametrize("make", OF_ONE_IMAGE, ids=lambda make: getattr(make, "__name__", "AgainstFirst"))
def test_rates_of_labels_and_of_logits_are_those_of_plain_loops(make):
    for classes, count in ((2, 2), (2, 7), (4, 3)):
        seen, right = torch.randint(classes, (60, count)), torch.randint(classes, (60,))
        seen[::5] = right[::5, None]  # else hardly any image is right seven times
        expected = [OF_ONE_IMAGE[make](*image) for image in zip(seen.tolist(), right.tolist(), strict=True)]
        for predictions in (seen, as_logits(seen, classes)):
            assert of_views(make, predictions, right) == pytest.approx(float(share(expected)), abs=FIXED_POINT)


@pytest.mark.parametrize("predictions", [torch.tensor([2, 0, 1, 1]), torch.eye(3)[[2, 0, 1, 1]]])
def test_top_one(predictions):
    assert value(TopOne, predictions, torch.tensor([2, 0, 1, 0])) == 0.75


def test_logits_that_are_not_numbers_are_no_answer():
    logits = torch.zeros(2, 3, 4)
    logits[0, 1:, 2] = nan  # two of three views of the first image
    target = torch.zeros(2, dtype=torch.int64)
    for make in (ShiftConsistency, AgainstFirst, WorstCaseConsistency, WorstCaseAccuracy, FlickerRate):
        assert of_views(make, logits, target) == 1 / 2
    assert value(TopOne, logits[:, 1], target) == 1 / 2


# bits, and differences of logits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bits_are_compared_in_every_precision(dtype):
    logits = torch.tensor([[0.0, nan, 1.0], [-0.0, nan, 1.0], [0.0, nan, 1 + torch.finfo(dtype).eps]]).to(dtype)
    logits[2, 2] = 1 + torch.finfo(dtype).eps  # float32 cannot hold that of float64
    elsewhere = logits.t().contiguous().t()  # the same numbers in another order of memory
    assert bit_identical(logits[:1], elsewhere).tolist() == [True, False, False]


def test_exact_fraction_and_largest_change_are_those_of_plain_loops():
    logits = torch.randint(2, (30, 4, 2)).float() + torch.randint(2, (30, 4, 1)) * 1e-3
    images = logits.tolist()
    shares = [share(view == image[0] for view in image[1:]) for image in images]
    pairs = [(a, b) for image in images for view in image[1:] for a, b in zip(view, image[0], strict=True)]
    for make, compare, expected in (
        (BitExactFraction, bit_identical, float(share(shares))),
        (LargestLogitChange, logit_change, max(abs(a - b) for a, b in pairs)),
    ):
        assert value(make, logits) == pytest.approx(expected, abs=FIXED_POINT)
        assert value(make, logits) == value(make, compare(logits[:, :1], logits[:, 1:]))  # compared beforehand


def test_a_nan_is_not_lost_among_changes():
    metric = LargestLogitChange()
    for change in (1.0, nan, 2.0):
        metric.update(torch.tensor([[[0.0], [change]]]))
    assert isnan(metric.compute())


# masks


def test_mean_iou_worked_out_by_hand():
    # class 0: 1 of 3 pixels, class 1: 2 of 3, class 2: predicted for nothing, class 3: nowhere, so it does not count
    metric = MeanIoU(4, ignore_index=255)
    metric.update(torch.tensor([[[0, 2, 1], [1, 1, 0]]]), torch.tensor([[[0, 0, 0], [1, 1, 255]]]))
    assert metric.by_class().tolist() == pytest.approx([1 / 3, 2 / 3, 0, nan], nan_ok=True)
    assert metric.compute() == pytest.approx(1 / 3)
    assert metric.pixel_accuracy() == 3 / 5


@pytest.mark.parametrize("ignored", [None, 255, -1, 0, 3])
@pytest.mark.parametrize("present", [2, 6])
def test_mean_iou_of_labels_and_of_logits_is_that_of_torchmetrics(ignored, present):
    seen, target = torch.randint(present, (2, 3, 7, 5))
    if ignored is not None:
        target[torch.rand(3, 7, 5) < 0.2] = ignored
    ours, theirs = MeanIoU(6, ignored), MulticlassJaccardIndex(6, average="macro", ignore_index=ignored)
    ours.update(seen[:1], target[:1])
    ours.update(as_logits(seen[1:], 6).permute(0, 3, 1, 2), target[1:])
    theirs.update(seen, target)
    assert ours.compute() == pytest.approx(float(theirs.compute()), abs=1e-6)


@pytest.mark.parametrize("ignored", [-100, 255, 300])
def test_masks_of_bytes_lose_no_class_to_a_label_that_bytes_cannot_hold(ignored):
    target = torch.tensor([[[156, 44, 3, 255]]], dtype=torch.uint8)  # -100 + 256 and 300 - 256
    metric = MeanIoU(256, ignored)
    metric.update(target.long(), target)
    assert metric.occurring.nonzero().flatten().tolist() == [3, 44, 156, 255][: 3 if ignored == 255 else 4]


@pytest.mark.parametrize("count", [2, 5])
def test_segmentation_consistency_is_that_of_plain_loops(count):
    seen, covered = torch.randint(3, (6, count, 5, 4)), torch.rand(6, count, 5, 4) < 0.8
    for given in (None, covered):
        visible = torch.ones_like(covered) if given is None else covered
        images = []
        for labels, shown in zip(seen.flatten(2).tolist(), visible.flatten(2).tolist(), strict=True):
            views = combinations([list(zip(*view, strict=True)) for view in zip(labels, shown, strict=True)], 2)
            pixels = [[p == q for (p, a), (q, b) in zip(*pair, strict=True) if a and b] for pair in views]
            images.append(share(map(share, pixels)))
        assert value(SegmentationConsistency, seen, given) == pytest.approx(float(share(images)), abs=FIXED_POINT)


# order, parts, torchmetrics


def test_neither_order_nor_parts_change_a_number():
    for make, inputs in every_metric(41).values():
        at_once = value(make, *inputs)
        for _ in range(3):
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
    makes = (ShiftConsistency, AgainstFirst, WorstCaseConsistency, WorstCaseAccuracy)
    together = MetricCollection({str(number): make() for number, make in enumerate(makes)})
    together.update(predictions=torch.tensor([[1, 1, 1]]), target=torch.tensor([1]))
    together.update(predictions=torch.tensor([[1, 0, 0], [1, 1, 1]]), target=torch.tensor([1, 0]))
    assert [float(rate) for rate in together.compute().values()] == pytest.approx([7 / 9, 2 / 3, 2 / 3, 1 / 3])
    ious = MetricCollection({"all": MeanIoU(3), "without 2": MeanIoU(3, ignore_index=2)})
    for mask in (torch.tensor([[[0, 1], [1, 0]]]), torch.tensor([[[0, 1], [1, 2]]])):  # nothing to ignore in the first
        ious.update(torch.tensor([[[0, 1], [1, 1]]]), mask)
    found = {name: float(iou) for name, iou in ious.compute().items()}
    assert found == pytest.approx({"all": (2 / 3 + 4 / 6 + 0) / 3, "without 2": (2 / 3 + 4 / 5) / 2})


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
        (0.0, 20, 0.95, 0.0, 0.1611),  # z² / (n + z²)
        (0.5, 4, 0.90, 0.1824, 0.8176),  # 1/2 ± z / 2 sqrt(n + z²)
    ],
)
def test_intervals_worked_out_by_hand(rate, count, confidence, low, high):
    assert wilson_interval(rate, count, confidence) == pytest.approx((low, high), abs=5e-5)


def test_the_rate_lies_inside():
    for images in range(1, 300):
        for hits in {0, 1, images - 1, images // 2, images}:
            low, high = wilson_interval(hits / images, images)
            assert 0 <= low <= hits / images <= high <= 1


@pytest.mark.parametrize("confidence", [0, 1, 95, nan])
def test_a_confidence_is_between_0_and_1(confidence):
    with pytest.raises(ValueError, match=r"between 0 and 1, e.g. 0.95"):
        wilson_interval(0.5, 10, confidence)


def test_a_measures_interval_counts_images_not_views_whose_number_may_change():
    metric = ShiftConsistency()
    metric.update(torch.tensor([[1, 1, 1, 1]] * 8))
    metric.update(torch.tensor([[0, 1, 2]] * 2))
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
        (ShiftConsistency(), (labels(4, 1),), "at least 2 shifts"),
        (WorstCaseConsistency(), (torch.rand(4, 1, 3),), "at least 2 shifts"),
        (WorstCaseAccuracy(), (labels(4, 3), labels(1)), r"needs one per image, \[4\]"),
        (WorstCaseAccuracy(), (labels(4, 0), labels(4)), "0 views"),
        (FlickerRate(), (labels(4, 1),), "at least 2"),
        (LongestRun(), (labels(4, 1),), "at least 2"),
        (BitExactFraction(), (labels(4, 0).bool(),), "at least 2 shifts"),
        (BitExactFraction(), (torch.rand(4, 3),), r"needs \[N, K, classes\]"),
        (LargestLogitChange(), (torch.rand(4, 1, 3),), "at least 2 shifts"),
        (LargestLogitChange(), (torch.rand(4, 2, 3, 3),), r"needs \[N, K, classes\]"),
        (MeanIoU(3), (labels(1, 4, 4), labels(1, 4, 5)), "need one size"),
        (MeanIoU(3), (torch.rand(1, 4, 4), labels(1, 4, 4)), "needs integer labels"),
        (MeanIoU(3), (labels(1, 4, 4) - 1, labels(1, 4, 4)), "a prediction has labels -1 to -1: needs 0 to 2"),
        (MeanIoU(3), (labels(1, 4, 4), labels(1, 4, 4) + 3), r"a mask has labels 3 to 3: needs 0 to 2$"),
        (MeanIoU(3, 255), (labels(1, 4, 4), labels(1, 4, 4) + 3), "a mask has labels 3 to 3: .* or 255 to ignore"),
        (SegmentationConsistency(), (labels(4, 1, 2, 2),), "at least 2 shifts"),
        (SegmentationConsistency(), (torch.rand(4, 2, 3, 5, 5),), r"needs integer labels \[N, K, H, W\]"),
        (SegmentationConsistency(), (labels(4, 2, 2, 2), labels(1, 2, 2, 2).bool()), "needs the same"),
        (SegmentationConsistency(), (labels(4, 2, 2, 2), labels(4, 2, 2, 2).bool()), "no pixel in common"),
    ],
)
def test_the_error_says_what_was_wrong(metric, inputs, message, our_errors):
    with pytest.raises(ValueError, match=message):
        metric.update(*inputs)
