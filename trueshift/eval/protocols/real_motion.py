"""What a camera does to an image: the crop moves by pixels or parts of one, or stays while pixels change a little."""

import io
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped, UInt8
from PIL import Image
from torch import Tensor

from ...ops.geometry.shift import Pair
from .shifts import Cropped, Motion, Shifts

DIRECTIONS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))


@dataclass(frozen=True)
class CropsApart(Cropped):
    """Crops of a larger image, any two of them at most ``largest`` apart along each axis.

    Args:
        largest: in steps of ``step``, whole pixels here.
    """

    largest: int

    def reach(self, size: Pair) -> Pair:
        """The largest shift in pixels."""
        further = -(-(self.largest - self.largest // 2) // self.step)
        return further, further

    def steps(self, size: Pair) -> tuple[range, range]:
        """All positions, in a square around the centre."""
        along = range(-(self.largest // 2), self.largest - self.largest // 2 + 1)
        return along, along

    def count(self, asked: int | None, size: Pair) -> int:
        """As many as there are, at most."""
        return min(asked or 2**62, prod(map(len, self.steps(size))))

    def describe(self, size: Pair | None) -> str:
        """In words."""
        return f"crops of a larger image, up to {self.largest} pixel{'s' * (self.largest > 1)} apart"


@dataclass(frozen=True)
class Path(CropsApart):
    """The crop moves along a straight line, one pixel per frame, in one of eight directions drawn for each image."""

    def count(self, asked: int | None, size: Pair) -> int:
        """One more frame than there are steps."""
        return self.largest + 1

    def draw(self, generator: np.random.Generator, asked: int | None, size: Pair) -> Shifts:
        """The frames in their order."""
        frames = torch.tensor(self.steps(size)[0])
        return frames[:, None] * torch.tensor(DIRECTIONS[generator.integers(len(DIRECTIONS))])

    def describe(self, size: Pair | None) -> str:
        """In words."""
        return f"a crop that moves over a larger image, {self.largest} steps of one pixel"


@dataclass(frozen=True)
class SubPixel(CropsApart):
    """Crops of a larger image that are a few quarters of a pixel apart.

    Args:
        band_limited: interpolated by the discrete Fourier transform, which adds and loses nothing; else bilinearly,
            which blurs.
    """

    step: ClassVar[int] = 4
    AROUND: ClassVar[int] = 4  # pixels beyond the crop: the transform takes the image for periodic
    band_limited: bool = True

    def margin(self, size: Pair) -> Pair:
        """What is interpolated, and what keeps the ends of the image away."""
        rows, columns = self.reach(size)
        return rows + self.AROUND, columns + self.AROUND

    def extend(self, images: Shaped[Tensor, "B C EH EW"], size: Pair) -> Shaped[Tensor, "B C XH XW"]:
        """Four times as large; every fourth pixel is the image's own."""
        if not self.band_limited:
            fine = [(length - 1) * self.step + 1 for length in images.shape[2:]]
            return F.interpolate(images, fine, mode="bilinear", align_corners=True)
        rows, columns = (fourier_enlarge(length, self.step).to(images) for length in images.shape[2:])
        return rows @ images @ columns.T

    def origin(self, shifts: Shifts, size: Pair) -> Shifts:
        """In pixels of the enlarged image."""
        return self.step * torch.tensor(self.margin(size)) - shifts

    def describe(self, size: Pair | None) -> str:
        """In words."""
        how = "band-limited" if self.band_limited else "bilinear"
        return f"crops of a larger image, up to {self.largest} quarters of a pixel apart, {how}"


def fourier_enlarge(length: int, factor: int) -> Float[Tensor, "fine length"]:
    """The matrix that interpolates a periodic signal by its discrete Fourier transform."""
    spectrum = torch.fft.rfft(torch.eye(length, dtype=torch.float64), dim=0)
    if length % 2 == 0:
        spectrum[-1] /= 2  # the highest frequency, which the longer transform counts twice
    return torch.fft.irfft(spectrum, n=factor * length, dim=0) * factor


@dataclass(frozen=True)
class Jitter(Motion):
    """The crop stays, and its pixels change a little: what is shown are versions of the image, side by side.

    Args:
        jpeg: the quality at which the second version was saved, the first being the image itself; None for noise.
        noise: the largest change of a pixel, in grey levels of 256.
        versions: how many there are.
    """

    jpeg: int | None = None
    noise: int = 0
    versions: int = 2

    def steps(self, size: Pair) -> tuple[range, range]:
        """The numbers of the versions."""
        return range(1), range(self.versions)

    def count(self, asked: int | None, size: Pair) -> int:
        """As many as there are, at most."""
        return min(asked or self.versions, self.versions)

    def repaint(
        self, canvas: UInt8[Tensor, "3 H W"], generator: np.random.Generator
    ) -> UInt8[Tensor, "3 H all_versions"]:
        """The image and its versions, side by side."""
        if self.jpeg is not None:
            file = io.BytesIO()
            Image.fromarray(canvas.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=self.jpeg)
            with Image.open(file) as saved:
                others = [torch.from_numpy(np.array(saved)).permute(2, 0, 1)]
        else:
            drawn = generator.integers(-self.noise, self.noise + 1, (self.versions - 1, *canvas.shape))
            others = [(canvas + torch.from_numpy(change)).clamp(0, 255).to(torch.uint8) for change in drawn]
        return torch.cat([canvas, *others], 2)

    def extend(self, images: Shaped[Tensor, "B C EH EW"], size: Pair) -> Shaped[Tensor, "B C XH XW"]:
        """Nothing lies beyond the border."""
        return images

    def origin(self, shifts: Shifts, size: Pair) -> Shifts:
        """Where a version begins."""
        return shifts * torch.tensor(size)

    def describe(self, size: Pair | None) -> str:
        """In words."""
        if self.jpeg is not None:
            return f"the image and itself saved as JPEG of quality {self.jpeg}"
        return f"the image and itself with noise of at most {self.noise} grey level{'s' * (self.noise > 1)} in a pixel"
