"""Bring an image to a size that a model's grids divide. Explicit: no model pads, crops or resizes by itself."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .models.backbone import Backbone
from .ops.shift import Pair, pair
from .tasks import UperNet

WAYS = ("resize", "crop", "pad")


def fit(
    image: Float[Tensor, "B C H W"], to: Backbone | UperNet | int | Pair, fit: str = "resize", value: float = 0.0
) -> Float[Tensor, "B C h w"]:
    """The image at the nearest size whose sides are multiples of what the model needs.

    Shift law: none. Whatever leaves or enters the frame is gone or new, so the guarantee for circular shifts begins
    behind this function, with its output.

    Args:
        to: a model, or the multiple itself.
        fit: ``"resize"`` to the nearest valid size (bilinear, antialiased), ``"crop"`` the middle of the largest valid
            size that fits inside, ``"pad"`` at the bottom and the right to the smallest valid size around it.
        value: what to pad with.
    """
    multiple = to.size_multiple if isinstance(to, Backbone | UperNet) else pair(to)
    if image.dim() != 4:
        raise ValueError(f"an image batch of shape {tuple(image.shape)}: needs [B, C, H, W]")
    height, width = image.shape[2:]
    if fit == "resize":
        size = [max(round(length / step), 1) * step for length, step in zip((height, width), multiple, strict=True)]
        return image if size == [height, width] else F.interpolate(image, size, mode="bilinear", antialias=True)
    if fit == "crop":
        rows, columns = (length // step * step for length, step in zip((height, width), multiple, strict=True))
        if not rows or not columns:
            raise ValueError(
                f"an image of {height} x {width} has no room for {multiple[0]} x {multiple[1]}: pad or resize"
            )
        top, left = (height - rows) // 2, (width - columns) // 2
        return image[:, :, top : top + rows, left : left + columns]
    if fit == "pad":
        return F.pad(image, (0, -width % multiple[1], 0, -height % multiple[0]), value=value)
    raise ValueError(f"fit {fit!r}: needs one of {WAYS}")
