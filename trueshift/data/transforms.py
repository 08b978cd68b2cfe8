"""Turn an image into the pixels a network takes: resize, crop, normalise."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from ..ops.geometry.shift import Pair

_FILTERS = {each.name.lower(): each for each in Image.Resampling}
FITS = ("resize", "pad")


class Colours:
    """What both preparations share: the filter that resizes, and the mean and std that normalise."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    framed: Callable[..., Image.Image]

    def check_colours(self) -> None:
        """Refuse values that no image can be prepared by."""
        numbers = all(isfinite(value) for value in (*self.mean, *self.std))
        if len(self.mean) != 3 or len(self.std) != 3 or not numbers or min(self.std) <= 0:
            raise ValueError(f"mean {self.mean}, std {self.std}: needs three values each, one per colour, std above 0")
        if self.interpolation not in _FILTERS:
            raise ValueError(f"interpolation {self.interpolation!r}: needs one of {', '.join(_FILTERS)}")

    @property
    def filter(self) -> Image.Resampling:
        """Pillow's filter for resizing."""
        return _FILTERS[self.interpolation]

    @property
    def mean_pixel(self) -> tuple[int, ...]:
        """The colour that is nearest to zero after normalising."""
        return tuple(min(255, round(255 * value)) for value in self.mean)

    def normaliser(self, device: torch.device | str = "cpu") -> Callable[[Tensor], Tensor]:
        """A function that normalises pixels, with its constants on the device."""
        mean = torch.tensor(self.mean, device=device).view(3, 1, 1)
        std = torch.tensor(self.std, device=device).view(3, 1, 1)
        return lambda canvas: (canvas.float() / 255 - mean) / std

    def normalise(self, canvas: UInt8[Tensor, "3 H W"]) -> Float[Tensor, "3 H W"]:
        """Normalise pixels."""
        return self.normaliser(canvas.device)(canvas)

    def canvas(self, image: Image.Image, margin: Pair = (0, 0)) -> UInt8[Tensor, "3 H W"]:
        """The pixels of :meth:`framed`."""
        return pixels_of(self.framed(image, margin))

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a file."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}


@dataclass(frozen=True)
class Preparation(Colours):
    """How a classifier takes images: the values and names of timm's data configuration.

    Args:
        size: height and width of the input.
        crop_pct: how much of the resized image the centre crop keeps.
    """

    size: Pair = (224, 224)
    crop_pct: float = 0.875
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, ...] = IMAGENET_DEFAULT_STD
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if min(self.size) < 1 or not 0 < self.crop_pct <= 1:
            raise ValueError(f"size {self.size}, crop_pct {self.crop_pct}: needs positive sizes and 0 < crop_pct <= 1")
        self.check_colours()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Preparation":
        """From timm's ``pretrained_cfg``; missing values stay at their defaults."""
        given: dict[str, Any] = {key: config.get(key) for key in ("crop_pct", "mean", "std", "interpolation")}
        given["size"] = config["input_size"][1:] if config.get("input_size") else None
        return cls(**_given(given))

    def resized(self, height: int, width: int) -> Pair:
        """Height and width before the crop, as in timm's evaluation transform."""
        target = self._target()
        scale = max(target[0] / height, target[1] / width)
        # the shorter side hits its target exactly, the other is cut to whole pixels, as in torchvision's Resize
        return max(target[0], int(height * scale + 1e-9)), max(target[1], int(width * scale + 1e-9))

    def _target(self) -> Pair:
        """The least height and width of a resized image."""
        return int(self.size[0] / self.crop_pct), int(self.size[1] / self.crop_pct)

    def has_room(self, margin: Pair) -> bool:
        """Whether every resized image has this margin around the crop, so that none must be enlarged."""
        target = self._target()
        return all(target[axis] >= self.size[axis] + 2 * margin[axis] for axis in (0, 1))

    def framed(self, image: Image.Image, margin: Pair = (0, 0)) -> Image.Image:
        """The centre of the image at the network's scale, with ``margin`` more pixels on every side.

        Without a margin, square inputs are those of timm's evaluation transform. Without room for the margin, see
        :meth:`has_room`, the image is enlarged.
        """
        height, width = self.resized(image.height, image.width)
        high, wide = self.size[0] + 2 * margin[0], self.size[1] + 2 * margin[1]
        if height < high or width < wide:  # the crop leaves no margin
            grow = max(high / height, wide / width)
            height, width = max(high, int(height * grow)), max(wide, int(width * grow))
        if (width, height) != image.size:
            image = image.resize((width, height), self.filter)
        top, left = self.crop_corner(height, width)
        # the centre first, then the margin: halves are rounded to even, so an odd margin would move the centre
        top, left = top - margin[0], left - margin[1]
        return image.crop((left, top, left + wide, top + high))

    def crop_corner(self, height: int, width: int) -> Pair:
        """Top and left of the centre crop of a resized image."""
        return round((height - self.size[0]) / 2), round((width - self.size[1]) / 2)


