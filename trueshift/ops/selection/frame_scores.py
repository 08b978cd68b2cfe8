"""The arithmetic of the frame finder: what it sees of each row and each column of an image, in integers."""

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..kernels import kernel_for, usable
from .quantised_image import BITS, Pixels
from .seam import LONGEST

LINES, COLUMNS, DEPTH = 4, 3, 24  # of the first layer
HALF, COARSER = 7, 1024  # bits of a pixel beside its sign; by what the first layer is divided
REACH = 2  # lines on either side that are mixed
UNIT, LARGEST = 256, 4095  # of the multiples of the mean


def _fits(pixels: Pixels, *_: object) -> bool:
    *sides, channels = pixels.image.shape[1:]
    return usable(pixels.image) and channels == 3 and min(sides) >= LINES and max(sides) <= LONGEST


@kernel_for(_fits)
def frame_scores(
    pixels: Pixels,
    filters: Int64[Tensor, "depth lines taps"],
    pointwise: Int64[Tensor, "depth depth"],
    offset: Int64[Tensor, " depth"],
    mixing: Int64[Tensor, "hidden sums"],
    bias: Int64[Tensor, " hidden"],
    output: Int64[Tensor, " hidden"],
) -> tuple[Float64[Tensor, "B H"], Float64[Tensor, "B W"]]:
    r"""How much each row, and each column, looks like the first one of a photograph.

    Two layers at every pixel, :math:`h = \max(0, A x) \;\mathrm{div}\; 1024` and :math:`g = \max(0, B h + b)`, are
    summed over each line, taken as multiples of the mean over all lines, and mixed with those of the lines around.

    Shift law: the scores move with the rows and with the columns, bit for bit.

    Args:
        filters: A, on the lines around the seam before a pixel; its taps are columns, and colours within.
        pointwise, offset: B and b.
        mixing, bias, output: of the hidden layer that mixes lines.
    """
    values = (pixels.integers().values / 2 ** (BITS - HALF)).floor().to(torch.float32)
    if values.shape[3] != 3:  # the mean of other channels, or a grey image, in three colours
        values = values.mean(3, keepdim=True).floor().expand(-1, -1, -1, 3)
    # products of integers whose sums stay below 2**24 are exact in float32, and in the formats it may be cut to
    layers = [part.to(torch.float32) for part in (filters, pointwise, offset)]
    last = [part.to(torch.float64) for part in (mixing, bias, output)]
    rows, columns = (_mixed(_summed(each, *layers), *last) for each in (values, values.transpose(1, 2)))
    return rows, columns


def _summed(values: Float[Tensor, "B N M 3"], filters: Tensor, pointwise: Tensor, offset: Tensor) -> Tensor:
    """Both layers at each pixel, added up over each line."""
    near = torch.cat([values.roll(-column, 2) for column in range(-(COLUMNS // 2), COLUMNS // 2 + 1)], 3)
    sums = [(near @ filters[:, line].T).roll(LINES // 2 - line, 1) for line in range(LINES)]
    first = torch.stack(sums).sum(0).relu_().div_(COARSER).floor_()
    return (first @ pointwise.T).add_(offset).relu_().sum(2, dtype=torch.float64)


def _mixed(lines: Float64[Tensor, "B N depth"], mixing: Tensor, bias: Tensor, output: Tensor) -> Tensor:
    """The answer for each line, from the sums of five."""
    share = lines * lines.shape[1] / lines.sum(1, keepdim=True).clamp_min(1)
    level = (UNIT * share.sqrt()).floor().clamp(max=LARGEST)
    around = torch.cat([level.roll(-line, 1) for line in range(-REACH, REACH + 1)], 2)
    return (around @ mixing.T + UNIT * bias).relu() @ output
