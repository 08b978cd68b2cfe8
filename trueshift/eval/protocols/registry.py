"""Evaluations by name, the paper's and those of real motion: how an image moves, and what is compared with what.

Shifts are drawn anew for each image from its index and the seed, so two models see the same ones, whatever the batch
size, the order or the number of processes.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from difflib import get_close_matches
from zlib import crc32

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from ...ops.geometry.shift import Pair
from .shifts import Circular, Cropped, CropsApart, Jitter, Motion, Path, Shifts, SubPixel, ZeroPadded


@dataclass(frozen=True)
class EraseSquare:
    """A square of random size and place becomes zero (the mean colour, after normalising)."""

    largest: float  # side as a part of the image's; the side is drawn uniformly from 0 pixels up to it

    def __call__(self, image: Float[Tensor, "C H W"], generator: np.random.Generator) -> Float[Tensor, "C H W"]:
        """The image with its square erased; the square lies inside the image."""
        height, width = image.shape[1:]
        side = int(generator.integers(0, round(min(height, width) * self.largest) + 1))
        top, left = (int(generator.integers(0, length - side + 1)) for length in (height, width))
        image = image.clone()
        image[:, top : top + side, left : left + side] = 0
        return image

    def describe(self, size: tuple[int, int]) -> str:
        """In words."""
        return f"a square of side 0 to {round(min(size) * self.largest)} erased"


@dataclass(frozen=True)
class VerticalFlip:
    """The image upside down."""

    def __call__(self, image: Float[Tensor, "C H W"], generator: np.random.Generator) -> Float[Tensor, "C H W"]:
        """The image with its rows in reverse order."""
        return image.flip(1)

    def describe(self, size: tuple[int, int]) -> str:
        """In words."""
        return "upside down"


@dataclass(frozen=True)
class ShiftProtocol:
    """One way of measuring consistency."""

    name: str  # by which it is asked for
    title: str  # as a table shows it
    motion: Motion
    distortion: EraseSquare | VerticalFlip | None = None  # what is done to the image before it moves
    against_unshifted: bool = False  # compare with the unshifted image, instead of with each other
    dense: bool = False  # the answer is a label for each pixel

    def shifts(self, index: int, count: int | None, size: Pair, seed: int) -> Shifts:
        """``count`` different shifts for the image of this index; all of them without a count."""
        return self.motion.draw(self._generator("shifts", index, seed), count, size)

    def distort(self, image: Float[Tensor, "C H W"], index: int, seed: int) -> Float[Tensor, "C H W"]:
        """The image as it is before it moves."""
        if self.distortion is None:
            return image
        return self.distortion(image, self._generator("distortion", index, seed))

    def repaint(self, canvas: UInt8[Tensor, "3 H W"], index: int, seed: int) -> UInt8[Tensor, "3 H all_versions"]:
        """The image beside its versions, where these are what is compared."""
        assert isinstance(self.motion, Jitter)
        return self.motion.repaint(canvas, self._generator("pixels", index, seed))

    def unshifted(self) -> Hashable:
        """A key of the image before it moves: protocols with equal keys show the same one."""
        return self.distortion, self.name if isinstance(self.distortion, EraseSquare) else None

    def _generator(self, purpose: str, index: int, seed: int) -> np.random.Generator:
        return np.random.default_rng((seed, crc32(f"{self.name} {purpose}".encode()), index))

    def describe(self, size: Pair | None) -> str:
        """Everything a table must name: motion, range, distortion, and what is compared; no size where they differ."""
        parts = [self.motion.describe(size)]
        if self.distortion is not None and size is not None:
            parts.append(self.distortion.describe(size))
        if isinstance(self.motion, Path):
            return "; ".join([*parts, "each frame against the next"])
        views = "versions" if isinstance(self.motion, Jitter) else "shifts"
        compared = (
            "shifted against unshifted" if self.against_unshifted else f"two different {views} against each other"
        )
        if self.dense and not isinstance(self.motion, Circular):
            compared += ", without the bands that either leaves uncovered"
        return "; ".join([*parts, compared])


CIFAR_SIDE = 32  # the paper counts magnitudes in CIFAR's original pixels, and erased patches at 224
_PROTOCOLS = (
    ShiftProtocol("circular", "C-Cons.", Circular()),
    # the ranges of the code of LPS, by the same authors; the paper names none
    ShiftProtocol("cifar-circular", "C-Cons., ±3 of 32", Circular(3 / 32, both_ways=True)),
    ShiftProtocol("imagenet-circular", "C-Cons., ±32 of 224", Circular(32 / 224, both_ways=True)),
    ShiftProtocol("circular-28", "C-Cons., ±28 of 224", Circular(28 / 224, both_ways=True)),
    ShiftProtocol("cifar-standard", "S-Cons.", ZeroPadded(28 / 224)),
    ShiftProtocol("standard-21", "S-Cons., ±21 of 224", ZeroPadded(21 / 224)),
    ShiftProtocol("standard-32", "S-Cons., ±32 of 224", ZeroPadded(32 / 224)),
    ShiftProtocol("imagenet-standard", "S-Cons.", Cropped(16 / 224)),
    *(
        ShiftProtocol(
            f"magnitude-{pixels}", f"0..{pixels} of 32", Circular(pixels / CIFAR_SIDE), against_unshifted=True
        )
        for pixels in (8, 16, 24, 32)
    ),
    *(
        ShiftProtocol(f"erased-{pixels}", f"erased, max {pixels}", Circular(), EraseSquare(pixels / 224))
        for pixels in (0, 28, 42, 56, 70)
    ),
    ShiftProtocol("flipped", "upside down", Circular(), VerticalFlip()),
    *(ShiftProtocol(f"crop-{pixels}", f"crops, {pixels} px", CropsApart(pixels)) for pixels in (1, 2, 4, 8)),
    *(ShiftProtocol(f"path-{pixels}", f"path of {pixels} px", Path(pixels)) for pixels in (8, 32)),
    ShiftProtocol("subpixel", "crops, parts of a pixel", SubPixel(4)),
    ShiftProtocol("subpixel-bilinear", "the same, bilinear", SubPixel(4, band_limited=False)),
    ShiftProtocol("jpeg", "JPEG 90", Jitter(jpeg=90)),
    ShiftProtocol("noise", "noise of a grey level", Jitter(noise=1, versions=8)),
    ShiftProtocol("ade20k-circular", "mASCC", Circular(), dense=True),
    ShiftProtocol("ade20k-standard", "mASSC", ZeroPadded(1 / 8), dense=True),
    *(ShiftProtocol(f"pixel-crop-{t}", f"pixels, crops, {t} px", CropsApart(t), dense=True) for t in (1, 2, 4, 8)),
)
PROTOCOLS = {protocol.name: protocol for protocol in _PROTOCOLS}
# the paper's tables, and real motion
SUITES: dict[str, tuple[str, ...]] = {
    "cifar": ("circular", "cifar-circular", "cifar-standard"),
    "imagenet": ("circular", "imagenet-circular", "imagenet-standard"),
    # ranges in which the paper's may have been
    "ranges": ("cifar-circular", "circular-28", "imagenet-circular", "standard-21", "cifar-standard", "standard-32"),
    "magnitude": tuple(name for name in PROTOCOLS if name.startswith("magnitude-")),
    "erased": tuple(name for name in PROTOCOLS if name.startswith("erased-")),
    "flips": ("circular", "flipped"),
    "motion": (*(f"crop-{p}" for p in (1, 2, 4, 8)), "path-32", "subpixel", "subpixel-bilinear", "jpeg", "noise"),
    "ade20k": ("ade20k-circular", "ade20k-standard"),
    "pixel-motion": tuple(f"pixel-crop-{pixels}" for pixels in (1, 2, 4, 8)),
}


def find_protocols(names: list[str] | tuple[str, ...]) -> list[ShiftProtocol]:
    """Protocols by their names or by the name of a suite, each once."""
    found: dict[str, ShiftProtocol] = {}
    for name in names:
        if name not in PROTOCOLS and name not in SUITES:
            close = get_close_matches(name, [*PROTOCOLS, *SUITES], n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(
                f"no protocol is called {name!r}: {meant}There are the protocols {', '.join(PROTOCOLS)}, "
                f"and the suites {', '.join(SUITES)}"
            )
        found.update({each: PROTOCOLS[each] for each in SUITES.get(name, (name,))})
    return list(found.values())
