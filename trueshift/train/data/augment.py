"""Training transforms of both tasks: random, but seeded by epoch and sample."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int32, UInt8
from PIL import Image
from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor
from torchvision.transforms import v2

from ...data.source import IGNORED, Sample
from ...data.transforms import Preparation, ScenePreparation, pixels_of
from ...eval.protocols.shifts import windows
from ...ops.geometry.shift import IMAGE_DIMS, Pair, circular_shift
from ...utils.rng import hashed, seeded, uniform
from ..config import AugmentConfig
from ..dense_config import SegmentationAugmentConfig

# streams of random numbers, one for each purpose
_FLIP, _VERTICAL, _ROWS, _COLUMNS, _IMAGE, _ERASE, _TOP, _LEFT, _SCENE, _SHIFTED, _SECOND, _GROUP = range(12)
_GROUPS = 64  # of images that are changed alike in an epoch by what works on batches
TRIVIAL = "trivial"
_RETRIES = 10  # of a crop with too much of one class

# what is left to do with a batch on the device: (pixels, epoch, indices) -> images
Finish = Callable[[Tensor, int, np.ndarray], Tensor]


@dataclass(frozen=True)
class ClassificationTransform:
    """Resize, crop and RandAugment single images; then, in batches on the device, normalize, flip, shift and erase.

    TrivialAugment works on batches too: each image is put into a group by chance, and a change is drawn for the group.

    With ``augment.consistency`` each image has two views, drawn independently; they share a tensor, as 6 channels.
    """

    preparation: Preparation
    augment: AugmentConfig
    seed: int

    def __post_init__(self) -> None:
        _ = self._colors  # an unknown name is refused before the first image

    @cached_property
    def views(self) -> tuple["ClassificationTransform", ...]:
        """How each view is drawn: the first as without a second one, the second from a seed of its own."""
        if not self.augment.consistency:
            return (self,)
        first = replace(self, augment=replace(self.augment, consistency=0.0))
        return first, replace(first, seed=int(hashed(self.seed, _SECOND)))

    @cached_property
    def _random_crop(self) -> RandomResizedCropAndInterpolation | None:
        scale, how = self.augment.crop_scale, self.preparation.interpolation
        return scale and RandomResizedCropAndInterpolation(self.preparation.size, scale=scale, interpolation=how)

    @cached_property
    def _colors(self) -> Any:
        """RandAugment and its like, or color jitter, of single images; None for neither."""
        if self.augment.auto_augment == TRIVIAL:
            return None
        if self.augment.auto_augment:
            return auto_augment(self.augment.auto_augment, self.preparation)
        return v2.ColorJitter(*(self.augment.color_jitter,) * 3) if self.augment.color_jitter else None

    def __call__(self, sample: Sample, epoch: int, index: int) -> tuple[UInt8[Tensor, "C H W"], Int[Tensor, ""]]:
        """Pixels and class of one image in one epoch; of both views, where their pixels differ."""
        if sample.target is None:
            raise ValueError("it has no class")
        differ = self._random_crop is not None or self._colors is not None
        pixels = [view._view(sample.image, epoch, index) for view in self.views[: None if differ else 1]]
        return torch.cat(pixels), torch.tensor(sample.target)

    def _view(self, image: Image.Image, epoch: int, index: int) -> UInt8[Tensor, "3 H W"]:
        with seeded(self.seed, epoch, index, _IMAGE):
            image = (self._random_crop or self.preparation.framed)(image)
            if self._colors is not None:
                image = self._colors(image)
        return pixels_of(image)

    @cached_property
    def _trivial(self) -> v2.TrivialAugmentWide:
        fill = [float(value) for value in self.preparation.mean_pixel]
        return v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR, fill=fill)

    def trivial(self, pixels: UInt8[Tensor, "B 3 H W"], epoch: int, indices: np.ndarray) -> UInt8[Tensor, "B 3 H W"]:
        """torchvision's TrivialAugment of a batch, group by group; an image's change does not depend on the others."""
        groups = (hashed(self.seed, epoch, indices, _GROUP) % np.uint64(_GROUPS)).astype(np.int64)
        order = np.argsort(groups, kind="stable")
        there, back = torch.from_numpy(np.stack([order, np.argsort(order)])).to(pixels.device, non_blocking=True)
        parts = pixels[there].split(np.bincount(groups, minlength=_GROUPS).tolist())
        changed = []
        for group, part in enumerate(parts):
            with seeded(self.seed, epoch, group, _GROUP):
                changed.append(self._trivial(part) if len(part) else part)
        return torch.cat(changed)[back]

    def drawn(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """What is drawn for each image: mirrored, upside down, corner of the crop, offset of the shift, as [..., 6]."""
        streams = np.array([_FLIP, _VERTICAL, _SHIFTED, _TOP, _LEFT, _ROWS, _COLUMNS])
        numbers = uniform(self.seed, epoch, indices[..., None], streams)
        flips, shifted = np.split(
            numbers[..., :3] < (self.augment.flip, self.augment.vertical_flip, self.augment.circular_shift), [2], -1
        )
        corners = 2 * self.augment.pad_crop + 1
        places = (numbers[..., 3:] * (corners, corners, *self.preparation.size)).astype(np.int64)
        return np.concatenate([flips, places[..., :2], places[..., 2:] * shifted], -1)

    def move(self, images: Float[Tensor, "B 3 H W"], drawn: Int[Tensor, "B 6"]) -> Float[Tensor, "B 3 H W"]:
        """Flip, crop the padded image and shift circularly, each if wanted."""
        mirrored, upside_down = drawn[:, :2, None, None, None].bool().unbind(1)
        if self.augment.flip:
            images = torch.where(mirrored, images.flip(3), images)
        if self.augment.vertical_flip:
            images = torch.where(upside_down, images.flip(2), images)
        if pad := self.augment.pad_crop:
            which = torch.arange(len(images), device=images.device)[:, None]
            images = windows(F.pad(images, [pad] * 4), torch.cat([which, drawn[:, 2:4]], 1), self.preparation.size)
        return circular_shift(images, drawn[:, 4:], IMAGE_DIMS) if self.augment.circular_shift else images

    def finisher(self, device: torch.device | str) -> Finish:
        """Recolor by TrivialAugment, normalize, move and erase a batch, each view on its own."""
        normalize = self.preparation.normaliser(device)

        def finish(view: ClassificationTransform, pixels: Tensor, epoch: int, indices: np.ndarray) -> Tensor:
            drawn = torch.from_numpy(view.drawn(epoch, indices)).to(device, non_blocking=True)
            if view.augment.auto_augment == TRIVIAL:
                pixels = view.trivial(pixels.byte(), epoch, indices)
            images = view.move(normalize(pixels), drawn)
            if view.augment.erasing:
                erase(images, hashed(view.seed, epoch, indices, _ERASE).tolist(), view.augment.erasing)
            return images

        def finish_all(pixels: Tensor, epoch: int, indices: np.ndarray) -> Tensor:
            pairs = zip(self.views, cycle(pixels.split(3, 1)), strict=False)  # both views of the same pixels, or of two
            images = [finish(view, part, epoch, indices) for view, part in pairs]
            return torch.cat(images, 1) if len(images) > 1 else images[0]

        return finish_all


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


def auto_augment(name: str, preparation: Preparation) -> Any:
    """timm's RandAugment, AutoAugment or AugMix by name, for images of this size and mean color."""
    arguments: dict[str, Any] = {
        "translate_const": int(min(preparation.size) * 0.45),
        "img_mean": preparation.mean_pixel,
        "interpolation": preparation.filter,
    }
    if "mmax" not in name:
        arguments["magnitude_max"] = 9.9  # of 10, at which timm asks Pillow to keep 0 bits of a color, which it refuses
    makers = {"rand": rand_augment_transform, "augmix": augment_and_mix_transform, "original": auto_augment_transform}
    for prefix, make in makers.items():
        if name.startswith(prefix):
            try:
                return make(name, arguments)
            except (AssertionError, ValueError) as error:
                raise ValueError(f"augment.auto_augment {name!r}: timm cannot read it ({error})") from error
    raise ValueError(
        f"augment.auto_augment {name!r}: needs e.g. rand-m9-mstd0.5-inc1, augmix-m3-w3, original or trivial"
    )


