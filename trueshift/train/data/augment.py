"""Training transforms of both tasks: random, but seeded by epoch and sample."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32, Shaped, UInt8
from PIL import Image, ImageOps
from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor
from torchvision.transforms import ColorJitter

from ...data.source import IGNORED, Sample
from ...data.transforms import Preparation, ScenePreparation, pixels_of
from ...ops.geometry.shift import Pair
from ...utils.rng import hashed, seeded, uniform
from ..config import AugmentConfig, SegmentationAugmentConfig
from .photometric import Distortion, distort

# one stream of random numbers for each thing that is drawn; photometric.py has those from 32 on
_FLIP, _VERTICAL, _ROWS, _COLUMNS, _IMAGE, _ERASE, _TOP, _LEFT = range(8)
_SCALE, _CROP_TOP, _CROP_LEFT, _CROP_FLIP = range(16, 20)
_RETRIES = 10  # of a crop with too much of one class

# what is left to do with a batch on the device: (pixels, labels, epoch, indices) -> images
Finish = Callable[[Tensor, Tensor, int, np.ndarray], Tensor]


@dataclass(frozen=True)
class Draws:
    """What is drawn for each image of an epoch, wherever and however it is read."""

    augment: AugmentConfig
    seed: int

    def mirrored(self, epoch: int, indices: int | np.ndarray) -> np.ndarray:
        """Whether each is flipped left to right."""
        return np.asarray(uniform(self.seed, epoch, indices, _FLIP) < self.augment.flip)

    def upside_down(self, epoch: int, indices: int | np.ndarray) -> np.ndarray:
        """Whether each is flipped top to bottom."""
        return np.asarray(uniform(self.seed, epoch, indices, _VERTICAL) < self.augment.vertical_flip)

    def shifts(self, epoch: int, indices: int | np.ndarray, size: Pair) -> np.ndarray:
        """Rows and columns of each circular shift, as [..., 2], uniformly distributed."""
        both = uniform(self.seed, epoch, indices, _ROWS), uniform(self.seed, epoch, indices, _COLUMNS)
        return (np.stack(both, -1) * size).astype(np.int64)

    def corners(self, epoch: int, indices: int | np.ndarray) -> np.ndarray:
        """Top left corner of the crop of each padded image, as [..., 2], uniformly distributed."""
        both = uniform(self.seed, epoch, indices, _TOP), uniform(self.seed, epoch, indices, _LEFT)
        return (np.stack(both, -1) * (2 * self.augment.pad_crop + 1)).astype(np.int64)

    def erase(self, images: Float[Tensor, "B C H W"], epoch: int, indices: np.ndarray) -> Float[Tensor, "B C H W"]:
        """Random erasing, in place."""
        seeds = hashed(self.seed, epoch, indices, _ERASE).tolist()
        return erase(images, seeds, self.augment.erasing) if self.augment.erasing else images


def erase(images: Float[Tensor, "B C H W"], seeds: Sequence[int], probability: float) -> Float[Tensor, "B C H W"]:
    """timm's random erasing by noise, in place, but seeded by sample."""
    eraser = RandomErasing(probability, mode="pixel", device=images.device)
    seed_device = torch.cuda.manual_seed if images.is_cuda else torch.random.default_generator.manual_seed
    state = random.getstate()
    with torch.random.fork_rng([images.device] if images.is_cuda else []):
        for image, seed in zip(images, seeds, strict=True):
            random.seed(seed)
            seed_device(seed & 0x7FFFFFFFFFFFFFFF)
            eraser(image)
    random.setstate(state)
    return images


