r"""Energy of all s x s tokenizations of an image at once, from one small matrix product.

The score of A-token for p = 2 is the energy of the tokens, for each phase :math:`m` of the patch grid,

.. math:: F(m) = \sum_k \|E\, x_{m + sk} + b\|^2

with :math:`x_n` the patch that starts at :math:`n`. The pixels are integers about a centre, :math:`x = c + u q`
(:mod:`trueshift.ops.selection.quantised_image`), and with :math:`b_c = b + c E 1` this is

.. math:: F(m) = u^2 \langle E^\top E,\ \sum_k q_{m+sk} q_{m+sk}^\top \rangle
                 + 2 u\, (E^\top b_c) \cdot \sum_k q_{m+sk} + N \|b_c\|^2

All patch Grams are made of the same products: a pixel times another one a displacement :math:`d` away, summed over the
pixels of one residue modulo :math:`s`. One matrix product (blocks of pixels times their neighbourhoods) holds them all,
where the definition needs s x s convolutions. Every one of these sums is a sum of integers, and exact.
"""

from math import ceil, log2

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from ..geometry.shift import Pair, circular_pad
from ..geometry.windows import window_partition
from ..kernels import kernel_for, usable
from .exact import headroom, power_of_two_above
from .quantised_image import BITS, Pixels

PRECISION = 40  # bits of the largest weight that are kept, if they fit into two digits
ENOUGH = 28  # bits for which two digits do: twice as many as a pixel has