@dataclass(frozen=True)
class ScenePreparation(Colours):
    """How a segmentation network takes images: whole, at a size that keeps the aspect ratio.

    Args:
        scale: upper bounds of the longer and the shorter side; an image is resized to the largest size within both
            that keeps its ratio, as in mmsegmentation.
        multiple: rows and columns must be multiples of these.
        fit: ``"resize"`` rounds each side up to the next multiple, so that the image fills its frame and can be
            shifted circularly, as in the paper; ``"pad"`` keeps the size, and the image is padded later (for standard
            shifts).
    """

    scale: Pair = (2048, 512)
    multiple: Pair = (1, 1)
    fit: str = "resize"
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN
    std: tuple[float, ...] = IMAGENET_DEFAULT_STD
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if not self.scale[0] >= self.scale[1] >= 1 or min(self.multiple) < 1:
            raise ValueError(
                f"scale {self.scale}, multiple {self.multiple}: needs the longest side first, and positive numbers"
            )
        if self.fit not in FITS:
            raise ValueError(f"fit {self.fit!r}: needs one of {', '.join(FITS)}")
        self.check_colours()

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "ScenePreparation":
        """From :meth:`to_dict`, also by way of JSON; missing values stay at their defaults."""
        known = [each.name for each in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"a preparation with {', '.join(unknown)}: needs only {', '.join(known)}")
        return cls(**_given(given))

    def kept_ratio(self, height: int, width: int, factor: float = 1.0) -> Pair:
        """Height and width at ``factor`` times the scale, with the ratio kept up to whole pixels."""
        longest, shortest = self.scale
        grow = factor * min(longest / max(height, width), shortest / min(height, width))
        return max(int(height * grow + 0.5), 1), max(int(width * grow + 0.5), 1)

    def scaled(self, height: int, width: int) -> Pair:
        """Height and width that an image is resized to."""
        rows, columns = self.kept_ratio(height, width)
        if self.fit == "resize":
            rows, columns = rows + -rows % self.multiple[0], columns + -columns % self.multiple[1]
        return rows, columns

    def framed(self, image: Image.Image, margin: Pair = (0, 0)) -> Image.Image:
        """The image at the size of :meth:`scaled`, and ``margin`` pixels more on every side, resized once."""
        height, width = self.scaled(image.height, image.width)
        height, width = height + 2 * margin[0], width + 2 * margin[1]
        return image if (width, height) == image.size else image.resize((width, height), self.filter)


def _given(config: dict[str, Any]) -> Any:
    """What a configuration says, lists as tuples."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in config.items() if v not in (None, "")}


def pixels_of(image: Image.Image) -> UInt8[Tensor, "3 H W"]:
    """The pixels of an image in RGB."""
    # by numpy: torch would start a pool of threads in each thread that reads
    return torch.from_numpy(np.array(np.asarray(image.convert("RGB")).transpose(2, 0, 1), order="C"))
