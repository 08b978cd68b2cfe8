"""Convolution on the circle."""

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..ops.geometry.shift import Pair, circular_pad, circular_shift, pair
from ..ops.nn.autocast import network_precision

PADDINGS = ("circular", "zeros")


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
    tiles = (height, width) == stride  # nothing is read beyond the image
    if start is not None and (tiles or mode == "zeros"):
        x = circular_shift(x.permute(0, 2, 3, 1), start).permute(0, 3, 1, 2)
    if mode == "zeros":
        x = F.pad(x, (*columns, *rows))
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


def project_patches(
    image: Float[Tensor, "B C H W"],
    conv: nn.Conv2d,
    start: Int64[Tensor, "B 2"],
    stride: Pair,
    padding: Pair,
    mode: str = "circular",
) -> Float[Tensor, "B h w D"]:
    """:func:`conv_on_circle` of images from ``start`` on, channels last: patches by a kernel, then one matrix product.

    No gradient flows to the image.
    """
    from ..ops.kernels.patches import cut_patches

    kernel = [conv.kernel_size[0], conv.kernel_size[1]]
    dtype = network_precision(image)
    patches = cut_patches(image.detach(), start, kernel, list(stride), list(padding), mode == "circular", dtype)
    weight = conv.weight.flatten(1)
    return F.linear(patches, F.pad(weight, (0, patches.shape[3] - weight.shape[1])), conv.bias)


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
