"""The largest of neighbouring tokens, at a stride and at an own shift for each image."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..geometry.shift import Pair, circular_shift, pad_image
from ..kernels import kernel_for, usable


@kernel_for(
    lambda x, kernel, stride, before, offset=None, mode="circular": (
        offset is not None and mode != "circular_width" and usable(x)
    )
)
def max_pool(
    x: Float[Tensor, "B H W C"],
    kernel: Pair,
    stride: Pair,
    before: Pair,
    offset: Int[Tensor, "B 2"] | None = None,
    mode: str = "circular",
) -> Float[Tensor, "B h w C"]:
    """Shift, then take the largest value of each channel in a neighbourhood of every ``stride``-th position.

    Shift law: ``max_pool(S^t x, offset=m) == max_pool(x, offset=m + t)``, around the border.

    Args:
        before: how far the neighbourhood reaches before each position.
        offset: where each image's frame starts, counted in tokens.
        mode: beyond the border of the shifted frame is the other side, or nothing with ``"zeros"``; with
            ``"circular_width"`` there is nothing above and below.
    """
    if offset is not None:
        x = circular_shift(x, offset)
    rows, columns = ((first, extent - 1 - first) for first, extent in zip(before, kernel, strict=True))
    image = pad_image(x.permute(0, 3, 1, 2), rows, columns, mode, float("-inf"))
    return F.max_pool2d(image, kernel, stride).permute(0, 2, 3, 1)
