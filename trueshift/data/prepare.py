"""From a picture to the pixels that a network is shown: resize, crop, normalise."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from ..ops.shift import Pair

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}


@dataclass(frozen=True)
class Preparation:
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
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(f"mean {self.mean}, std {self.std}: needs three values each, one per colour, std above 0")
        if self.interpolation not in _FILTERS:
            raise ValueError(f"interpolation {self.interpolation!r}: needs one of {', '.join(_FILTERS)}")

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

    def canvas(self, picture: Image.Image, margin: Pair = (0, 0)) -> UInt8[Tensor, "3 H W"]:
        """The middle of the picture at the network's scale, with ``margin`` pixels more on every side.

        Without a margin these are the pixels of timm's evaluation transform, for inputs that are square.
        """
        height, width = self.size
        target = (int(height / self.crop_pct), int(width / self.crop_pct))
        scale = max(target[0] / picture.height, target[1] / picture.width)
        # the shorter side hits its target exactly, the other is cut to whole pixels: as torchvision's Resize
        resized = (
            max(target[1], int(picture.width * scale + 1e-9)),
            max(target[0], int(picture.height * scale + 1e-9)),
        )
        wide, high = width + 2 * margin[1], height + 2 * margin[0]
        if resized[0] < wide or resized[1] < high:  # a crop that keeps everything leaves no margin to move in
            grow = max(wide / resized[0], high / resized[1])
            resized = (max(wide, int(resized[0] * grow)), max(high, int(resized[1] * grow)))
        if resized != picture.size:
            picture = picture.resize(resized, _FILTERS[self.interpolation])
        # the middle first, then the margin: halves are rounded to even, and an odd margin would move the middle
        left, top = round((resized[0] - width) / 2) - margin[1], round((resized[1] - height) / 2) - margin[0]
        cropped = picture.convert("RGB").crop((left, top, left + wide, top + high))
        # laid out by numpy: torch would start a pool of threads in each thread that reads
        return torch.from_numpy(np.array(np.asarray(cropped).transpose(2, 0, 1), order="C"))

    def normaliser(self, device: torch.device | str = "cpu") -> Callable[[Tensor], Tensor]:
        """A function from pixels to values as the network knows them, with its constants on the device already."""
        mean = torch.tensor(self.mean, device=device).view(3, 1, 1)
        std = torch.tensor(self.std, device=device).view(3, 1, 1)
        return lambda canvas: (canvas.float() / 255 - mean) / std

    def normalise(self, canvas: UInt8[Tensor, "3 H W"]) -> Float[Tensor, "3 H W"]:
        """Pixel values as the network knows them."""
        return self.normaliser(canvas.device)(canvas)