@dataclass(frozen=True)
class ClassificationTransform:
    """Resize and crop, flip, RandAugment, shift; then, in batches, normalize and erase."""

    preparation: Preparation
    draws: Draws

    @cached_property
    def _random_crop(self) -> RandomResizedCropAndInterpolation | None:
        scale, how = self.draws.augment.crop_scale, self.preparation.interpolation
        return scale and RandomResizedCropAndInterpolation(self.preparation.size, scale=scale, interpolation=how)

    @cached_property
    def _colors(self) -> Any:
        """RandAugment and its like, or color jitter; None for neither."""
        wanted = self.draws.augment
        if wanted.auto_augment:
            with seeded(0):  # built at the first image, whose random numbers must not depend on that
                return auto_augment(wanted.auto_augment, self.preparation)
        return ColorJitter(*(wanted.color_jitter,) * 3) if wanted.color_jitter else None

    def __call__(self, sample: Sample, epoch: int, index: int) -> tuple[UInt8[Tensor, "3 H W"], Int[Tensor, ""]]:
        """Pixels and class of one image in one epoch."""
        if sample.target is None:
            raise ValueError("it has no class")
        return self.pixels(sample.image, epoch, index), torch.tensor(sample.target)

    def pixels(self, image: Image.Image, epoch: int, index: int) -> UInt8[Tensor, "3 H W"]:
        """Pixels of one image in one epoch."""
        with seeded(self.draws.seed, epoch, index, _IMAGE):
            image = self.preparation.framed(image) if self._random_crop is None else self._random_crop(image)
            if self.draws.mirrored(epoch, index):
                image = ImageOps.mirror(image)
            if self.draws.upside_down(epoch, index):
                image = ImageOps.flip(image)
            if self._colors is not None:
                image = self._colors(image)
        pixels = pixels_of(image)
        if pad := self.draws.augment.pad_crop:
            color = torch.tensor(self.preparation.mean_pixel, dtype=pixels.dtype)
            (top, left), (height, width) = self.draws.corners(epoch, index).tolist(), pixels.shape[1:]
            pixels = pad_images(pixels[None], pad, color)[0, :, top : top + height, left : left + width]
        if self.draws.augment.circular_shift:
            rows, columns = self.draws.shifts(epoch, index, self.preparation.size)
            pixels = torch.from_numpy(np.roll(pixels.numpy(), (-rows, -columns), (1, 2)))
        return pixels

    def finisher(self, device: torch.device | str) -> Finish:
        """Normalize, and erase if wanted."""
        normalize = self.preparation.normaliser(device)
        return lambda pixels, labels, epoch, indices: self.draws.erase(normalize(pixels), epoch, indices)


def pad_images(pixels: Shaped[Tensor, "B 3 H W"], pad: int, color: Shaped[Tensor, " 3"]) -> Shaped[Tensor, "B 3 h w"]:
    """Images within a border of one color."""
    count, _, height, width = pixels.shape
    padded = color.view(3, 1, 1).repeat(count, 1, height + 2 * pad, width + 2 * pad)
    padded[:, :, pad : pad + height, pad : pad + width] = pixels
    return padded


def auto_augment(name: str, preparation: Preparation) -> Any:
    """timm's RandAugment, AutoAugment or AugMix by name, for images of this size and mean color."""
    arguments: dict[str, Any] = {
        "translate_const": int(min(preparation.size) * 0.45),
        "img_mean": preparation.mean_pixel,
        "interpolation": preparation.filter,
    }
    makers = {"rand": rand_augment_transform, "augmix": augment_and_mix_transform, "original": auto_augment_transform}
    for prefix, make in makers.items():
        if name.startswith(prefix):
            try:
                return make(name, arguments)
            except (AssertionError, ValueError) as error:
                raise ValueError(f"augment.auto_augment {name!r}: timm cannot read it ({error})") from error
    raise ValueError(f"augment.auto_augment {name!r}: needs e.g. rand-m9-mstd0.5-inc1, augmix-m3-w3 or original")


