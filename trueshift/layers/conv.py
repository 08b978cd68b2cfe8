"""Convolution on the circle."""

from jaxtyping import Float
from torch import Tensor, nn

from ..ops.geometry.shift import Pair, pair
from ..ops.nn.conv import conv_on_circle


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
