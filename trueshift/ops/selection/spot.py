r"""Spots that stand out: places that stay with the content while an image moves.

With :math:`b_n` the image blurred by a triangle of n pixels, the spot at a pixel is as strong as :math:`\sum_c |b_n -
b_w|`, of a narrow triangle and a wide one. The sum over a whole grid of patches changes with everything that enters or
leaves the image; the place of the strongest spot changes only when that spot leaves, or a stronger one enters.
"""

from functools import reduce

import torch
from jaxtyping import Shaped
from torch import Tensor

SMALLEST = 2, 3  # the narrow triangle and the wide one; small spots stay in view longest


def spot_strength(levels: Shaped[Tensor, "B C H W"], narrow: int, wide: int) -> Shaped[Tensor, "B h w"]:
    """How strong the spot around each pixel is, where the wide triangle lies within the image.

    Shift law: of integers the strength depends on the pixels around and on nothing else, bit for bit.
    """
    inner = wide - narrow
    sharp = _triangle(levels, narrow)[..., inner : levels.shape[2] - 2 * (narrow - 1) - inner, :]
    sharp = sharp[..., inner : levels.shape[3] - 2 * (narrow - 1) - inner]
    return (wide**4 * sharp - narrow**4 * _triangle(levels, wide)).abs().sum(1)


def _triangle(values: Shaped[Tensor, "B C H W"], width: int) -> Shaped[Tensor, "B C h w"]:
    """Sums weighted by a triangle of this height along both axes, where it lies within the image."""
    for axis in (2, 2, 3, 3):  # a box twice
        kept = values.shape[axis] - width + 1
        values = reduce(torch.add, [values.narrow(axis, first, kept) for first in range(width)])
    return values
