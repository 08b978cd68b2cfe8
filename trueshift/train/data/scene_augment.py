"""From a scene to the pixels and labels that are learned from, changed at random but seeded by epoch and scene."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int, Int32, UInt8
from PIL import Image
from torch import Tensor

from ...data.source import IGNORED, Sample
from ...data.transforms import ScenePreparation
from ...ops.geometry.shift import Pair
from ...utils.rng import uniform

# one stream of numbers for each thing that is drawn; other numbers than for single pictures
_SCALE, _ROW, _COLUMN, _FLIP = range(16, 20)
_RETRIES = 10  # of a crop that shows too much of one class


@dataclass(frozen=True)
class SceneAugmentConfig:
    """What is changed at random, seeded by epoch and scene: the same on any number of processes.

    Args:
        scale_range: least and largest factor of the scale that scenes are resized to; [1, 1] for none.
        crop: height and width that are learned from; what is smaller is padded, and its padding ignored.
        flip: how often a scene is mirrored.
        max_class_share: another crop is drawn, ten times at most, where one class fills more of the labelled pixels.
        photometric: change brightness, contrast, saturation and hue.
    """

    scale_range: tuple[float, float] = (0.5, 2.0)
    crop: Pair = (512, 512)
    flip: float = 0.5
    max_class_share: float = 0.75
    photometric: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.scale_range[0] <= self.scale_range[1]:
            raise ValueError(f"scale_range {self.scale_range}: needs the least factor first, above 0")
        if min(self.crop) < 1:
            raise ValueError(f"crop {self.crop}: needs a positive height and width")
        if not 0 <= self.flip <= 1 or not 0 < self.max_class_share <= 1:
            raise ValueError(
                f"flip {self.flip}, max_class_share {self.max_class_share}: needs shares of 1, the second above 0"
            )


@dataclass(frozen=True)
class SceneDraws:
    """What is drawn for each scene of an epoch."""

    augment: SceneAugmentConfig
    seed: int

    def factor(self, epoch: int, index: int) -> float:
        """Of the scale that a scene is resized to."""
        least, most = self.augment.scale_range
        return least + (most - least) * float(uniform(self.seed, epoch, index, _SCALE))

    def corner(self, epoch: int, index: int, attempt: int, room: Pair) -> Pair:
        """Where a crop begins that may move by so many rows and columns; another one for each attempt."""
        rows, columns = (float(uniform(self.seed, epoch, index, stream, attempt)) for stream in (_ROW, _COLUMN))
        return int(rows * (room[0] + 1)), int(columns * (room[1] + 1))

    def mirrored(self, epoch: int, index: int) -> bool:
        """Whether a scene is flipped left to right."""
        return bool(uniform(self.seed, epoch, index, _FLIP) < self.augment.flip)


@dataclass(frozen=True)
class SceneTransform:
    """Resize, crop, flip and pad: all that is done to a scene before its colours are changed and normalised."""

    preparation: ScenePreparation
    draws: SceneDraws

    @property
    def frame(self) -> Pair:
        """Height and width of what is learned from: the crop, padded to a size that the network takes."""
        rows, columns = (
            length + -length % step
            for length, step in zip(self.draws.augment.crop, self.preparation.multiple, strict=True)
        )
        return rows, columns

    def __call__(self, scene: Sample, epoch: int, index: int) -> tuple[UInt8[Tensor, "3 h w"], Int32[Tensor, "h w"]]:
        """The pixels of one scene in one epoch, and the class of each, or ``IGNORED``."""
        if scene.target is None:
            raise ValueError(f"{scene.name} has no label file: needs one to learn from")
        picture = scene.image
        size = self.preparation.kept_ratio(picture.height, picture.width, self.draws.factor(epoch, index))
        corner, labels = self._crop(scene.target, size, epoch, index)
        pixels = _resized_part(picture, size, corner, labels.shape, self.preparation.filter)
        if self.draws.mirrored(epoch, index):
            pixels, labels = pixels[:, ::-1], labels[:, ::-1]
        return self._padded(pixels, labels)

    def _crop(self, mask: np.ndarray, size: Pair, epoch: int, index: int) -> tuple[Pair, np.ndarray]:
        """Where the crop of a resized scene begins, and its labels."""
        wanted, most = self.draws.augment.crop, self.draws.augment.max_class_share
        high, wide = min(size[0], wanted[0]), min(size[1], wanted[1])
        rows, columns = nearest(mask.shape[0], size[0]), nearest(mask.shape[1], size[1])
        for attempt in range(1 + _RETRIES):
            top, left = self.draws.corner(epoch, index, attempt, (size[0] - high, size[1] - wide))
            labels = mask[rows[top : top + high, None], columns[left : left + wide]]
            if largest_share(labels) <= most:
                break
        return (top, left), labels

    def _padded(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        """At the bottom and at the right, by the mean colour, which is nothing to the network, and by no class."""
        high, wide = labels.shape
        canvas = np.empty((3, *self.frame), np.uint8)
        canvas[:] = np.array(self.preparation.mean_pixel, np.uint8)[:, None, None]
        canvas[:, :high, :wide] = pixels.transpose(2, 0, 1)
        classes = np.full(self.frame, IGNORED, np.int32)
        classes[:high, :wide] = labels
        return torch.from_numpy(canvas), torch.from_numpy(classes)


def padding(
    images: UInt8[Tensor, "B 3 H W"], masks: Int[Tensor, "B H W"], preparation: ScenePreparation
) -> Bool[Tensor, "B H W"]:
    """Where a batch was padded, so that colours are not changed there: ignored, and of just the mean colour."""
    found = masks == IGNORED
    for channel, level in enumerate(preparation.mean_pixel):  # numbers, not a tensor: nothing has to travel
        found = found & (images[:, channel] == level)
    return found


def nearest(length: int, onto: int) -> np.ndarray:
    """Which of ``length`` pixels lies under the centre of each of ``onto``: labels are taken, never mixed."""
    return (2 * np.arange(onto) + 1) * length // (2 * onto)


def largest_share(labels: np.ndarray) -> float:
    """How much of the labelled pixels belongs to one class; where none is labelled, all of them."""
    counts = np.bincount(labels[labels != IGNORED])
    return float(counts.max() / counts.sum()) if len(counts) else 1.0


def _resized_part(
    picture: Image.Image, size: Pair, corner: Pair, part: tuple[int, ...], how: Image.Resampling
) -> np.ndarray:
    """A part of a picture as it would be cut out of the resized whole, of which no more is computed."""
    (top, left), (high, wide) = corner, part
    down, across = picture.height / size[0], picture.width / size[1]
    right, bottom = min((left + wide) * across, picture.width), min((top + high) * down, picture.height)
    box = (left * across, top * down, right, bottom)
    return np.asarray(picture.convert("RGB").resize((wide, high), how, box=box))
