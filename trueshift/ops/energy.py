r"""Energy of all s x s tokenizations of an image at once, from one small matrix product.

The score of A-token for p = 2 is the energy of the tokens, for each phase :math:`m` of the patch grid,

.. math:: F(m) = \sum_k \|E\, x_{m + sk} + b\|^2
               = \langle E^\top E,\ \sum_k x_{m+sk} x_{m+sk}^\top \rangle
                 + 2\, (E^\top b) \cdot \sum_k x_{m+sk} + N \|b\|^2

with :math:`x_n` the patch that starts at :math:`n`. All patch Grams are made of the same products: a pixel times
another one a displacement :math:`d` away, summed over the pixels of one residue modulo :math:`s`. One matrix product
(blocks of pixels times their neighbourhoods) holds them all, where the definition needs s x s convolutions.
The pixels are integers, so every one of these sums is exact.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from .exact import headroom, quantise
from .shift import Pair, circular_pad


def patch_energy(
    image: Float[Tensor, "B H W C"],
    weight: Float[Tensor, "D C kh kw"],
    bias: Float[Tensor, " D"] | None,
    stride: Pair,
    padding: Pair,
) -> Float64[Tensor, "B sh sw"]:
    """Sum of squared token norms for each phase of the patch grid.

    Shift law: a shift of the image permutes the energies circularly, bit for bit.

    Args:
        image: tokens or pixels, channels last.
        weight, bias: of the projection, a convolution with this kernel.
        stride: of the patch grid; both sizes of the image are multiples of it.
        padding: how far the kernel reaches before its nominal start.
    """
    channels, kernel = image.shape[3], (weight.shape[2], weight.shape[3])
    tokens = image.shape[1] // stride[0] * (image.shape[2] // stride[1])
    # contiguous, so that the blocks and neighbourhoods below are copied in long runs
    integers, unit = quantise(image.contiguous(), min(headroom(tokens) // 2, 22))
    unit = unit.view(-1, 1, 1)

    blocks = _blocks(integers, stride)
    products = _neighbour_products(integers, blocks, stride, kernel)
    correlation = _by_displacement(products, channels, stride, kernel)  # B sh sw kh (2kw-1) C C
    projection = weight.detach().to(torch.float64).flatten(1)
    gram = (projection.T @ projection).view(channels, *kernel, channels, *kernel)
    energy = _correlate(correlation.flatten(3), _gram_by_displacement(gram), stride, padding) * (unit * unit)
    if bias is not None:
        offset = bias.detach().to(torch.float64)
        pull = (projection.T @ offset).view(channels, *kernel).permute(1, 2, 0)
        sums = blocks.sum(1).view(-1, *stride, channels)
        energy = energy + _correlate(sums, pull, stride, padding) * (2 * unit) + tokens * (offset @ offset)
    return energy


def _blocks(x: Tensor, stride: Pair) -> Tensor:
    """Cut into blocks of the stride: ``[B, tokens, sh * sw * C]``."""
    split = x.unflatten(2, (-1, stride[1])).unflatten(1, (-1, stride[0]))
    return split.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)


def _neighbour_products(x: Tensor, blocks: Tensor, stride: Pair, kernel: Pair) -> Tensor:
    """Each pixel of a block times all within a kernel's reach: ``[B, sh * sw * C, rows * columns * C]``, summed.

    A displacement and its opposite give the same products, so nothing above the block is needed. The neighbourhood
    is laid out for one row of blocks only: its further rows are those of the blocks below.
    """
    tokens, below, beside = blocks.shape[1], kernel[0] - 1, kernel[1] - 1
    lags = (stride[0] - 1 + below) // stride[0]
    padded = circular_pad(x, (0, lags * stride[0]), (beside, beside))
    windows = padded.unfold(2, stride[1] + 2 * beside, stride[1]).unflatten(1, (-1, stride[0]))  # B h sh w C u
    strips = windows.permute(0, 1, 3, 2, 5, 4).flatten(3).flatten(1, 2)
    columns, row = x.shape[2] // stride[1], strips.shape[2] // stride[0]
    products = []
    for lag in range(lags + 1):
        rows = min(stride[0] + below - lag * stride[0], stride[0])
        products.append(blocks.mT @ strips[:, lag * columns : lag * columns + tokens, : rows * row])
    return torch.cat(products, 2)


def _by_displacement(products: Tensor, channels: int, stride: Pair, kernel: Pair) -> Tensor:
    """Sort the products by residue and displacement: ``[B, sh, sw, kh, 2 kw - 1, C, C]``."""
    below, beside = kernel[0] - 1, kernel[1] - 1
    products = products.view(-1, *stride, channels, stride[0] + below, stride[1] + 2 * beside, channels)
    row, column, down, right = torch.meshgrid(
        *[torch.arange(n, device=products.device) for n in (*stride, kernel[0], 2 * beside + 1)],
        indexing="ij",
    )
    sorted_ = products.permute(0, 3, 6, 1, 2, 4, 5)[:, :, :, row, column, row + down, column + right]
    return sorted_.permute(0, 3, 4, 5, 6, 1, 2)


def _gram_by_displacement(gram: Tensor) -> Tensor:
    """``E^T E`` sorted the same way: ``[kh, kw, kh * (2 kw - 1) * C * C]`` for each tap and displacement."""
    height, width = gram.shape[1:3]
    below, beside = height - 1, width - 1
    padded = F.pad(gram, (beside, beside, 0, below))
    row, column, down, right = torch.meshgrid(
        *[torch.arange(n, device=gram.device) for n in (height, width, height, 2 * beside + 1)], indexing="ij"
    )
    taps = padded.permute(0, 3, 1, 2, 4, 5)[:, :, row, column, row + down, column + right]
    taps = taps * torch.where(down > 0, 2.0, 1.0).to(gram.dtype)  # for the opposite displacement
    return taps.permute(2, 3, 4, 5, 0, 1).flatten(2)


def _correlate(residues: Tensor, taps: Tensor, stride: Pair, padding: Pair) -> Float64[Tensor, "B sh sw"]:
    """Sum over taps ``a`` of ``residues[(m + a - padding) mod s] . taps[a]``, in fixed point.

    Both factors are rounded to two digits of ``digit`` bits each, so small that no product of digits, summed over all
    terms, can round: relative to the largest factors 32 bits for patches of 16 pixels, 40 for patches of 4.

    Args:
        residues: ``[B, sh, sw, K]``.
        taps: ``[kh, kw, K]``.
    """
    kernel = (taps.shape[0], taps.shape[1])
    digit = headroom(taps.numel()) // 2
    integers, unit = quantise(residues.flatten(1, 2), 2 * digit)
    whole, tap_unit = quantise(taps.flatten(0, 1)[None], 2 * digit)
    left = _digits(integers, digit)  # each [B, sh*sw, K]
    right = _digits(whole[0].T, digit)  # each [K, kh*kw]

    def index(axis: int) -> Tensor:
        phase = torch.arange(stride[axis], device=taps.device)[:, None]
        tap = torch.arange(kernel[axis], device=taps.device)[None, :]
        return (phase + tap - padding[axis]) % stride[axis]

    row = index(0)[:, None, :, None]
    column = index(1)[None, :, None, :]
    tap_row = torch.arange(kernel[0], device=taps.device)[None, None, :, None]
    tap_column = torch.arange(kernel[1], device=taps.device)[None, None, None, :]
    total = torch.zeros((), dtype=torch.float64, device=taps.device)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product = (a @ b).view(-1, *stride, *kernel)[:, row, column, tap_row, tap_column]
            total = total + product.sum((3, 4)) * 2.0 ** (digit * (i + j))
    return total * (unit * tap_unit)


def _digits(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Integers of twice ``bits`` bits as a low and a high digit; the high one carries the sign."""
    high = (x * 2.0**-bits).floor()
    return x - high * 2.0**bits, high
