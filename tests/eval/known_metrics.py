"""Every metric, with images for it."""

from functools import partial

import torch

from trueshift.eval import LongestRun, metrics


def every_metric(images):
    """How to make each metric, and inputs of which a part gives another number than the whole."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (images, 4), generator=random)
    target = torch.randint(2, (images,), generator=random)
    logits = torch.randint(3, (images, 4, 2), generator=random) * torch.arange(1, images + 1).view(-1, 1, 1) / 7
    maps = torch.randint(4, (images, 3, 5, 6), generator=random)
    masks = torch.randint(4, (images, 5, 6), generator=random)
    covered = torch.rand(images, 3, 5, 6, generator=random) < 0.8
    labels[::4] = target[::4, None]
    return {
        "top one": (metrics.TopOne, (labels[:, 0], target)),
        "consistency": (metrics.ShiftConsistency, (labels,)),
        "against first": (partial(metrics.ShiftConsistency, against_first=True), (labels,)),
        "worst consistency": (metrics.WorstCaseConsistency, (labels,)),
        "worst accuracy": (metrics.WorstCaseAccuracy, (labels, target)),
        "bit exact": (metrics.BitExactFraction, (logits,)),
        "largest change": (metrics.LargestLogitChange, (logits,)),
        "flicker": (metrics.FlickerRate, (labels,)),
        "longest run": (LongestRun, (labels,)),
        "mean iou": (partial(metrics.MeanIoU, 4, ignore_index=3), (maps[:, 0], masks)),
        "masks": (metrics.SegmentationConsistency, (maps,)),
        "covered masks": (metrics.SegmentationConsistency, (maps, covered)),
    }
