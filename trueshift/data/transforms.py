"""Turn an image into the pixels a network takes: resize, crop, normalise."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from ..ops.geometry.shift import Pair

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}

FITS = ("resize", "pad")


class Colours:
    """What all ways of preparing pictures share: the filter that resizes, and the values a network knows colours by."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str

    def check_colours(self) -> None:
        """Refuse values that no picture can be prepared by."""
        numbers = all(isfinite(value) for value in (*self.mean, *self.std))
        if len(self.mean) != 3 or len(self.std) != 3 or not numbers or min(self.std) <= 0:
            raise ValueError(f"mean {self.mean}, std {self.std}: needs three values each, one per colour, std above 0")
        if self.interpolation not in _FILTERS:
            raise ValueError(f"interpolation {self.interpolation!r}: needs one of {', '.join(_FILTERS)}")

    @property
    def filter(self) -> Image.Resampling:
        """By what pictures are resized."""
        return _FILTERS[self.interpolation]

    @property
    def mean_pixel(self) -> tuple[int, ...]:
        """The colour that is nearest to zero once it is normalised."""
        return tuple(min(255, round(255 * value)) for value in self.mean)

    def normaliser(self, device: torch.device | str = "cpu") -> Callable[[Tensor], Tensor]:
        """A function from pixels to values as the network knows them, with its constants on the device already."""
        mean = torch.tensor(self.mean, device=device).view(3, 1, 1)
        std = torch.tensor(self.std, device=device).view(3, 1, 1)
        return lambda canvas: (canvas.float() / 255 - mean) / std

    def normalise(self, canvas: UInt8[Tensor, "3 H W"]) -> Float[Tensor, "3 H W"]:
        """Pixel values as the network knows them."""
        return self.normaliser(canvas.device)(canvas)


@dataclass(frozen=True)
class Preparation(Colours):
    """How a network wants its pictures: the same values, under the same names, as timm's data configuration.

    Args:
        size: height and width of the input.
        crop_pct: how much of the resized picture the crop in its middle keeps.
    """

    size: Pair = (224, 224)
    crop_pct: float = 0.875
    mean: tuple[float, ...] = field(default=IMAGENET_DEFAULT_MEAN)
    std: tuple[float, ...] = field(default=IMAGENET_DEFAULT_STD)
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if min(self.size) < 1 or not 0 < self.crop_pct <= 1:
            raise ValueError(f"size {self.size}, crop_pct {self.crop_pct}: needs positive sizes and 0 < crop_pct <= 1")
        self.check_colours()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Preparation":
        """From a ``pretrained_cfg`` of timm's; what it does not say stays at the default."""
        given: dict[str, Any] = {
            "size": tuple(config["input_size"][1:]) if config.get("input_size") else None,
            "crop_pct": config.get("crop_pct"),
            "mean": tuple(config["mean"]) if config.get("mean") else None,
            "std": tuple(config["std"]) if config.get("std") else None,
            "interpolation": config.get("interpolation") or None,
        }
        return cls(**{key: value for key, value in given.items() if value is not None})

    def resized(self, height: int, width: int) -> Pair:
        """Height and width that a picture is resized to before the crop: as timm's evaluation transform."""
        target = self._target()
        scale = max(target[0] / height, target[1] / width)
        # the shorter side hits its target exactly, the other is cut to whole pixels: as torchvision's Resize
        return max(target[0], int(height * scale + 1e-9)), max(target[1], int(width * scale + 1e-9))

    def _target(self) -> Pair:
        """What a resized picture has at least."""
        return int(self.size[0] / self.crop_pct), int(self.size[1] / self.crop_pct)

    def has_room(self, margin: Pair) -> bool:
        """Whether every resized picture has a margin around the crop, so that none must grow for it."""
        target = self._target()
        return all(target[axis] >= self.size[axis] + 2 * margin[axis] for axis in (0, 1))

    def framed(self, picture: Image.Image, margin: Pair = (0, 0)) -> Image.Image:
        """The middle of the picture at the network's scale, with ``margin`` pixels more on every side.

        Without a margin these are the pixels of timm's evaluation transform, for inputs that are square. With one that
        there is no room for, see :meth:`has_room`, the picture is resized to be larger.
        """
        height, width = self.resized(picture.height, picture.width)
        high, wide = self.size[0] + 2 * margin[0], self.size[1] + 2 * margin[1]
        if height < high or width < wide:  # a crop that keeps everything leaves no margin to move in
            grow = max(high / height, wide / width)
            height, width = max(high, int(height * grow)), max(wide, int(width * grow))
        if (width, height) != picture.size:
            picture = picture.resize((width, height), self.filter)
        top, left = self.crop_corner(height, width)
        # the middle first, then the margin: halves are rounded to even, and an odd margin would move the middle
        top, left = top - margin[0], left - margin[1]
        return picture.crop((left, top, left + wide, top + high))

    def crop_corner(self, height: int, width: int) -> Pair:
        """Where the crop in the middle of a resized picture begins."""
        return round((height - self.size[0]) / 2), round((width - self.size[1]) / 2)

    def canvas(self, picture: Image.Image, margin: Pair = (0, 0)) -> UInt8[Tensor, "3 H W"]:
        """The pixels of :meth:`framed`."""
        return pixels_of(self.framed(picture, margin))