class Plan:
    """How many bits each digit may have so that every sum of products of digits is exact.

    Attributes:
        product_digit: bits of either half of a sum of products of pixels.
        weight_digit, weight_digits: bits of a digit of ``E^T E``, and how many digits there are.
        pull_digit, pull_digits: the same of ``E^T b_c``, whose factors are sums of pixels.
    """

    def __init__(self, image: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> None:
        self.channels, self.stride, self.padding = image.shape[3], stride, padding
        self.kernel = (weight.shape[2], weight.shape[3])
        self.tokens = image.shape[1:3].numel() // (stride[0] * stride[1])
        self.size = self.channels * self.kernel[0] * self.kernel[1]
        token_bits = ceil(log2(self.tokens))
        self.product_digit = ceil((2 * BITS + token_bits) / 2)
        self.weight_digit, self.weight_digits = _digits_within(headroom(self.size**2) - self.product_digit)
        self.pull_digit, self.pull_digits = _digits_within(headroom(self.size) - BITS - token_bits)


def _digits_within(room: int) -> tuple[int, int]:
    """Bits of a digit that may have so many at most, and how many digits there are."""
    digit = min(room, PRECISION // 2)
    return digit, 2 if 2 * digit >= ENOUGH else ceil(PRECISION / digit)


def _small_patches(image: Tensor, weight: Tensor, bias: object, stride: Pair, padding: Pair, *_: object) -> bool:
    """What fits the matrix units: small patches of images, in at most 32 bits per pixel."""
    if not usable(image):
        return False
    plan = Plan(image, weight, stride, padding)
    small = stride[1] * plan.channels <= 64 and plan.size <= 256 and plan.tokens <= 2**16 and image.shape[2] <= 4096
    return small and plan.weight_digits == plan.pull_digits == 2


@kernel_for(_small_patches)
def patch_energy(
    image: Float[Tensor, "B H W C"],
    weight: Float[Tensor, "D C kh kw"],
    bias: Float[Tensor, " D"] | None,
    stride: Pair,
    padding: Pair,
    pixels: Pixels | None = None,
) -> Float64[Tensor, "B sh sw"]:
    """Sum of squared token norms for each phase of the patch grid.

    Shift law: a shift of the image permutes the energies circularly, bit for bit.

    Args:
        weight, bias: of the projection, a convolution.
        stride: of the patch grid; both sizes of the image are multiples of it.
        padding: how far the kernel reaches before its nominal start.
        pixels: of the same image, where others need its integers too.
    """
    return _plain_energy(pixels or Pixels(image), extended_gram(weight, bias), Plan(image, weight, stride, padding))


def extended_gram(weight: Tensor, bias: Tensor | None) -> Float64[Tensor, "K K"]:
    """``[E, b, E 1]^T [E, b, E 1]``: everything that the energies need to know of the projection."""
    projection = weight.detach().to(torch.float64).flatten(1)
    offset = projection.new_zeros(len(projection)) if bias is None else bias.detach().to(torch.float64)
    extended = torch.cat([projection, offset[:, None], projection.sum(1, keepdim=True)], 1)
    return extended.T @ extended


def _plain_energy(pixels: Pixels, gram: Tensor, plan: Plan) -> Float64[Tensor, "B sh sw"]:
    """The three terms of the energy, the first two by digits."""
    integers, size, (height, width) = pixels.integers(), plan.size, plan.kernel
    unit, centre = integers.unit.view(-1, 1, 1), integers.centre.view(-1, 1, 1)
    values = integers.values.contiguous()  # so that the blocks and neighbourhoods below are copied in long runs
    blocks = window_partition(values, plan.stride).flatten(1).unflatten(0, (values.shape[0], -1))  # B tokens sh*sw*C
    products = _neighbour_products(values, blocks, plan.stride, plan.kernel)
    correlation = _by_displacement(products, plan.channels, plan.stride, plan.kernel)  # B sh sw kh (2kw-1) C C
    left = _digits(correlation.flatten(3), plan.product_digit, 2)

    peak = power_of_two_above(gram.diagonal()[:size].amax(0))  # no entry of E^T E is larger
    bits = plan.weight_digit * plan.weight_digits
    whole = (gram[:size, :size] * (2.0**bits / peak)).round()
    taps = _gram_by_displacement(whole.view(plan.channels, height, width, plan.channels, height, width))[None]
    right = _digits(taps, plan.weight_digit, plan.weight_digits)
    square = _correlate(left, right, plan, (plan.product_digit, plan.weight_digit))
    square = square * (unit * unit * (peak * 2.0**-bits))

    pull = gram[:size, size] + integers.centre[:, None] * gram[:size, size + 1]  # B size
    pull_peak = power_of_two_above(pull.abs().amax(1)).view(-1, 1, 1)
    bits = plan.pull_digit * plan.pull_digits
    whole = (pull * (2.0**bits / pull_peak[:, 0])).round()
    right = [
        digit.view(-1, plan.channels, height, width).permute(0, 2, 3, 1)
        for digit in _digits(whole, plan.pull_digit, plan.pull_digits)
    ]
    sums = blocks.sum(1).view(-1, *plan.stride, plan.channels)
    linear = _correlate([sums], right, plan, (0, plan.pull_digit))
    linear = linear * (2 * unit * (pull_peak * 2.0**-bits))

    constant = gram[size, size] + 2 * centre * gram[size, size + 1] + centre * centre * gram[size + 1, size + 1]
    return square + linear + plan.tokens * constant


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
    columns, row, block_row = x.shape[2] // stride[1], strips.shape[2] // stride[0], blocks.shape[2] // stride[0]
    products = []
    for lag in range(lags + 1):
        rows = min(stride[0] + below - lag * stride[0], stride[0])
        far = max(lag * stride[0] - below, 0) * block_row  # of the block's first rows, no kernel reaches down there
        found = blocks[:, :, far:].mT @ strips[:, lag * columns : lag * columns + tokens, : rows * row]
        products.append(F.pad(found, (0, 0, far, 0)))
    return torch.cat(products, 2)


def _by_displacement(products: Tensor, channels: int, stride: Pair, kernel: Pair) -> Tensor:
    """Sort the products by residue and displacement: ``[B, sh, sw, kh, 2 kw - 1, C, C]``."""
    below, beside = kernel[0] - 1, kernel[1] - 1
    products = products.view(-1, *stride, channels, stride[0] + below, stride[1] + 2 * beside, channels)
    row, column, down, right = _all_indices(*stride, kernel[0], 2 * beside + 1, device=products.device)
    sorted_ = products.permute(0, 3, 6, 1, 2, 4, 5)[:, :, :, row, column, row + down, column + right]
    return sorted_.permute(0, 3, 4, 5, 6, 1, 2)


def _all_indices(*sizes: int, device: torch.device) -> tuple[Tensor, ...]:
    return torch.meshgrid(*[torch.arange(size, device=device) for size in sizes], indexing="ij")


def _gram_by_displacement(gram: Tensor) -> Tensor:
    """``E^T E`` sorted the same way: ``[kh, kw, kh * (2 kw - 1) * C * C]`` for each tap and displacement."""
    height, width = gram.shape[1:3]
    below, beside = height - 1, width - 1
    padded = F.pad(gram, (beside, beside, 0, below))
    row, column, down, right = _all_indices(height, width, height, 2 * beside + 1, device=gram.device)
    taps = padded.permute(0, 3, 1, 2, 4, 5)[:, :, row, column, row + down, column + right]
    taps = taps * torch.where(down > 0, 2.0, 1.0).to(gram.dtype)  # for the opposite displacement
    return taps.permute(2, 3, 4, 5, 0, 1).flatten(2)


def _correlate(
    residues: list[Tensor], taps: list[Tensor], plan: Plan, bits: tuple[int, int]
) -> Float64[Tensor, "B sh sw"]:
    """Sum over taps ``a`` of ``residues[(m + a - padding) mod s] . taps[a]``, of integers in digits of ``bits`` bits.

    The digits are so small that no product of two, summed over all terms, can round. Their sums are put together in
    one fixed order.

    Args:
        residues: digits, lowest first, each ``[B, sh, sw, K]``.
        taps: digits, each ``[B, kh, kw, K]``, or ``[1, kh, kw, K]`` for all images.
    """
    stride, kernel, padding, device = plan.stride, plan.kernel, plan.padding, residues[0].device
    phase_row, phase_column, tap_row, tap_column = _all_indices(*stride, *kernel, device=device)
    row, column = (phase_row + tap_row - padding[0]) % stride[0], (phase_column + tap_column - padding[1]) % stride[1]
    total = torch.zeros((), dtype=torch.float64, device=device)
    for i, a in enumerate(residues):
        for j, b in enumerate(taps):
            product = a.flatten(1, 2) @ b.flatten(1, 2).mT
            product = product.view(-1, *stride, *kernel)[:, row, column, tap_row, tap_column]
            total = total + product.sum((3, 4)) * 2.0 ** (bits[0] * i + bits[1] * j)
    return total


def _digits(x: Tensor, bits: int, count: int) -> list[Tensor]:
    """Integers as digits of ``bits`` bits, lowest first; the highest carries the sign."""
    digits = []
    for _ in range(count - 1):
        higher = (x * 2.0**-bits).floor()
        digits.append(x - higher * 2.0**bits)
        x = higher
    return [*digits, x]
