"""Small images that live on the training device, and are resized, augmented and normalized there in batches."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from ...data.source import Source
from ...data.transforms import Preparation
from ..config import AugmentConfig
from .augment import TRIVIAL, ClassificationTransform

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
        rows, columns = resize_matrices(pixels.shape[-2:], preparation)
        self.rows, self.columns = torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)
        self.unchanged = all(np.array_equal(matrix, np.eye(*matrix.shape)) for matrix in (rows, columns))
        self.normalize = preparation.normaliser(device)

    def resized(self, positions: Int[Tensor, " B"]) -> Float[Tensor, "B 3 H W"]:
        """Integers from 0 to 255, resized and cropped as Pillow does: columns first, then rounded, then rows."""
        if self.unchanged:
            return self.pixels[positions].float()
        wide = (self.pixels[positions].double() @ self.columns.T).add_(0.5).floor_().clamp_(0, 255)
        return (self.rows @ wide).add_(0.5).floor_().clamp_(0, 255).float()

    def augmented(self, transform: ClassificationTransform) -> Callable[[int, np.ndarray], tuple[Tensor, Tensor]]:
        """Reads batches to learn from, by epoch and indices."""
        finish, device = transform.finisher(self.pixels.device), self.pixels.device

        def read(epoch: int, indices: np.ndarray) -> tuple[Tensor, Tensor]:
            at = torch.from_numpy(indices).to(device, non_blocking=True)
            return finish(self.resized(at), epoch, indices), self.labels[at]

        return read


def is_resident(source: Source) -> bool:
    """Whether a source holds its pixels in memory, few enough for a device."""
    pixels = getattr(source, "pixels", None)
    return isinstance(pixels, np.ndarray) and pixels.nbytes <= LARGEST


def needs_loader(augment: AugmentConfig) -> list[str]:
    """Settings that work on single images, not on batches."""
    names = ("crop_scale", "auto_augment", "color_jitter")
    return [name for name in names if getattr(augment, name) and getattr(augment, name) != TRIVIAL]


def resize_matrices(size: tuple[int, int], preparation: Preparation) -> tuple[np.ndarray, np.ndarray]:
    """Pillow's resize and the crop, as matrices for rows and columns.

    Pillow computes in integers with weights of 22 bits; in float64 no sum of these is rounded.
    """
    target = preparation.resized(*size)
    corner = preparation.crop_corner(*target)

    def along(axis: int) -> np.ndarray:
        each_pixel = Image.fromarray(np.eye(size[axis], dtype=np.int32) << _BITS)
        weights = np.asarray(each_pixel.resize((size[axis], target[axis]), preparation.filter))
        return weights[corner[axis] : corner[axis] + preparation.size[axis]] / 2.0**_BITS

    return along(0), along(1)
