r"""Ways an image can move under a camera: around a circle, against black, under a crop, by parts of a pixel; or stay.

A shift :math:`\Delta = (h, w)` moves the content down by h and right by w. Every motion is the same act: extend the
image beyond its border, then look at windows of the extension.
"""

import io
from collections.abc import Hashable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Shaped, UInt8
from PIL import Image
from torch import Tensor

from ...ops.geometry.shift import Pair, circular_pad

Shifts = Int64[Tensor, "K 2"]
DIRECTIONS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))


@dataclass(frozen=True)
class Motion:
    """How images move.

    Shift law: ``view(image, shifts)[k]`` shows at (u, v) what the image has at (u, v) - shifts[k].
    """

    step: ClassVar[int] = 1  # pixels of the extended image from one pixel of a view to the next
    few: ClassVar[bool] = False  # where more shifts are asked for than there are, all are drawn

    def margin(self, size: Pair) -> Pair:
        """How many pixels beyond the input, on each side, the image must have."""
        return 0, 0

    def steps(self, size: Pair) -> tuple[range, range]:
        """All shifts this motion knows, along rows and columns."""
        raise NotImplementedError

    def extension(self) -> Hashable:
        """Motions with an equal extension look at windows of the same extended image."""
        return self

    def extend(self, images: Shaped[Tensor, "B C EH EW"], size: Pair) -> Shaped[Tensor, "B C XH XW"]:
        """Images beyond their border; given, they are ``margin`` pixels larger than ``size`` on every side."""
        raise NotImplementedError

    def origin(self, shifts: Shifts, size: Pair) -> Shifts:
        """Where in the extended image the window of each shift begins."""
        raise NotImplementedError

    def view(self, image: Shaped[Tensor, "C EH EW"], shifts: Shifts, size: Pair) -> Shaped[Tensor, "K C H W"]:
        """The image after each shift."""
        origin = self.origin(shifts, size)
        where = torch.cat([torch.zeros_like(origin[:, :1]), origin], 1)
        return windows(self.extend(image[None], size), where, size, self.step)

    def undo(self, seen: Shaped[Tensor, "K *channels H W"], shifts: Shifts) -> tuple[Tensor, Bool[Tensor, "K H W"]]:
        """Maps of shifted images (labels or logits of pixels) moved back, and where they speak of the image."""
        raise NotImplementedError

    def count(self, asked: int | None, size: Pair) -> int:
        """How many shifts are drawn where so many are asked for; all of them without a number."""
        total = prod(map(len, self.steps(size)))
        if asked is not None and asked > total and not self.few:
            raise ValueError(f"{asked} shifts: {self} has only {total} different ones at {size[0]} x {size[1]} pixels")
        return total if asked is None else min(asked, total)

    def draw(self, generator: np.random.Generator, asked: int | None, size: Pair) -> Shifts:
        """Different shifts, each as likely as any other; all of them, in order, without a number."""
        rows, columns = self.steps(size)
        total, count = len(rows) * len(columns), self.count(asked, size)
        chosen = np.arange(total) if asked is None else generator.choice(total, count, replace=False)
        down, right = np.divmod(chosen, len(columns))
        return torch.from_numpy(np.stack([down + rows.start, right + columns.start], 1)).long()

    def describe(self, size: Pair | None) -> str:
        """In words, with its range in pixels, or in parts of the image where sizes differ."""
        raise NotImplementedError


@dataclass(frozen=True)
class Circular(Motion):
    """What leaves the image on one side comes in on the other.

    Args:
        largest: the largest shift as a part of the size; without it, every shift of the image.
        both_ways: from minus the largest on, not from 0.
    """

    largest: float | None = None
    both_ways: bool = False

    def steps(self, size: Pair) -> tuple[range, range]:
        if self.largest is None:
            return range(size[0]), range(size[1])
        rows, columns = round(size[0] * self.largest), round(size[1] * self.largest)
        return range(-rows * self.both_ways, rows + 1), range(-columns * self.both_ways, columns + 1)

    def extension(self) -> Hashable:
        return Circular

    def extend(self, images: Shaped[Tensor, "B C EH EW"], size: Pair) -> Shaped[Tensor, "B C XH XW"]:
        return circular_pad(images.permute(0, 2, 3, 1), (0, size[0] - 1), (0, size[1] - 1)).permute(0, 3, 1, 2)

    def origin(self, shifts: Shifts, size: Pair) -> Shifts:
        return -shifts % torch.tensor(size)

    def undo(self, seen: Shaped[Tensor, "K *channels H W"], shifts: Shifts) -> tuple[Tensor, Bool[Tensor, "K H W"]]:
        back = [torch.roll(map, shift, (-2, -1)) for map, shift in zip(seen, (-shifts).tolist(), strict=True)]
        return torch.stack(back), seen.new_ones((len(seen), *seen.shape[-2:]), dtype=torch.bool)

    def describe(self, size: Pair | None) -> str:
        if self.largest is None:
            return f"circular, all {f'{size[0]} x {size[1]} ' if size else ''}shifts"
        sign, since = ("±", "up to ") if self.both_ways else ("", "0 to ")
        if size is None:
            return f"circular, {since}{sign}{self.largest:.3g} of the image"
        rows, columns = self.steps(size)
        return f"circular, {since}{sign}{rows[-1]} x {sign}{columns[-1]} pixels of {size[0]} x {size[1]}"


