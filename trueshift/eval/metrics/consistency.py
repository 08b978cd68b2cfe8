r"""The paper's metrics and some more, as torchmetrics: safe in any number of processes.

Predictions of one image under K shifts are ``[N, K]`` labels, or ``[N, K, classes]`` logits. Rates are kept as integers
(fixed point, 2^-32), so their sum does not depend on the order of images or on how processes share them.
"""

from collections.abc import Callable
from math import sqrt
from statistics import NormalDist
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, Integer, Shaped
from torch import Tensor
from torchmetrics import Metric

_UNIT = 2**32


def wilson_interval(rate: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    r"""Wilson's score interval for a rate seen on ``count`` independent images.

    .. math:: \frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}

    Where an image contributes a mean of several answers, the variance is at most p (1 - p): the interval is too wide
    rather than too narrow.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: needs a number between 0 and 1, e.g. 0.95")
    if count < 1:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = rate + z * z / (2 * count)
    half = z * sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    # rounding may leave the ends a little inside of a rate of 0 or 1
    return max(0.0, min(rate, (middle - half) / scale)), min(1.0, max(rate, (middle + half) / scale))


class _Measure(Metric):
    full_state_update = False
    higher_is_better = True
    is_differentiable = False

    def synced(self) -> Any:
        """A context in which the states are those of all processes."""
        return self.sync_context(dist_sync_fn=self.dist_sync_fn)

    def _add_counts(self, *names: str, size: tuple[int, ...] = ()) -> None:
        for name in names:
            self.add_state(name, torch.zeros(size, dtype=torch.int64), dist_reduce_fx="sum")


class _Rate(_Measure):
    """The mean over images of a number between 0 and 1."""

    images: Tensor

    def __init__(self, variant: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # a unique name: MetricCollection merges metrics whose states have equal names and, after one batch, values
        self._total = f"total_of_{type(self).__name__}{variant}"
        self._add_counts(self._total, "images")

    @property
    def total(self) -> Int64[Tensor, ""]:
        """The sum over images, in units of 2^-32."""
        return getattr(self, self._total)

    def _add(self, values: Shaped[Tensor, "N"]) -> None:
        self.total.add_((values.double() * _UNIT).round().long().sum().to(self.total.device))
        self.images += values.numel()

    def compute(self) -> Float[Tensor, ""]:
        """The rate, 0 to 1; NaN if there was no image."""
        return self.total.double() / _UNIT / self.images

    def seen(self) -> tuple[float, int]:
        """The rate and the number of images, over all processes."""
        with self.synced():
            return float(self.total.double() / _UNIT / self.images), int(self.images)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Wilson's interval around the rate, with images as the independent unit."""
        return wilson_interval(*self.seen(), confidence)


class TopOne(_Rate):
    """How often the first answer is right: Top-1 accuracy. Takes labels ``[N]`` or logits ``[N, classes]``."""

    def update(self, predictions: Shaped[Tensor, "N *classes"], target: Integer[Tensor, "N"]) -> None:
        """Add images."""
        self._add(_labels(predictions, 1, target) == target)


class ShiftConsistency(_Rate):
    r"""How often two different shifts of an image get the same answer: C-Cons. and S-Cons. of the paper.

    .. math:: \frac1{|D|} \sum_{I \in D} E_{\Delta_1 \neq \Delta_2} 1[\hat y(S^{\Delta_1} I) = \hat y(S^{\Delta_2} I)]

    With two shifts per image this is the paper's sampled pair; with K, the mean over all K (K - 1) / 2 pairs of them,
    which has the same expectation and less variance; with all shifts, the expectation itself.

    Args:
        against_first: compare each shift with the first view only, for images that are compared with the unshifted.
    """

    def __init__(self, against_first: bool = False, **kwargs: Any) -> None:
        super().__init__("_against_first" if against_first else "", **kwargs)
        self.against_first = against_first

    def update(self, predictions: Shaped[Tensor, "N K *classes"]) -> None:
        """Add images, each under K shifts; K may be another number next time."""
        labels = _labels(predictions, 2, least=2)
        self._add(agreement_with_first(labels) if self.against_first else pair_agreement(labels))


class WorstCaseConsistency(_Rate):
    """How many images get the same answer under all of their shifts."""

    def update(self, predictions: Shaped[Tensor, "N K *classes"]) -> None:
        """Add images, each under K shifts."""
        labels = _labels(predictions, 2, least=2)
        self._add((labels == labels[:, :1]).all(1))


class WorstCaseAccuracy(_Rate):
    """How many images get the right answer under all of their shifts."""

    def update(self, predictions: Shaped[Tensor, "N K *classes"], target: Integer[Tensor, "N"]) -> None:
        """Add images, each under K shifts."""
        labels = _labels(predictions, 2, target, least=1)
        self._add((labels == target[:, None]).all(1))


class BitExactFraction(_Rate):
    """How many shifted images give the same bits as the first view of their image.

    Takes logits ``[N, K, classes]``, the first view first, or what :func:`bit_identical` made of them, ``[N, K - 1]``.
    """

    def update(self, logits: Float[Tensor, "N K classes"] | Bool[Tensor, "N L"]) -> None:
        """Add images, each under K shifts."""
        self._add(_compared(logits, logits.dtype == torch.bool, bit_identical).double().mean(1))


class LargestLogitChange(_Measure):
    """The largest change of any logit of any image between its first view and another.

    Takes logits ``[N, K, classes]``, the first view first, or what :func:`logit_change` made of them, ``[N, K - 1]``.
    """

    higher_is_better = False
    largest: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("largest", torch.zeros((), dtype=torch.float64), dist_reduce_fx="max")

    def update(self, logits: Float[Tensor, "N K *classes"]) -> None:
        """Add images, each under K shifts."""
        change = _compared(logits, logits.dim() == 2, logit_change)
        if change.numel():
            self.largest = torch.maximum(self.largest, change.max().double().to(self.largest.device))

    def compute(self) -> Float[Tensor, ""]:
        """The largest change; NaN if a logit was."""
        return self.largest


class FlickerRate(_Rate):
    """How often the answer changes from one frame to the next while the content only moves.

    The mean over clips of the share of neighbouring frames with different answers: 0 is a steady answer. For video,
    and for a still image under consecutive crops.
    """

    higher_is_better = False

    def update(self, predictions: Shaped[Tensor, "N T *classes"]) -> None:
        """Add clips of T frames; T may be another number next time."""
        labels = _labels(predictions, 2, least=2)
        self._add((labels[:, 1:] != labels[:, :-1]).double().mean(1))


class LongestRun(_Rate):
    """The longest run of frames with one answer, as a part of the clip: 1 is a steady answer."""

    def update(self, predictions: Shaped[Tensor, "N T *classes"]) -> None:
        """Add clips of T frames."""
        labels = _labels(predictions, 2, least=2)
        self._add((_place_in_run(labels).amax(1) + 1).double() / labels.shape[1])


class MeanIoU(_Measure):
    """Intersection over union of each class over all pixels of all images, and the mean over the classes that occur.

    A class that neither the masks nor the predictions have does not count.

    Args:
        num_classes: how many there are.
        ignore_index: pixels with this label in the mask do not count.
    """

    intersection: Tensor
    union: Tensor

    def __init__(self, num_classes: int, ignore_index: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self._occurring = f"occurring_without_{ignore_index}"  # unique, as for rates
        self._add_counts("intersection", "union", self._occurring, size=(num_classes,))

    @property
    def occurring(self) -> Int64[Tensor, "classes"]:
        """How many pixels of the masks have each class."""
        return getattr(self, self._occurring)

    def update(self, predictions: Shaped[Tensor, "N *classes H W"], target: Integer[Tensor, "N H W"]) -> None:
        """Add images: labels ``[N, H, W]`` or logits ``[N, classes, H, W]``, and masks."""
        labels = predictions.argmax(1) if predictions.dim() == 4 else predictions
        if labels.is_floating_point():
            raise ValueError(
                f"predictions of shape {tuple(predictions.shape)} and type {predictions.dtype}: needs integer labels "
                "[N, H, W], or logits [N, classes, H, W]"
            )
        self.add(class_counts(labels, target, self.num_classes, self.ignore_index))

    def add(self, counts: Int64[Tensor, "classes 3"]) -> None:
        """Add images that :func:`class_counts` has counted."""
        both, wanted, given = counts.to(self.intersection.device).unbind(1)
        self.intersection += both
        self.union += wanted + given - both
        self.occurring.add_(wanted)

    def by_class(self) -> Float[Tensor, "classes"]:
        """Intersection over union of each class, over all processes; NaN where there is none."""
        with self.synced():
            return self._by_class()

    def pixel_accuracy(self) -> float:
        """The share of pixels with the right label, over all processes; NaN if there was none."""
        with self.synced():
            return float(self.intersection.sum().double() / self.occurring.sum())

    def _by_class(self) -> Float[Tensor, "classes"]:
        shares = self.intersection.double() / self.union
        if self.ignore_index is not None and 0 <= self.ignore_index < self.num_classes:
            shares[self.ignore_index] = torch.nan  # no pixel counts that could be right
        return shares

    def compute(self) -> Float[Tensor, ""]:
        """The mean over the classes that occur, 0 to 1."""
        return self._by_class().nanmean()


def class_counts(
    labels: Integer[Tensor, "*n H W"],
    target: Integer[Tensor, "*n H W"],
    num_classes: int,
    ignore_index: int | None = None,
) -> Int64[Tensor, "classes 3"]:
    """For each class, on how many pixels it is right, how many have it in the mask, and how many in the prediction."""
    if labels.shape != target.shape:
        raise ValueError(f"predictions of {tuple(labels.shape)} for masks of {tuple(target.shape)}: need one size")
    target = target.long()  # bytes would compare with ignore_index modulo 256
    counted = target != ignore_index if ignore_index is not None else torch.ones_like(target).bool()
    labels, target = labels[counted].long(), target[counted]
    ignored = "" if ignore_index is None else f", or {ignore_index} to ignore"
    for what, values, other in (("prediction", labels, ""), ("mask", target, ignored)):
        if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < num_classes:
            raise ValueError(
                f"a {what} has labels {int(values.min())} to {int(values.max())}: needs 0 to {num_classes - 1}{other}"
            )
    parts = (target[labels == target], target, labels)
    return torch.stack([torch.bincount(part, minlength=num_classes) for part in parts], 1)


class SegmentationConsistency(_Rate):
    r"""How many pixels get the same label under two different shifts of their image: mASCC and mASSC of the paper.

    .. math:: \frac1{|D|} \sum_{I \in D} E_{\Delta_1 \neq \Delta_2} \frac1{|C|} \sum_{(u, v) \in C}
        1[S^{-\Delta_1} \hat y(S^{\Delta_1} I)[u, v] = S^{-\Delta_2} \hat y(S^{\Delta_2} I)[u, v]]

    where C are the pixels that both views show: all of them on the circle (mASCC), and those outside of both uncovered
    bands for standard shifts (mASSC).

    Takes labels of pixels under K shifts, or what :func:`pixel_agreement` made of them, ``[N]``.
    """

    def update(
        self,
        predictions: Integer[Tensor, "N K H W"] | Float[Tensor, "N"],
        covered: Bool[Tensor, "N K H W"] | None = None,
    ) -> None:
        """Add images: labels of pixels under K shifts, already moved back, and the pixels that each view shows."""
        agreement = predictions.is_floating_point()
        if predictions.dim() != (1 if agreement else 4):
            raise ValueError(
                f"predictions of shape {tuple(predictions.shape)} and type {predictions.dtype}: needs integer labels "
                "[N, K, H, W], or what pixel_agreement made of them, [N]"
            )
        if agreement:
            self._add(predictions)
            return
        _check_views(predictions.shape[1])
        if covered is not None and covered.shape != predictions.shape:
            raise ValueError(
                f"covered has shape {tuple(covered.shape)}: needs the same as predictions, {tuple(predictions.shape)}"
            )
        self._add(pixel_agreement(predictions, covered))


def pair_agreement(labels: Integer[Tensor, "N K"]) -> Float[Tensor, "N"]:
    """The share of all pairs of views that got the same label, for each image."""
    count = labels.shape[1]
    # sorted, equal labels are runs, and a run of n holds n (n - 1) / 2 pairs: no K x K comparison, as K may be large
    return _place_in_run(labels.sort(1).values).sum(1).double() / (count * (count - 1) / 2)


def _place_in_run(labels: Integer[Tensor, "N K"]) -> Int64[Tensor, "N K"]:
    """How many labels directly before each are the same."""
    starts = torch.ones_like(labels, dtype=torch.bool)
    starts[:, 1:] = labels[:, 1:] != labels[:, :-1]
    position = torch.arange(labels.shape[1], device=labels.device)
    return position - torch.where(starts, position, 0).cummax(1).values


def agreement_with_first(labels: Integer[Tensor, "N K"]) -> Float[Tensor, "N"]:
    """The share of views that got the same label as the first one, for each image."""
    return (labels[:, 1:] == labels[:, :1]).double().mean(1)


def pixel_agreement(
    labels: Integer[Tensor, "N K H W"], covered: Bool[Tensor, "N K H W"] | None = None
) -> Float[Tensor, "N"]:
    """The share of pixels with the same label in two views, over all pairs of views, for each image."""
    shares = []
    covered = torch.ones_like(labels, dtype=torch.bool) if covered is None else covered
    for first in range(labels.shape[1]):
        for second in range(first):
            same = (labels[:, first] == labels[:, second]).flatten(1)
            both = (covered[:, first] & covered[:, second]).flatten(1)
            if not both.any(1).all():
                raise ValueError("two shifts of an image have no pixel in common: needs smaller shifts")
            shares.append((same & both).sum(1).double() / both.sum(1))
    return sum(shares[1:], shares[0]) / len(shares)  # unlike mean(0), rounded the same at every place in a batch


def logit_change(reference: Float[Tensor, "*n classes"], logits: Float[Tensor, "*m classes"]) -> Float[Tensor, "*m"]:
    """The largest absolute difference to the reference over the classes."""
    difference = (logits.double() - reference.double()).abs()
    return difference.masked_fill(logits == reference, 0).amax(-1)  # also where both are infinite


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_identical(reference: Float[Tensor, "*n classes"], logits: Float[Tensor, "*m classes"]) -> Bool[Tensor, "*m"]:
    """Whether all bits are the reference's: 0 and -0 differ, equal NaN do not."""
    bits = _BITS[logits.element_size()]
    return (logits.contiguous().view(bits) == reference.contiguous().view(bits)).all(-1)


def _labels(predictions: Tensor, dims: int, target: Tensor | None = None, least: int = 0) -> Tensor:
    """Labels, or those of the largest logits: ``dims`` dimensions, one target per image, ``least`` views.

    Logits with a NaN are no answer: their label is negative, and that of no other view.
    """
    logits = predictions.is_floating_point()
    if predictions.dim() != dims + logits:
        raise ValueError(
            f"predictions of shape {tuple(predictions.shape)} and type {predictions.dtype}: needs integer labels with "
            f"{dims} dimensions, or logits with one more"
        )
    labels = predictions.argmax(-1) if logits else predictions
    if logits:
        alone = -1 - torch.arange(labels.shape[-1], device=labels.device)
        labels = torch.where(predictions.isnan().any(-1), alone, labels)
    if target is not None and target.shape != labels.shape[:1]:
        raise ValueError(f"targets of shape {tuple(target.shape)}: needs one per image, [{labels.shape[0]}]")
    if least:
        _check_views(labels.shape[1], least)
    return labels


def _check_views(views: int, least: int = 2) -> None:
    if views < least:
        raise ValueError(f"{views} views per image: needs at least {least} shifts or frames")


def _compared(logits: Tensor, beforehand: bool, compare: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The other views compared with the first one, unless that was done beforehand."""
    if logits.dim() != 3 - beforehand:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)}: needs [N, K, classes], or [N, K - 1] if already compared"
        )
    _check_views(logits.shape[1] + beforehand)
    return logits if beforehand else compare(logits[:, :1], logits[:, 1:])
