r"""Ways an image can move under a camera: around a circle, against black, or under a crop.

A shift :math:`\Delta = (h, w)` moves the content down by h and right by w. Every motion is the same act: extend the
image beyond its border, then look at windows of the extension.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor

from ...ops.geometry.shift import Pair, circular_pad

Shifts = Int64[Tensor, "K 2"]


@dataclass(frozen=True)
class Motion:
    """How images move.

    Shift law: ``view(image, shifts)[k]`` shows at (u, v) what the image has at (u, v) - shifts[k].
    """

    step: ClassVar[int] = 1  # pixels of the extended image from one pixel of a view to the next

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
        if asked is not None and asked > total:
            raise ValueError(f"{asked} shifts: {self} has only {total} different ones at {size[0]} x {size[1]} pixels")
        return total if asked is None else asked

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
    """Shifts of either sign, up to a largest one.

    Args:
        largest: the largest shift, either way, as a part of the size.
    """

    largest: float

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


def windows(
    images: Shaped[Tensor, "B C XH XW"], where: Int64[Tensor, "K 3"], size: Pair, step: int = 1
) -> Shaped[Tensor, "K C H W"]:
    """Windows of ``size``, each given by the number of its image and the row and column where it begins.

    Args:
        step: take every so many-th pixel.
    """
    high, wide = ((length - 1) * step + 1 for length in size)
    every = images.unfold(2, high, 1).unfold(3, wide, 1)[..., ::step, ::step]  # a view: B, C, rows, columns, H, W
    which, rows, columns = where.to(images.device, non_blocking=True).unbind(1)
    return every[which, :, rows, columns]
