"""Bring an image to a size that a model's grids divide. Explicit: no model pads, crops or resizes by itself."""

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .models.backbone import Backbone
from .ops.geometry.shift import Pair, pair
from .tasks.dense import DenseModel
from .utils.deprecation import renamed_arguments

WAYS = ("resize", "crop", "pad")
Target = Backbone | DenseModel | int | Pair


@renamed_arguments(fit="method")
def fit(
    image: Float[Tensor, "B C H W"], to: Target, method: str = "resize", value: float = 0.0
) -> Float[Tensor, "B C h w"]:
    """The image at the nearest size whose sides are multiples of what the model needs.

    Shift law: none. Whatever leaves or enters the frame is gone or new, so the guarantee for circular shifts holds
    for the output of this function.

    Args:
        to: a model, or the multiple itself.
        method: ``"resize"`` to the nearest valid size (bilinear, antialiased), ``"crop"`` the centre to the largest
            valid size inside, or ``"pad"`` at the bottom and the right to the smallest valid size around.
        value: what to pad with.

    >>> trueshift.fit(torch.rand(1, 3, 30, 50), 32, method="pad").shape
    torch.Size([1, 3, 32, 64])
    """
    multiple = _multiple_of(to)
    if image.dim() != 4:
        raise ValueError(f"an image batch of shape {tuple(image.shape)}: needs [B, C, H, W]")
    height, width = image.shape[2:]
    if method == "resize":
        size = [max(round(height / multiple[0]), 1) * multiple[0], max(round(width / multiple[1]), 1) * multiple[1]]
        return image if size == [height, width] else F.interpolate(image, size, mode="bilinear", antialias=True)
    if method == "crop":
        rows, columns = height // multiple[0] * multiple[0], width // multiple[1] * multiple[1]
        if not rows or not columns:
            raise ValueError(
                f"an image of {height} x {width} has no room for {multiple[0]} x {multiple[1]}: pad or resize"
            )
        top, left = (height - rows) // 2, (width - columns) // 2
        return image[:, :, top : top + rows, left : left + columns]
    if method == "pad":
        return F.pad(image, (0, -width % multiple[1], 0, -height % multiple[0]), value=value)
    raise ValueError(f"method {method!r}: needs one of {WAYS}")


def _multiple_of(to: Target) -> Pair:
    if isinstance(to, Backbone | DenseModel):
        return to.size_multiple
    if not isinstance(to, int | Sequence) or isinstance(to, str):
        raise TypeError(
            f"a {type(to).__name__} has no size multiple: needs a model of trueshift's, or the multiple itself, e.g. 32"
        )
    if (isinstance(to, Sequence) and len(to) != 2) or min(pair(to)) < 1:
        raise ValueError(f"a multiple of {to}: needs a number of pixels from 1 on, or one for rows and one for columns")
    return pair(to)
