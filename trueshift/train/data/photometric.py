"""Random brightness, contrast, saturation and hue for a batch on its device.

As mmsegmentation's distortion, but without rounding between the steps.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from ...utils.rng import uniform

# streams of random numbers, two for each change: whether, and by how much
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE, _ORDER = range(32, 42, 2)
_BRIGHTER = 32.0  # of 255, at most
_LEAST, _MOST = 0.5, 1.5  # of contrast and saturation
_TURN = 18 / 180  # of the circle of hues, at most


@dataclass(frozen=True)
class Distortion:
    """The changes of each image of a batch; 0 or a factor of 1 for none."""

    brightness: Float[Tensor, " B"]  # added, of 255
    contrast_first: Float[Tensor, " B"]  # a factor of all colors, before saturation and hue
    saturation: Float[Tensor, " B"]  # a factor
    hue: Float[Tensor, " B"]  # added, in parts of the circle
    contrast_last: Float[Tensor, " B"]  # a factor of all colors, at the end

    @classmethod
    def drawn(cls, seed: int, epoch: int, indices: np.ndarray, device: torch.device | str = "cpu") -> "Distortion":
        """Draw each change with probability 1/2, seeded by sample."""

        def some(stream: int, least: float, most: float, otherwise: float) -> np.ndarray:
            amount = least + (most - least) * uniform(seed, epoch, indices, stream + 1)
            return np.where(uniform(seed, epoch, indices, stream) < 0.5, amount, otherwise)

        contrast = some(_CONTRAST, _LEAST, _MOST, 1.0)
        first = uniform(seed, epoch, indices, _ORDER) < 0.5
        drawn = [
            some(_BRIGHTNESS, -_BRIGHTER, _BRIGHTER, 0.0),
            np.where(first, contrast, 1.0),
            some(_SATURATION, _LEAST, _MOST, 1.0),
            some(_HUE, -_TURN, _TURN, 0.0),
            np.where(first, 1.0, contrast),
        ]
        # one copy to the device
        return cls(*torch.from_numpy(np.stack(drawn).astype(np.float32)).to(device, non_blocking=True).unbind())


def distort(
    images: UInt8[Tensor, "B 3 H W"], by: Distortion, keep: Bool[Tensor, "B H W"] | None = None
) -> Float[Tensor, "B 3 H W"]:
    """Change the colors of images, from 0 to 255.

    An image does not depend on its batch, bit for bit, and one without changes stays as it is.

    Shift law: ``distort(S x) == S distort(x)``: each pixel is changed by itself.

    Args:
        keep: pixels to leave unchanged, such as padding.
    """
    pixels = (images.float() + _each(by.brightness)).clamp_(0, 255)
    pixels = (pixels * _each(by.contrast_first)).clamp_(0, 255)
    colored = _recolored(pixels, _each(by.saturation)[:, 0], _each(by.hue)[:, 0])
    untouched = _each((by.saturation == 1) & (by.hue == 0))  # the conversion to hue and back rounds
    pixels = torch.where(untouched, pixels, colored)
    pixels = (pixels * _each(by.contrast_last)).clamp_(0, 255)
    return pixels if keep is None else torch.where(keep[:, None], images.float(), pixels)


def _each(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def _recolored(pixels: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Change saturation and hue, but not the value, the largest component.

    Only sums, products and comparisons, which round alike everywhere.
    """
    red, green, blue = pixels.unbind(1)
    value, least = pixels.amax(1), pixels.amin(1)
    chroma = value - least
    some = chroma.clamp(min=1e-6)  # a gray has no hue: its result is multiplied by 0
    # hue in sixths of the circle
    sixths = torch.where(
        value == red,
        (green - blue) / some,
        torch.where(value == green, (blue - red) / some + 2, (red - green) / some + 4),
    )
    sixths = _around(sixths + hue * 6)
    chroma = torch.minimum(chroma * saturation, value)
    channels = []
    for start in (5, 3, 1):  # of red, green and blue
        along = _around(sixths + start)
        channels.append(value - chroma * torch.minimum(along, 4 - along).clamp(0, 1))
    return torch.stack(channels, 1)


def _around(sixths: Tensor) -> Tensor:
    """From -6 to 12 into 0 to 6."""
    sixths = torch.where(sixths < 0, sixths + 6, sixths)
    return torch.where(sixths >= 6, sixths - 6, sixths)
