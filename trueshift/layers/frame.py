r"""Find the border of a photograph that may have been shifted around a circle.

For each line (row or column) a small network answers how likely it is the photograph's first. It sees the steps
:math:`d_n = x_n - x_{n-1}` between neighbouring lines through eight filters of three taps, summed over the line,

.. math:: h_k[n] = \sum \max(0, a_{k1} d_{n-1} + a_{k2} d_n + a_{k3} d_{n+1}),

as multiples of their mean over all lines, and mixes those of five lines in one hidden layer. Pixels, weights and all
that is added up are integers, so every line gets the same score wherever it stands, bit for bit.

It was trained on photographs of 32 to 256 pixels (``docs/exactness.md`` has how often it is right).
"""

import json
from pathlib import Path

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from ..ops.selection.quantised_image import Pixels

WEIGHTS = Path(__file__).with_name("frame_finder.json")
REACH = 2  # lines on either side that are mixed
UNIT, LARGEST = 256, 4095  # of the multiples of the mean


class FrameFinder(nn.Module):
    """How much each row, and each column, looks like the first one of a photograph.

    Shift law: the scores move with the rows and with the columns, bit for bit.
    """

    mixing: Int64[Tensor, "hidden taps"]
    bias: Int64[Tensor, " hidden"]
    output: Int64[Tensor, " hidden"]

    def __init__(self) -> None:
        super().__init__()
        weights = json.loads(WEIGHTS.read_text())
        self.filters: list[list[int]] = weights["filters"]
        for name in ("mixing", "bias", "output"):  # integers stay what they are when a network changes its precision
            self.register_buffer(name, torch.tensor(weights[name]), persistent=False)

    def forward(self, pixels: Pixels) -> tuple[Float64[Tensor, "B H"], Float64[Tensor, "B W"]]:
        """Scores of rows and columns."""
        values = pixels.integers().values.to(torch.float32)  # sums of three products stay below 2**24
        return self._scores(values), self._scores(values.transpose(1, 2))

    def _scores(self, values: Tensor) -> Float64[Tensor, "B N"]:
        step = values - values.roll(1, 1)
        before, after = step.roll(1, 1), step.roll(-1, 1)
        sums = [(a * before + b * step + c * after).relu().sum((2, 3), dtype=torch.float64) for a, b, c in self.filters]
        lines = torch.stack(sums, 2)
        share = lines * lines.shape[1] / lines.sum(1, keepdim=True).clamp_min(1)
        level = (UNIT * share.sqrt()).floor().clamp(max=LARGEST)
        near = torch.cat([level.roll(-line, 1) for line in range(-REACH, REACH + 1)], 2)
        mixing, bias, output = (part.to(torch.float64) for part in (self.mixing, self.bias, self.output))
        return (near @ mixing.T + UNIT * bias).relu() @ output
