"""Consistency of a label for each pixel: mIoU, mASCC and mASSC of a segmentation model."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .metrics import MeanIoU, SegmentationConsistency
from .protocols import Protocol

DenseForward = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B classes H W"]]


def measure_segmentation(
    forward: DenseForward,
    pairs: Iterable[tuple[Float[Tensor, "C _ _"], Int[Tensor, "_ _"]]],
    protocol: Protocol,
    num_classes: int,
    shifts: int = 2,
    seed: int = 0,
    ignore_index: int | None = None,
) -> dict[str, Any]:
    """mIoU on the unshifted images, and how many pixels keep their label when the image moves.

    Args:
        forward: normalised images to logits of their pixels.
        pairs: images with masks, of any sizes; each is shown with its shifts in one batch.
        protocol: ``ade20k-circular`` (mASCC) or ``ade20k-standard`` (mASSC).
    """
    if not protocol.dense:
        raise ValueError(f"protocol {protocol.name!r} compares one answer per image: needs one of ADE20K's")
    if shifts < 2:
        raise ValueError(f"{shifts} shifts: needs at least 2, to compare one with another")
    iou, consistency = MeanIoU(num_classes, ignore_index), SegmentationConsistency()
    for index, (image, mask) in enumerate(pairs):
        size = (image.shape[1], image.shape[2])
        drawn = protocol.shifts(index, shifts, size, seed)
        moved = protocol.motion.view(image, drawn, size)
        with torch.inference_mode():
            labels = forward(torch.cat([image[None], moved])).argmax(1).cpu()
        if labels.shape[1:] != size:
            raise ValueError(f"the model answered with {tuple(labels.shape[1:])} pixels: needs the input's {size}")
        iou.update(labels[:1], mask[None].cpu())
        back, covered = protocol.motion.undo(labels[1:], drawn)
        consistency.update(back[None], covered[None])
    rate, images = consistency.seen()
    low, high = consistency.interval()
    return {
        "images": images,
        "mean_iou": float(iou.compute()),
        "consistency": {"rate": rate, "low": low, "high": high, "images": images},
        "protocol": protocol.describe(size),
    }
