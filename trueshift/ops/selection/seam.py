r"""The wrap seam: where the border of a circularly shifted photograph probably was.

Neighbouring lines of a photograph resemble each other; its last and its first do not. With :math:`d_r` the sum of
absolute differences between line :math:`r` and the line before, the seam is where :math:`2 d_r - d_{r-1} - d_{r+1}` is
largest. An origin found so is a property of the content that survives small changes of it, unlike a hash.
"""

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ..geometry.shift import Pair, circular_take
from ..kernels import kernel_for, usable
from .choose import Keys, choose
from .quantised_image import Pixels

LONGEST = 4096  # lines of an image that a kernel takes


@kernel_for(lambda x, pixels=None: usable(x) and max(x.shape[1:3]) <= LONGEST and x.shape[3] <= 64)
def seam_scores(
    x: Float[Tensor, "B H W C"], pixels: Pixels | None = None
) -> tuple[Float64[Tensor, "B H"], Float64[Tensor, "B W"]]:
    """How much each row, and each column, looks like the first one of a photograph.

    Shift law: the scores move with the rows and with the columns, bit for bit.

    Args:
        pixels: of the same image, where others need its integers too.
    """
    integers = (pixels or Pixels(x)).integers().values
    return _contrast(integers, 1), _contrast(integers, 2)


def _contrast(integers: Tensor, dim: int) -> Tensor:
    others, size = ((2, 3) if dim == 1 else (1, 3)), integers.shape[dim]
    first, last = integers.narrow(dim, 0, 1), integers.narrow(dim, size - 1, 1)
    inner = integers.narrow(dim, 1, size - 1) - integers.narrow(dim, 0, size - 1)
    difference = torch.cat([(first - last).abs().sum(others), inner.abs_().sum(others)], 1)
    return 2 * difference - difference.roll(1, 1) - difference.roll(-1, 1)


def seam_near(scores: Float64[Tensor, "B N"], start: torch.Tensor, stride: int) -> Float64[Tensor, "B n"]:
    """For each token of the grid that starts at ``start``: the best score of its first line and those just before.

    Shift law: moves with the tokens.
    """
    size = scores.shape[1]
    first = start[:, None] + torch.arange(0, size, stride, device=scores.device)
    before = torch.arange(stride, device=scores.device)
    return scores.gather(1, ((first[:, :, None] - before) % size).flatten(1)).unflatten(1, (-1, stride)).amax(2)


def _short(rows: Tensor, columns: Tensor, *_: object) -> bool:
    return usable(rows, (torch.float64,)) and max(rows.shape[1], columns.shape[1]) <= LONGEST


@kernel_for(_short)
def start_on_seam(
    rows: Float64[Tensor, "B H"],
    columns: Float64[Tensor, "B W"],
    offset: Int64[Tensor, "B 2"],
    stride: Pair,
    keys: Keys,
) -> Int64[Tensor, "B 2"]:
    """Where the first token after the seam is, on the grid that starts at ``offset``.

    Shift law: the same token of the content, whatever the shift, up to a period of the content itself.

    Args:
        rows, columns: scores of the seam.
        keys: of all positions, for seams that tie; see :func:`~trueshift.ops.selection.choose.choose`.
    """
    near = seam_near(rows, offset[:, 0], stride[0])[:, :, None] + seam_near(columns, offset[:, 1], stride[1])[:, None]
    token = choose((near,), lambda needed: circular_take(keys(needed), offset, stride)).offset
    return torch.stack([offset[:, i] + stride[i] * token[:, i] for i in (0, 1)], 1)