@dataclass(frozen=True)
class ScenePreparation(Colours):
    """How a segmentation network wants its pictures.

    Args:
        scale: the longest side at most, and the shortest: a picture is resized to the largest size within both that
            keeps its ratio, as mmsegmentation does.
        multiple: of rows and of columns, that the network needs.
        fit: ``"resize"``: each side goes on to the next multiple, so that the picture fills its frame and may be
            shifted circularly (the paper's way for those shifts); ``"pad"``: the size stays as it is, and the picture
            is padded where it is shown (for ordinary shifts).
    """

    scale: Pair = (2048, 512)
    multiple: Pair = (1, 1)
    fit: str = "resize"
    mean: tuple[float, ...] = field(default=IMAGENET_DEFAULT_MEAN)
    std: tuple[float, ...] = field(default=IMAGENET_DEFAULT_STD)
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
        """From what :meth:`to_dict` gave, also once it was JSON; what it does not say stays at the default."""
        known = [each.name for each in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"a preparation with {', '.join(unknown)}: needs only {', '.join(known)}")
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """As lists, numbers and words, for a configuration file."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    def kept_ratio(self, height: int, width: int, factor: float = 1.0) -> Pair:
        """Height and width at ``factor`` times the scale, with the ratio kept but for whole pixels."""
        longest, shortest = self.scale
        grow = factor * min(longest / max(height, width), shortest / min(height, width))
        return max(int(height * grow + 0.5), 1), max(int(width * grow + 0.5), 1)

    def scaled(self, height: int, width: int) -> Pair:
        """Height and width that a picture is resized to."""
        rows, columns = self.kept_ratio(height, width)
        if self.fit == "resize":
            rows, columns = rows + -rows % self.multiple[0], columns + -columns % self.multiple[1]
        return rows, columns

    def framed(self, picture: Image.Image) -> Image.Image:
        """The picture at that size. Resized once: what keeps the ratio is only reckoned with."""
        height, width = self.scaled(picture.height, picture.width)
        return picture if (width, height) == picture.size else picture.resize((width, height), self.filter)

    def canvas(self, picture: Image.Image) -> UInt8[Tensor, "3 H W"]:
        """The pixels of :meth:`framed`."""
        return pixels_of(self.framed(picture))


def pixels_of(picture: Image.Image) -> UInt8[Tensor, "3 H W"]:
    """Red, green and blue of a picture."""
    # laid out by numpy: torch would start a pool of threads in each thread that reads
    return torch.from_numpy(np.array(np.asarray(picture.convert("RGB")).transpose(2, 0, 1), order="C"))
