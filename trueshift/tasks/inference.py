"""Segment images of any size: whole, or by windows that slide over them."""

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..ops.geometry.shift import Pair


@runtime_checkable
class Segmenter(Protocol):
    """What gives logits for each pixel of images whose sides are multiples of its own."""

    @property
    def size_multiple(self) -> Pair:
        """Of rows and of columns."""

    def __call__(self, images: Tensor, /) -> Tensor:
        """Logits ``[B, classes, H, W]`` of images ``[B, 3, H, W]``."""


def segment_whole(model: Segmenter, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes H W"]:
    """Logits of each pixel of images of any size.

    Where the network needs a larger size, the image is padded with zeros, the mean colour of normalised images, at
    the bottom and the right, and the logits are cropped.

    Shift law: the network's own for sizes that it takes as they are. Padding loses the guarantee for circular shifts:
    the zeros are part of the circle that the network sees, and stay in place when the image moves.
    """
    height, width = images.shape[2:]
    rows, columns = model.size_multiple
    logits = model(_padded(images, (height + -height % rows, width + -width % columns)))
    if logits.dim() != 4 or logits.shape[2] < height or logits.shape[3] < width:
        raise ValueError(
            f"the model answered with {tuple(logits.shape)} to images of {height} x {width}: "
            "needs logits [B, classes, H, W] for every pixel"
        )
    return logits[:, :, :height, :width]


def segment_sliding(
    model: Segmenter,
    images: Float[Tensor, "B C H W"],
    window: Pair,
    stride: Pair,
    together: int = 8,
) -> Float[Tensor, "B classes H W"]:
    """Logits of each pixel, averaged over all windows that see it, as mmsegmentation does.

    Windows begin every ``stride`` rows and columns; the last of a row or column ends with the image. Images smaller
    than the window, and windows of a size that the network does not take, are padded as in :func:`segment_whole`.

    Shift law: none. Windows stay fixed to the frame, so a shifted image is seen through other windows.

    Args:
        window: rows and columns that the network is shown, such as the crop that it was trained with.
        stride: rows and columns from one window to the next, at most the window.
        together: windows in a batch.
    """
    if not (1 <= stride[0] <= window[0] and 1 <= stride[1] <= window[1]) or together < 1:
        raise ValueError(
            f"windows {window} every {stride} pixels, {together} at once: needs strides from 1 to the window's size, "
            "so that no pixel is left out, and at least 1 at once"
        )
    height, width = images.shape[2:]
    images = _padded(images, (max(height, window[0]), max(width, window[1])))
    tops, lefts = _starts(images.shape[2], window[0], stride[0]), _starts(images.shape[3], window[1], stride[1])
    places = [
        (image, slice(top, top + window[0]), slice(left, left + window[1]))
        for image in range(len(images))
        for top in tops
        for left in lefts
    ]
    if not places:
        raise ValueError("no images: needs at least one")
    total = times = torch.zeros(())
    for first in range(0, len(places), together):
        some = places[first : first + together]
        seen = [images[image, :, rows, columns] for image, rows, columns in some]
        found = segment_whole(model, torch.stack(seen)).float()  # many are summed: not in half precision
        if not total.dim():
            total = found.new_zeros(len(images), found.shape[1], *images.shape[2:])
            times = found.new_zeros(len(images), 1, *images.shape[2:])
        for logits, (image, rows, columns) in zip(found, some, strict=True):
            total[image, :, rows, columns] += logits
            times[image, :, rows, columns] += 1
    return (total / times)[:, :, :height, :width]


def _padded(images: Tensor, size: Pair) -> Tensor:
    down, right = size[0] - images.shape[2], size[1] - images.shape[3]
    return F.pad(images, (0, right, 0, down)) if down or right else images


def _starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin along one side; the last one is flush with the end."""
    return [*range(0, length - window, stride), length - window]
