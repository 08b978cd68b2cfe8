"""Changes made to an image before it moves: the paper's out-of-distribution tests."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class EraseSquare:
    """A square of random size and place becomes zero (the mean colour, after normalising).

    Args:
        largest: the largest side as a part of the image's; the side is drawn uniformly from 0 pixels up to it.
    """

    largest: float
    drawn: ClassVar[bool] = True  # by chance, anew for each protocol

    def __call__(self, image: Float[Tensor, "C H W"], generator: np.random.Generator) -> Float[Tensor, "C H W"]:
        """The image with its square erased; the square lies inside the image."""
        height, width = image.shape[1:]
        side = int(generator.integers(0, round(min(height, width) * self.largest) + 1))
        top = int(generator.integers(0, height - side + 1))
        left = int(generator.integers(0, width - side + 1))
        image = image.clone()
        image[:, top : top + side, left : left + side] = 0
        return image

    def describe(self, size: tuple[int, int]) -> str:
        """In words."""
        return f"a square of side 0 to {round(min(size) * self.largest)} erased"


@dataclass(frozen=True)
class VerticalFlip:
    """The image upside down."""

    drawn: ClassVar[bool] = False

    def __call__(self, image: Float[Tensor, "C H W"], generator: np.random.Generator) -> Float[Tensor, "C H W"]:
        """The image with its rows in reverse order."""
        return image.flip(1)

    def describe(self, size: tuple[int, int]) -> str:
        """In words."""
        return "upside down"
