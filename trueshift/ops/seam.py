r"""The wrap seam: where the border of a circularly shifted photograph probably was.

Neighbouring lines of a photograph resemble each other; its last and its first do not. With :math:`d_r` the sum of
absolute differences between line :math:`r` and the line before, the seam is where :math:`2 d_r - d_{r-1} - d_{r+1}` is
largest. An origin found so is a property of the content that survives small changes of it, unlike a hash.
"""

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from .exact import headroom, quantise


def seam_scores(x: Float[Tensor, "B H W C"]) -> tuple[Float64[Tensor, "B H"], Float64[Tensor, "B W"]]:
    """How much each row, and each column, looks like the first one of a photograph.

    Shift law: the scores move with the rows and with the columns, bit for bit.
    """
    terms = 8 * x.shape[3] * max(x.shape[1], x.shape[2])
    integers, _ = quantise(x, min(headroom(terms), 16))
    return _contrast(integers, 1), _contrast(integers, 2)


def _contrast(integers: Tensor, dim: int) -> Tensor:
    others, size = ((2, 3) if dim == 1 else (1, 3)), integers.shape[dim]
    first, last = integers.narrow(dim, 0, 1), integers.narrow(dim, size - 1, 1)
    inner = integers.narrow(dim, 1, size - 1) - integers.narrow(dim, 0, size - 1)
    difference = torch.cat([(first - last).abs().sum(others), inner.abs_().sum(others)], 1)
    return 2 * difference - difference.roll(1, 1) - difference.roll(-1, 1)


def seam_near(scores: Float64[Tensor, "B N"], start: torch.Tensor, stride: int) -> Float64[Tensor, "B n"]:
    """For each token of the grid that starts at ``start``: the best seam score among the lines nearest to its start.

    Shift law: moves with the tokens.
    """
    size = scores.shape[1]
    first = start[:, None] + torch.arange(0, size, stride, device=scores.device)
    around = torch.arange(stride, device=scores.device) - (stride - 1) // 2
    return scores.gather(1, ((first[:, :, None] + around) % size).flatten(1)).unflatten(1, (-1, stride)).amax(2)
