"""Convolution on the circle, at a stride and from where each image says."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..geometry.shift import IMAGE_DIMS, Pair, circular_pad, circular_shift, pad_image
from ..kernels import kernel_for, usable
from .autocast import network_precision

PADDINGS = ("circular", "zeros", "circular_width")  # the last: columns around the border, zeros above and below


def conv_on_circle(
    x: Float[Tensor, "B C H W"],
    conv: nn.Conv2d,
    stride: Pair,
    padding: Pair,
    mode: str = "circular",
    start: Int64[Tensor, "B 2"] | None = None,
) -> Float[Tensor, "B D h w"]:
    """Apply ``conv`` at another stride, reaching ``padding`` before each position and the rest of the kernel after it.

    A symmetric pad would give one output too few or too many where the kernel is larger than the stride; with this
    one every position has an output, and at stride s they are every s-th of those at stride 1.

    Args:
        start: of each image, from where on it is convolved.
    """
    x = x.to(network_precision(x))  # as the convolution would, before it is copied
    height, width = conv.kernel_size
    rows, columns = (padding[0], height - 1 - padding[0]), (padding[1], width - 1 - padding[1])
    tiles = (height, width) == stride and not any(padding)  # nothing is read beyond the image
    if start is not None and (tiles or mode != "circular"):
        x = circular_shift(x.permute(0, 2, 3, 1), start).permute(0, 3, 1, 2)
    if mode != "circular":
        x = pad_image(x, rows, columns, mode)
    elif not tiles:
        x = circular_pad(x.permute(0, 2, 3, 1), rows, columns, start).permute(0, 3, 1, 2)
    return F.conv2d(x, conv.weight, conv.bias, stride, groups=conv.groups)


def conv_tokens(
    values: Float[Tensor, "B H W C"],
    conv: nn.Conv2d,
    stride: Pair,
    padding: Pair,
    mode: str = "circular",
    start: Int64[Tensor, "B 2"] | None = None,
) -> Float[Tensor, "B h w D"]:
    """:func:`conv_on_circle` of tokens."""
    return conv_on_circle(values.permute(0, 3, 1, 2), conv, stride, padding, mode, start).permute(0, 2, 3, 1)


def _projected(
    image: Tensor, conv: nn.Conv2d, start: Tensor, stride: Pair, padding: Pair, mode: str = "circular"
) -> bool:
    return usable(image) and mode != "circular_width" and not (image.requires_grad and torch.is_grad_enabled())


@kernel_for(_projected)
def project_patches(
    image: Float[Tensor, "B C H W"],
    conv: nn.Conv2d,
    start: Int64[Tensor, "B 2"],
    stride: Pair,
    padding: Pair,
    mode: str = "circular",
) -> Float[Tensor, "B h w D"]:
    """:func:`conv_on_circle` of images from ``start`` on, channels last."""
    moved = circular_shift(image, start, IMAGE_DIMS)
    return conv_on_circle(moved, conv, stride, padding, mode).permute(0, 2, 3, 1)
