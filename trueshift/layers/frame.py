r"""Find the border of a photograph that may have been shifted around a circle.

For each line (row or column) a small network answers how likely it is the photograph's first. It looks at the pixels
around the seam before that line, four lines and three columns in all colours, through two layers of 24 channels,

.. math:: h = \max(0, A x) \;\mathrm{div}\; 1024, \quad g = \max(0, B h + b),

sums :math:`g` over the line, takes the sums as multiples of their mean over all lines, and mixes those of five lines in
one hidden layer. Pixels (8 bits), weights and all that is added up are integers, so every line gets the same score
wherever it stands, bit for bit.

It was trained on photographs of 32 to 256 pixels (``docs/exactness.md`` has how often it is right).
"""

import json
from pathlib import Path

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from ..ops.selection.quantised_image import BITS, Pixels

WEIGHTS = Path(__file__).with_name("frame_finder.json")
LINES, COLUMNS, DEPTH = 4, 3, 24  # of the first layer
HALF, COARSER = 7, 1024  # bits of a pixel beside its sign; by what the first layer is divided
REACH = 2  # lines on either side that are mixed
UNIT, LARGEST = 256, 4095  # of the multiples of the mean


class FrameFinder(nn.Module):
    """How much each row, and each column, looks like the first one of a photograph.

    Shift law: the scores move with the rows and with the columns, bit for bit.
    """

    filters: Int64[Tensor, "depth lines columns_and_colours"]
    pointwise: Int64[Tensor, "depth depth"]
    offset: Int64[Tensor, " depth"]
    mixing: Int64[Tensor, "hidden taps"]
    bias: Int64[Tensor, " hidden"]
    output: Int64[Tensor, " hidden"]

    def __init__(self) -> None:
        super().__init__()
        weights = json.loads(WEIGHTS.read_text())
        for name in ("filters", "pointwise", "offset", "mixing", "bias", "output"):
            # integers stay what they are when a network changes its precision
            self.register_buffer(name, torch.tensor(weights[name]), persistent=False)

    def forward(self, pixels: Pixels) -> tuple[Float64[Tensor, "B H"], Float64[Tensor, "B W"]]:
        """Scores of rows and columns."""
        values = (pixels.integers().values / 2 ** (BITS - HALF)).floor().to(torch.float32)
        if values.shape[3] != 3:  # the mean of other channels, or a grey image, in three colours
            values = values.mean(3, keepdim=True).floor().expand(-1, -1, -1, 3)
        return self._scores(values), self._scores(values.transpose(1, 2))

    def _scores(self, values: Float[Tensor, "B N M 3"]) -> Float64[Tensor, "B N"]:
        # products of integers whose sums stay below 2**24 are exact in float32, and in the formats it may be cut to
        filters, pointwise, offset = (part.to(torch.float32) for part in (self.filters, self.pointwise, self.offset))
        near = torch.cat([values.roll(-column, 2) for column in range(-(COLUMNS // 2), COLUMNS // 2 + 1)], 3)
        sums = [(near @ filters[:, line].T).roll(LINES // 2 - line, 1) for line in range(LINES)]
        first = torch.stack(sums).sum(0).relu_().div_(COARSER).floor_()
        lines = (first @ pointwise.T).add_(offset).relu_().sum(2, dtype=torch.float64)
        share = lines * lines.shape[1] / lines.sum(1, keepdim=True).clamp_min(1)
        level = (UNIT * share.sqrt()).floor().clamp(max=LARGEST)
        around = torch.cat([level.roll(-line, 1) for line in range(-REACH, REACH + 1)], 2)
        mixing, bias, output = (part.to(torch.float64) for part in (self.mixing, self.bias, self.output))
        return (around @ mixing.T + UNIT * bias).relu() @ output
