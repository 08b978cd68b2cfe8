r"""The pixels of an image as integers of 14 bits, counted from the middle of its range.

.. math:: x \approx c + u\, q, \quad |q| \le 2^{14}

The centre :math:`c` and the unit :math:`u`, a power of two, come from the smallest and the largest value, which do not
move. Sums and products of such integers are exact. Fourteen bits make two digits of eight, which is what the matrix
units of a GPU multiply fastest; counted from the centre, they are bits of the contrast and not of the brightness.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from .. import kernels
from ..geometry.shift import Pair
from .exact import power_of_two_above, refuse_mps, require_finite

BITS = 14


@dataclass
class Integers:
    """What an image was rounded to, with the centre and unit of each image."""

    values: Float64[Tensor, "B H W C"]
    centre: Float64[Tensor, " B"]
    unit: Float64[Tensor, " B"]


@dataclass
class Planes:
    """The same, laid out for the kernels: see :mod:`trueshift.ops.kernels.quantised_image`."""

    digits: Tensor  # int8, one plane for each residue, channel and digit
    rows: Tensor  # int32, parts of the sums of differences between rows
    columns: Tensor
    scale: Float64[Tensor, "B 2"]  # centre and unit


class Pixels:
    """An image whose integers are made when first asked for, and once."""

    def __init__(self, image: Float[Tensor, "B H W C"]) -> None:
        self.image = image
        self._integers: Integers | None = None
        self._bounds: Tensor | None = None
        self._planes: Planes | None = None
        self._cut: tuple[Pair, Pair] | None = None

    def integers(self) -> Integers:
        """In float64."""
        if self._integers is None:
            self._integers = to_integers(self.image)
        return self._integers

    def bounds(self) -> Float32[Tensor, "B 2 parts"]:
        """For the kernels: the smallest and the largest value of each part of each image."""
        if self._bounds is None:
            self._bounds = kernels.quantised_image.find_bounds(self.image.detach())
        return self._bounds

    def planes(self, stride: Pair = (1, 1), kernel: Pair = (1, 1)) -> Planes:
        """For the kernels: cut for patches of this stride and kernel. Any cut serves who needs none."""
        if self._planes is None or (kernel != (1, 1) and self._cut != (stride, kernel)):
            planes = kernels.quantised_image.planes(self.image, self.bounds(), list(stride), list(kernel))
            self._cut, self._planes = (stride, kernel), Planes(*planes)
        return self._planes


def to_integers(x: Float[Tensor, "B H W C"]) -> Integers:
    """Round each image to integers of at most 14 bits.

    Shift law: the integers move with the image, and centre and unit stay.
    """
    refuse_mps(x)
    low, high = (bound.to(torch.float64) * 0.5 for bound in (x.amin((1, 2, 3)), x.amax((1, 2, 3))))
    require_finite(high - low)
    centre, unit = low + high, power_of_two_above(high - low) * 2.0**-BITS
    values = x.to(torch.float64) - centre.view(-1, 1, 1, 1)
    return Integers(values.mul_((1 / unit).view(-1, 1, 1, 1)).round_(), centre, unit)
