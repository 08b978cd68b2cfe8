"""From a picture to the pixels that are learned from, changed at random but seeded by epoch and picture."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from PIL import Image, ImageOps
from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor

from ...data.transforms import Preparation, pixels_of
from ...ops.geometry.shift import Pair
from ...utils.rng import hashed, seeded, uniform
from ..config import AugmentConfig

# one stream of numbers for each thing that is drawn
_FLIP, _VERTICAL, _ROWS, _COLUMNS, _PICTURE, _ERASE, _TOP, _LEFT = range(8)


@dataclass(frozen=True)
class Draws:
    """What is drawn for each picture of an epoch, by wherever and however it is read."""

    augment: AugmentConfig
    seed: int

    def mirrored(self, epoch: int, indices: int | np.ndarray) -> np.ndarray:
        """Whether each is flipped left to right."""
        return np.asarray(uniform(self.seed, epoch, indices, _FLIP) < self.augment.flip)

    def upside_down(self, epoch: int, indices: int | np.ndarray) -> np.ndarray:
        """Whether each is flipped top to bottom."""
        return np.asarray(uniform(self.seed, epoch, indices, _VERTICAL) < self.augment.vertical_flip)

    def shifts(self, epoch: int, indices: int | np.ndarray, size: Pair) -> np.ndarray:
        """Rows and columns by which each is shifted, as [..., 2]: any circular shift, all alike likely."""
        rows = uniform(self.seed, epoch, indices, _ROWS) * size[0]
        columns = uniform(self.seed, epoch, indices, _COLUMNS) * size[1]
        return np.stack([rows, columns], -1).astype(np.int64)

    def corners(self, epoch: int, indices: int | np.ndarray) -> np.ndarray:
        """Where the crop of each padded picture begins, as [..., 2]: 0 to twice the padding, all alike likely."""
        places = 2 * self.augment.pad_crop + 1
        top, left = (uniform(self.seed, epoch, indices, stream) * places for stream in (_TOP, _LEFT))
        return np.stack([top, left], -1).astype(np.int64)

    def erasing_seeds(self, epoch: int, indices: np.ndarray) -> list[int]:
        """A seed for the rectangle and the noise of each."""
        return [int(bits) for bits in hashed(self.seed, epoch, indices, _ERASE)]


@dataclass(frozen=True)
class TrainTransform:
    """Resize and crop, flip, shift, RandAugment: all that is done to a picture before it is normalised."""

    preparation: Preparation
    draws: Draws

    @cached_property
    def _random_crop(self) -> RandomResizedCropAndInterpolation | None:
        scale = self.draws.augment.crop_scale
        if scale is None:
            return None
        how = self.preparation.interpolation
        return RandomResizedCropAndInterpolation(self.preparation.size, scale=scale, interpolation=how)

    @cached_property
    def _colours(self) -> Any:
        """RandAugment and its like, or colour jitter; None for nothing."""
        asked = self.draws.augment
        if asked.auto_augment:
            with seeded(0):  # made for the first picture: what that draws is not to depend on what making draws
                return auto_augment(asked.auto_augment, self.preparation)
        if asked.color_jitter:
            from torchvision.transforms import ColorJitter

            return ColorJitter(*(asked.color_jitter,) * 3)
        return None

    def __call__(self, picture: Image.Image, epoch: int, index: int) -> UInt8[Tensor, "3 H W"]:
        """The pixels of one picture in one epoch."""
        with seeded(self.draws.seed, epoch, index, _PICTURE):
            picture = self.preparation.framed(picture) if self._random_crop is None else self._random_crop(picture)
            if self.draws.mirrored(epoch, index):
                picture = ImageOps.mirror(picture)
            if self.draws.upside_down(epoch, index):
                picture = ImageOps.flip(picture)
            if self._colours is not None:
                picture = self._colours(picture)
        pixels = pixels_of(picture)
        if self.draws.augment.pad_crop:
            pixels = self._cropped(pixels, *self.draws.corners(epoch, index).tolist())
        if self.draws.augment.circular_shift:
            rows, columns = self.draws.shifts(epoch, index, self.preparation.size)
            pixels = torch.from_numpy(np.roll(pixels.numpy(), (-rows, -columns), (1, 2)))
        return pixels

    def _cropped(self, pixels: UInt8[Tensor, "3 H W"], top: int, left: int) -> UInt8[Tensor, "3 H W"]:
        """A picture of the same size out of the padded one."""
        colour = torch.tensor(self.preparation.mean_pixel, dtype=pixels.dtype)
        padded = padded_pictures(pixels[None], self.draws.augment.pad_crop, colour)[0]
        height, width = pixels.shape[1:]
        return padded[:, top : top + height, left : left + width]


def padded_pictures(
    pixels: Shaped[Tensor, "B 3 H W"], pad: int, colour: Shaped[Tensor, " 3"]
) -> Shaped[Tensor, "B 3 h w"]:
    """Pictures within a border of one colour."""
    count, _, height, width = pixels.shape
    padded = colour.view(3, 1, 1).repeat(count, 1, height + 2 * pad, width + 2 * pad)
    padded[:, :, pad : pad + height, pad : pad + width] = pixels
    return padded


def auto_augment(name: str, preparation: Preparation) -> Any:
    """timm's RandAugment, AutoAugment or AugMix by its name, for images of this size and mean colour."""
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
