"""Small images that live on the training device: resized, cropped, flipped, shifted and normalised there, in batches.

The loader is then never the limit: nothing is decoded, and a step needs nothing from the CPU but its launch.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from ...data.source import Source
from ...data.transforms import Preparation
from ...eval.protocols.shifts import windows
from ...ops.geometry.shift import IMAGE_DIMS, circular_shift
from ..config import AugmentConfig
from .augment import Draws, padded_pictures
from .batch import Batch, Share
from .random_erasing import erase
from .sampler import BatchOrder

LARGEST = 4 << 30  # bytes of pixels that are kept on a device
_BITS = 22  # of Pillow's weights


class ResidentImages:
    """All images of a source on a device, and the resize and crop of a preparation as two matrices.

    Args:
        source: one that holds its ``pixels``, equally sized, and ``labels``.
    """

    def __init__(self, source: Source, preparation: Preparation, device: torch.device | str) -> None:
        pixels = np.ascontiguousarray(source.pixels.transpose(0, 3, 1, 2))  # type: ignore[attr-defined]
        self.pixels = torch.from_numpy(pixels).to(device)
        self.labels = torch.from_numpy(np.asarray(source.labels, np.int64)).to(device)  # type: ignore[attr-defined]
        self.preparation = preparation
        rows, columns = resize_matrices(pixels.shape[-2:], preparation)
        self.rows, self.columns = torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)
        self.as_they_are = all(np.array_equal(matrix, np.eye(*matrix.shape)) for matrix in (rows, columns))
        self.normalise = preparation.normaliser(device)
        self.mean_colour = torch.tensor(preparation.mean_pixel, dtype=torch.float32, device=device)

    def __len__(self) -> int:
        return len(self.labels)

    def pictures(self, positions: Int[Tensor, " B"]) -> Float[Tensor, "B 3 H W"]:
        """Whole levels from 0 to 255, as Pillow resizes and crops them: columns first, halves rounded up in between."""
        if self.as_they_are:
            return self.pixels[positions].float()
        wide = (self.pixels[positions].double() @ self.columns.T).add_(0.5).floor_().clamp_(0, 255)
        return (self.rows @ wide).add_(0.5).floor_().clamp_(0, 255).float()


def resident(source: Source) -> bool:
    """Whether a source holds its pixels in memory, few enough for a device."""
    pixels = getattr(source, "pixels", None)
    return isinstance(pixels, np.ndarray) and pixels.nbytes <= LARGEST


def only_the_loader_does(augment: AugmentConfig) -> list[str]:
    """Settings that work on single pictures, not on batches."""
    return [name for name in ("crop_scale", "auto_augment", "color_jitter") if getattr(augment, name)]


def resize_matrices(size: tuple[int, int], preparation: Preparation) -> tuple[np.ndarray, np.ndarray]:
    """What Pillow's resize and the crop do to columns of pixels, and to rows, as matrices.

    Pillow computes in whole numbers, with weights of 22 bits. These are the same: in float64 no sum is rounded.
    """
    target = preparation.resized(*size)
    corner = preparation.crop_corner(*target)

    def along(axis: int) -> np.ndarray:
        each_pixel = Image.fromarray(np.eye(size[axis], dtype=np.int32) << _BITS)
        weights = np.asarray(each_pixel.resize((size[axis], target[axis]), preparation.filter))
        return weights[corner[axis] : corner[axis] + preparation.size[axis]] / 2.0**_BITS

    return along(0), along(1)


class ResidentFeed:
    """Batches of images that are on the device already."""

    def __init__(self, images: ResidentImages, draws: Draws, order: BatchOrder, share: Share) -> None:
        self.images, self.draws, self.order, self.share = images, draws, order, share

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The passes of this process in one epoch."""
        passes = self.order.shares(epoch, self.share.rank, self.share.processes, first_step)
        if not passes:
            return
        device = self.images.pixels.device
        order = np.stack(passes)
        # all that is drawn for the epoch travels at once
        positions = torch.from_numpy(order).to(device)
        mirrored = torch.from_numpy(self.draws.mirrored(epoch, order)).to(device)
        upside_down = torch.from_numpy(self.draws.upside_down(epoch, order)).to(device)
        shifts = torch.from_numpy(self.draws.shifts(epoch, order, self.images.preparation.size)).to(device)
        corners = torch.from_numpy(self.draws.corners(epoch, order)).to(device)
        augment = self.draws.augment
        for number, at in enumerate(positions):
            pictures = self.images.pictures(at)
            if augment.flip:
                pictures = torch.where(mirrored[number].view(-1, 1, 1, 1), pictures.flip(-1), pictures)
            if augment.vertical_flip:
                pictures = torch.where(upside_down[number].view(-1, 1, 1, 1), pictures.flip(-2), pictures)
            if augment.pad_crop:
                pictures = self._cropped(pictures, corners[number])
            if augment.circular_shift:
                pictures = circular_shift(pictures, shifts[number], IMAGE_DIMS)
            images = self.images.normalise(pictures)
            if augment.erasing:
                images = erase(images, self.draws.erasing_seeds(epoch, order[number]), augment.erasing)
            yield Batch(images, self.images.labels[at], order[number])

    def _cropped(self, pictures: Float[Tensor, "B 3 H W"], corners: Int[Tensor, "B 2"]) -> Float[Tensor, "B 3 H W"]:
        """Pictures of the same size out of the padded ones."""
        padded = padded_pictures(pictures, self.draws.augment.pad_crop, self.images.mean_colour)
        which = torch.arange(len(pictures), device=pictures.device)
        return windows(padded, torch.cat([which[:, None], corners], 1), self.images.preparation.size)