@dataclass(frozen=True)
class SegmentationTransform:
    """Resize, crop, flip and pad image and mask; then, in batches, change colors and normalize."""

    preparation: ScenePreparation
    augment: SegmentationAugmentConfig
    seed: int

    @property
    def frame(self) -> Pair:
        """Height and width of a training image: the crop, padded to a size the network takes."""
        (height, width), (rows, columns) = self.augment.crop, self.preparation.multiple
        return height + -height % rows, width + -width % columns

    def factor(self, epoch: int, index: int) -> float:
        """Factor of the scale that an image is resized to."""
        least, most = self.augment.scale_range
        return least + (most - least) * float(uniform(self.seed, epoch, index, _SCALE))

    def corner(self, epoch: int, index: int, attempt: int, room: Pair) -> Pair:
        """Top left corner of a crop that may move by so many rows and columns; another one for each attempt."""
        top, left = (float(uniform(self.seed, epoch, index, at, attempt)) for at in (_CROP_TOP, _CROP_LEFT))
        return int(top * (room[0] + 1)), int(left * (room[1] + 1))

    def mirrored(self, epoch: int, index: int) -> bool:
        """Whether an image is flipped left to right."""
        return bool(uniform(self.seed, epoch, index, _CROP_FLIP) < self.augment.flip)

    def __call__(self, sample: Sample, epoch: int, index: int) -> tuple[UInt8[Tensor, "3 h w"], Int32[Tensor, "h w"]]:
        """Pixels of one image in one epoch, and the class of each, or ``IGNORED``."""
        if sample.target is None:
            raise ValueError(f"{sample.name} has no label file: needs one to learn from")
        image = sample.image
        size = self.preparation.kept_ratio(image.height, image.width, self.factor(epoch, index))
        corner, labels = self._crop(sample.target, size, epoch, index)
        pixels = _resize_part(image, size, corner, labels.shape, self.preparation.filter)
        if self.mirrored(epoch, index):
            pixels, labels = pixels[:, ::-1], labels[:, ::-1]
        return self._pad(pixels, labels)

    def _crop(self, mask: np.ndarray, size: Pair, epoch: int, index: int) -> tuple[Pair, np.ndarray]:
        """Top left corner of the crop of a resized image, and its labels."""
        high, wide = min(size[0], self.augment.crop[0]), min(size[1], self.augment.crop[1])
        rows, columns = nearest(mask.shape[0], size[0]), nearest(mask.shape[1], size[1])
        for attempt in range(1 + _RETRIES):
            top, left = self.corner(epoch, index, attempt, (size[0] - high, size[1] - wide))
            labels = mask[rows[top : top + high, None], columns[left : left + wide]]
            if largest_share(labels) <= self.augment.max_class_share:
                break
        return (top, left), labels

    def _pad(self, pixels: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        """Pad at the bottom and right: pixels by the mean color, which normalizes to zero, labels by ``IGNORED``."""
        high, wide = labels.shape
        canvas = np.empty((3, *self.frame), np.uint8)
        canvas[:] = np.array(self.preparation.mean_pixel, np.uint8)[:, None, None]
        canvas[:, :high, :wide] = pixels.transpose(2, 0, 1)
        classes = np.full(self.frame, IGNORED, np.int32)
        classes[:high, :wide] = labels
        return torch.from_numpy(canvas), torch.from_numpy(classes)

    def finisher(self, device: torch.device | str) -> Finish:
        """Change colors if wanted, and normalize."""
        normalize = self.preparation.normaliser(device)

        def finish(pixels: Tensor, labels: Tensor, epoch: int, indices: np.ndarray) -> Tensor:
            if self.augment.photometric:
                drawn = Distortion.drawn(self.seed, epoch, indices, device)
                pixels = distort(pixels, drawn, self.padding(pixels, labels))
            return normalize(pixels)

        return finish

    def padding(self, images: UInt8[Tensor, "B 3 H W"], masks: Int[Tensor, "B H W"]) -> Bool[Tensor, "B H W"]:
        """Where a batch is padded, so that colors stay there: ignored, and of just the mean color."""
        found = masks == IGNORED
        for channel, level in enumerate(self.preparation.mean_pixel):  # numbers, not a tensor: nothing to copy
            found = found & (images[:, channel] == level)
        return found


def nearest(length: int, onto: int) -> np.ndarray:
    """Which of ``length`` pixels lies under the center of each of ``onto``: labels are never interpolated."""
    return (2 * np.arange(onto) + 1) * length // (2 * onto)


def largest_share(labels: np.ndarray) -> float:
    """Share of the most frequent class among the labelled pixels; 1 where none is labelled."""
    counts = np.bincount(labels[labels != IGNORED])
    return float(counts.max() / counts.sum()) if len(counts) else 1.0


def _resize_part(
    image: Image.Image, size: Pair, corner: Pair, part: tuple[int, ...], how: Image.Resampling
) -> np.ndarray:
    """A crop of the resized image; nothing outside of it is computed."""
    (top, left), (high, wide) = corner, part
    down, across = image.height / size[0], image.width / size[1]
    right, bottom = min((left + wide) * across, image.width), min((top + high) * down, image.height)
    box = (left * across, top * down, right, bottom)
    return np.asarray(image.convert("RGB").resize((wide, high), how, box=box))
