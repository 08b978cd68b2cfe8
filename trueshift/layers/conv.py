"""Convolution on the circle."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..ops.shift import Pair, circular_pad, pair

PADDINGS = ("circular", "zeros")


def conv_on_circle(
    x: Float[Tensor, "B C H W"], conv: nn.Conv2d, stride: Pair, padding: Pair, mode: str = "circular"
) -> Float[Tensor, "B D h w"]:
    """Apply ``conv`` at another stride, reaching ``padding`` before each position and the rest of the kernel after it.

    A symmetric pad would give one output too few or too many where the kernel is larger than the stride; with this
    one every position has an output, and at stride s they are every s-th of those at stride 1.
    """
    height, width = conv.kernel_size
    rows, columns = (padding[0], height - 1 - padding[0]), (padding[1], width - 1 - padding[1])
    if mode == "zeros":
        x = F.pad(x, (*columns, *rows))
    elif (height, width) != stride:  # otherwise the patches tile the image and nothing is read beyond it
        x = circular_pad(x.permute(0, 2, 3, 1), rows, columns).permute(0, 3, 1, 2)
    return F.conv2d(x, conv.weight, conv.bias, stride, groups=conv.groups)


def conv_tokens(
    values: Float[Tensor, "B H W C"], conv: nn.Conv2d, stride: Pair, padding: Pair, mode: str = "circular"
) -> Float[Tensor, "B h w D"]:
    """:func:`conv_on_circle` of tokens."""
    return conv_on_circle(values.permute(0, 3, 1, 2), conv, stride, padding, mode).permute(0, 2, 3, 1)


class CircularConv2d(nn.Conv2d):
    """``nn.Conv2d`` that keeps the size and continues the image around its border.

    Shift law: ``conv(S x) == S conv(x)`` at stride 1, to rounding: kernels may round by position (depthwise ones do),
    so for bit-identical values put an :class:`~trueshift.layers.anchor.Anchor` before it. At stride s the law holds for
    shifts by multiples of s; :class:`~trueshift.layers.merge.AdaptiveConvMerge` makes it hold for all.

    Args:
        padding: how far the kernel reaches before each position; the middle by default.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair | None = None,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        kernel = pair(kernel_size)
        super().__init__(in_channels, out_channels, kernel, pair(stride), 0, groups=groups, bias=bias)
        self.reach = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2) if padding is None else pair(padding)

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Convolve images ``[B, C, H, W]`` whose size is a multiple of the stride."""
        step = pair(self.stride)
        if input.shape[2] % step[0] or input.shape[3] % step[1]:
            raise ValueError(f"size {tuple(input.shape[2:])}: needs multiples of the stride {step}")
        return conv_on_circle(input, self, step, self.reach)