# the ranges of mmsegmentation, each change with probability 1/2
_CHANGES = ({"brightness": 32 / 255}, {"contrast": 0.5}, {"saturation": 0.5}, {"hue": 18 / 180})
_PHOTOMETRIC = v2.Compose([v2.RandomApply([v2.ColorJitter(**change)]) for change in _CHANGES])


@dataclass(frozen=True)
class SegmentationTransform:
    """Resize, crop, recolor, flip and pad image and mask; then, in batches on the device, normalize."""

    preparation: ScenePreparation
    augment: SegmentationAugmentConfig
    seed: int

    @property
    def frame(self) -> Pair:
        """Height and width of a training image: the crop, padded to a size the network takes."""
        (height, width), (rows, columns) = self.augment.crop, self.preparation.multiple
        return height + -height % rows, width + -width % columns

    def __call__(self, sample: Sample, epoch: int, index: int) -> tuple[UInt8[Tensor, "3 h w"], Int32[Tensor, "h w"]]:
        """Pixels of one image in one epoch, and the class of each, or ``IGNORED``."""
        if sample.target is None:
            raise ValueError(f"{sample.name} has no label file: needs one to learn from")
        with seeded(self.seed, epoch, index, _SCENE):
            factor = random.uniform(*self.augment.scale_range)
            size = self.preparation.kept_ratio(sample.image.height, sample.image.width, factor)
            corner, labels = self._crop(sample.target, size)
            part = _resize_part(sample.image, size, corner, labels.shape, self.preparation.filter)
            if self.augment.photometric:
                part = _PHOTOMETRIC(part)
            step = -1 if random.random() < self.augment.flip else 1
        return self._pad(np.asarray(part)[:, ::step], labels[:, ::step])

    def _crop(self, mask: np.ndarray, size: Pair) -> tuple[Pair, np.ndarray]:
        """Top left corner of a random crop of a resized image, and its labels."""
        high, wide = min(size[0], self.augment.crop[0]), min(size[1], self.augment.crop[1])
        rows, columns = nearest(mask.shape[0], size[0]), nearest(mask.shape[1], size[1])
        for _ in range(1 + _RETRIES):
            top, left = random.randint(0, size[0] - high), random.randint(0, size[1] - wide)
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
        """Normalize a batch."""
        normalize = self.preparation.normaliser(device)
        return lambda pixels, epoch, indices: normalize(pixels)


def nearest(length: int, onto: int) -> np.ndarray:
    """Which of ``length`` pixels lies under the center of each of ``onto``: labels are never interpolated."""
    return (2 * np.arange(onto) + 1) * length // (2 * onto)


def largest_share(labels: np.ndarray) -> float:
    """Share of the most frequent class among the labelled pixels; 1 where none is labelled."""
    counts = np.bincount(labels[labels != IGNORED])
    return float(counts.max() / counts.sum()) if len(counts) else 1.0


def _resize_part(
    image: Image.Image, size: Pair, corner: Pair, part: tuple[int, ...], how: Image.Resampling
) -> Image.Image:
    """A crop of the resized image; nothing outside of it is computed."""
    (top, left), (high, wide) = corner, part
    down, across = image.height / size[0], image.width / size[1]
    right, bottom = min((left + wide) * across, image.width), min((top + high) * down, image.height)
    return image.convert("RGB").resize((wide, high), how, box=(left * across, top * down, right, bottom))
