r"""Convolution at every position by fewer products (Winograd's minimal filtering), for kernels of 2 or 3 taps an axis.

Two neighbouring outputs share inputs, and along one axis k + 1 products make both, where the definition has 2 k:

.. math:: y_0 = d_0 g_0 + d_1 g_1 = (d_0 - d_1) g_0 + d_1 (g_0 + g_1), \quad
          y_1 = d_1 g_0 + d_2 g_1 = d_1 (g_0 + g_1) - (d_1 - d_2) g_1

In both axes that is 9 of 16 products for 2 x 2 taps and 16 of 36 for 3 x 3, each a matrix product over channels. Every
tile of 2 x 2 outputs has one of each phase, so what comes out are the grids that a merge chooses from.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.shift import Pair, circular_pad


@torch.no_grad()
def winograd_phases(
    x: Float[Tensor, "B H W C"], weight: Float[Tensor, "D kh kw C"], before: Pair
) -> Float[Tensor, "B 2 2 h w D"]:
    """Circular convolution of stride 1, as its polyphase components of stride 2; without gradient.

    Shift law: as a convolution's, to rounding: an output of another phase is made of other sums.

    Args:
        before: how far the kernel reaches before each position.
    """
    (images, height, width, channels), (outputs, *kernel, _) = x.shape, weight.shape
    down, across = (taps + 1 for taps in kernel)
    tiles = (images, height // 2, width // 2)
    rows, columns = ((reach, taps - 1 - reach) for reach, taps in zip(before, kernel, strict=True))
    padded = circular_pad(x, rows, columns)

    tall = x.new_empty(down, images, height // 2, padded.shape[2], channels)
    _spread([padded[:, tap : tap + height - 1 : 2] for tap in range(down)], tall)
    factors = x.new_empty(across, down, *tiles, channels)
    _spread([tall[:, :, :, tap : tap + width - 1 : 2] for tap in range(across)], factors)

    taps = _mix_taps(_mix_taps(weight, 1), 2).flatten(0, 1)  # across * down, D, C
    products = torch.bmm(factors.view(len(taps), -1, channels), taps.mT)

    wide = x.new_empty(2, down, *tiles, outputs)
    _gather(products.view(across, down, *tiles, outputs), wide)
    phases = x.new_empty(2, 2, *tiles, outputs)  # of rows, of columns
    for phase in (0, 1):
        _gather(wide[phase], phases[:, phase])
    return phases.permute(2, 0, 1, 3, 4, 5)


def _spread(inputs: Sequence[Tensor], out: Tensor) -> None:
    """From the inputs of a tile to the factors of its products, along one axis."""
    if len(inputs) == 3:
        torch.sub(inputs[0], inputs[1], out=out[0])
        out[1].copy_(inputs[1])
        torch.sub(inputs[1], inputs[2], out=out[2])
    else:
        torch.sub(inputs[0], inputs[2], out=out[0])
        torch.add(inputs[1], inputs[2], out=out[1])
        torch.sub(inputs[2], inputs[1], out=out[2])
        torch.sub(inputs[1], inputs[3], out=out[3])


def _mix_taps(weight: Tensor, dim: int) -> Tensor:
    """The other factors, in front."""
    taps = weight.unbind(dim)
    if len(taps) == 2:
        return torch.stack([taps[0], taps[0] + taps[1], taps[1]])
    even = taps[0] + taps[2]
    return torch.stack([taps[0], (even + taps[1]) / 2, (even - taps[1]) / 2, taps[2]])


def _gather(products: Tensor, out: Tensor) -> None:
    """From the products to the two outputs, along one axis."""
    torch.add(products[0], products[1], out=out[0])
    if len(products) == 3:
        torch.sub(products[1], products[2], out=out[1])
    else:
        out[0] += products[2]
        torch.sub(products[1], products[2], out=out[1])
        out[1] -= products[3]