@dataclass(frozen=True)
class Neighbourhood(Circular):
    """Circular shifts of a few pixels either way: a square of ``side`` shifts around zero."""

    side: int = 16

    def steps(self, size: Pair) -> tuple[range, range]:
        rows, columns = (min(self.side, length) for length in size)
        return range(-(rows // 2), rows - rows // 2), range(-(columns // 2), columns - columns // 2)


@dataclass(frozen=True)
class _Bounded(Motion):
    """Shifts of either sign, up to a largest one."""

    largest: float  # shift, either way, as a part of the size

    def reach(self, size: Pair) -> Pair:
        """The largest shift in pixels."""
        return round(size[0] * self.largest), round(size[1] * self.largest)

    def steps(self, size: Pair) -> tuple[range, range]:
        rows, columns = self.reach(size)
        return range(-rows, rows + 1), range(-columns, columns + 1)

    def origin(self, shifts: Shifts, size: Pair) -> Shifts:
        return torch.tensor(self.reach(size)) - shifts

    def undo(self, seen: Shaped[Tensor, "K *channels H W"], shifts: Shifts) -> tuple[Tensor, Bool[Tensor, "K H W"]]:
        height, width = seen.shape[-2:]
        back, covered = torch.zeros_like(seen), seen.new_zeros((len(seen), height, width), dtype=torch.bool)
        for index, (down, right) in enumerate(shifts.tolist()):
            there = (slice(max(down, 0), height + min(down, 0)), slice(max(right, 0), width + min(right, 0)))
            here = (slice(max(-down, 0), height + min(-down, 0)), slice(max(-right, 0), width + min(-right, 0)))
            back[index][..., *here] = seen[index][..., *there]
            covered[index][here] = True
        return back, covered


@dataclass(frozen=True)
class ZeroPadded(_Bounded):
    """What leaves the image is gone, and zeros (the mean colour, after normalising) come in."""

    def extend(self, images: Shaped[Tensor, "B C EH EW"], size: Pair) -> Shaped[Tensor, "B C XH XW"]:
        rows, columns = self.reach(size)
        return F.pad(images, (columns, columns, rows, rows))

    def describe(self, size: Pair | None) -> str:
        if size is None:
            return f"standard, up to ±{self.largest:.3g} of the image, zero padded"
        rows, columns = self.reach(size)
        return f"standard, up to ±{rows} x ±{columns} of {size[0]} x {size[1]} pixels, zero padded"


@dataclass(frozen=True)
class Cropped(_Bounded):
    """The crop moves over a larger image, as in Zhang (2019): new content comes in, nothing is made up."""

    def margin(self, size: Pair) -> Pair:
        return self.reach(size)

    def extend(self, images: Shaped[Tensor, "B C EH EW"], size: Pair) -> Shaped[Tensor, "B C XH XW"]:
        return images

    def describe(self, size: Pair | None) -> str:
        if size is None:
            return f"standard, a crop within ±{self.largest:.3g} of the image"
        rows, columns = self.reach(size)
        crop = f"crop of {size[0]} x {size[1]} within ±{rows} x ±{columns} pixels"
        return f"standard, resized to at least {size[0] + 2 * rows}, {crop}"


@dataclass(frozen=True)
class CropsApart(Cropped):
    """Crops of a larger image, any two of them at most ``largest`` pixels apart along each axis."""

    few: ClassVar[bool] = True
    largest: int  # in steps, of which ``step`` make a pixel: here one

    def reach(self, size: Pair) -> Pair:
        further = -(-(self.largest - self.largest // 2) // self.step)
        return further, further

    def steps(self, size: Pair) -> tuple[range, range]:
        """All positions, in a square around the centre."""
        along = range(-(self.largest // 2), self.largest - self.largest // 2 + 1)
        return along, along

    def describe(self, size: Pair | None) -> str:
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

    few: ClassVar[bool] = True
    jpeg: int | None = None
    noise: int = 0
    versions: int = 2

    def steps(self, size: Pair) -> tuple[range, range]:
        """The numbers of the versions."""
        return range(1), range(self.versions)

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
        if self.jpeg is not None:
            return f"the image and itself saved as JPEG of quality {self.jpeg}"
        return f"the image and itself with noise of at most {self.noise} grey level{'s' * (self.noise > 1)} in a pixel"


def windows(
    images: Shaped[Tensor, "B C XH XW"], where: Int64[Tensor, "K 3"], size: Pair, step: int = 1
) -> Shaped[Tensor, "K C H W"]:
    """Windows of ``size``, of every ``step``-th pixel, each given by the number of its image, first row and column."""
    high, wide = ((length - 1) * step + 1 for length in size)
    every = images.unfold(2, high, 1).unfold(3, wide, 1)[..., ::step, ::step]  # a view: B, C, rows, columns, H, W
    which, rows, columns = where.to(images.device, non_blocking=True).unbind(1)
    return every[which, :, rows, columns]
