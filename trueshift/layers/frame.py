r"""Find the border of a photograph that may have been shifted around a circle.

For each line (row or column) a small network answers how likely it is the photograph's first. It looks at the pixels
around the seam before that line, four lines and three columns in all colours, through two layers of 24 channels,

.. math:: h = \max(0, A x) \;\mathrm{div}\; 1024, \quad g = \max(0, B h + b),

sums :math:`g` over the line, takes the sums as multiples of their mean over all lines, and mixes those of five lines in
one hidden layer. Pixels (8 bits), weights and all that is added up are integers, so every line gets the same score
wherever it is, bit for bit.

It was trained on photographs of 32 to 256 pixels (``docs/exactness.md`` has how often it is right).
"""

import json
from pathlib import Path

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from ..ops.selection.frame_scores import frame_scores
from ..ops.selection.quantised_image import Pixels

WEIGHTS = Path(__file__).with_name("frame_finder.json")
NAMES = ("filters", "pointwise", "offset", "mixing", "bias", "output")


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
        for name in NAMES:
            # integers stay what they are when a network changes its precision
            self.register_buffer(name, torch.tensor(weights[name]), persistent=False)

    def forward(self, pixels: Pixels) -> tuple[Float64[Tensor, "B H"], Float64[Tensor, "B W"]]:
        """Scores of rows and columns."""
        return frame_scores(pixels, *(getattr(self, name) for name in NAMES))
