"""A convolution at every position, as the grids that a merge chooses from, by the faster of two ways on a CPU."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..geometry.polyphase import polyphase
from ..geometry.shift import Pair, circular_pad
from .winograd import winograd_phases

STRIDE = (2, 2)
MANY_CHANNELS = 192  # where fewer products pay for the sums around them even beside oneDNN's AVX kernels


def fits(x: Tensor, kernel: Pair, stride: Pair) -> bool:
    """Whether this is for such a convolution: on a CPU, of few taps. A compiler is left the plain one."""
    small = all(taps in (2, 3) for taps in kernel)
    return small and stride == STRIDE and x.device.type == "cpu" and not torch.compiler.is_compiling()


@torch.no_grad()
def convolution_phases(
    x: Float[Tensor, "B H W C"], weight: Float[Tensor, "D kh kw C"], before: Pair
) -> Float[Tensor, "B 2 2 h w D"]:
    """Circular convolution of stride 1, as its polyphase components of stride 2; without gradient.

    Shift law: a convolution's, to rounding; of content that is the same whatever the shift, the same bits.

    Args:
        before: how far the kernel reaches before each position.
    """
    _, *kernel, channels = weight.shape
    if fewer_products_pay(max(kernel), channels):
        return winograd_phases(x, weight, before)
    rows, columns = ((reach, taps - 1 - reach) for reach, taps in zip(before, kernel, strict=True))
    padded = circular_pad(x, rows, columns).permute(0, 3, 1, 2)
    return polyphase(F.conv2d(padded, weight.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), STRIDE)


def fewer_products_pay(taps: int, channels: int) -> bool:
    """With AVX a direct convolution is up to four times as fast; elsewhere, as on ARM, it is the slower one."""
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        return True
    return taps == 2 and channels >= MANY_CHANNELS
