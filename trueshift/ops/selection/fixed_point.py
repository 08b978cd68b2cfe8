"""How large products are cut into digits, so that sums of them are exact."""

from math import ceil, log2

from ..geometry.shift import Pair
from .exact import headroom
from .quantised_image import BITS

PRECISION = 40  # bits of the largest weight that are kept, if they fit into two digits
ENOUGH = 28  # bits for which two digits do: twice as many as a pixel has


class Plan:
    """How many bits each digit may have so that every sum of products of digits is exact.

    Attributes:
        product_digit: bits of either half of a sum of products of pixels.
        weight_digit, weight_digits: bits of a digit of ``E^T E``, and how many digits there are.
        pull_digit, pull_digits: the same of ``E^T b_c``, whose factors are sums of pixels.
    """

    def __init__(self, channels: int, stride: Pair, kernel: Pair, padding: Pair, pixels: int) -> None:
        self.channels, self.stride, self.kernel, self.padding = channels, stride, kernel, padding
        self.tokens = pixels // (stride[0] * stride[1])
        self.size = channels * kernel[0] * kernel[1]
        token_bits = ceil(log2(self.tokens))
        self.product_digit = ceil((2 * BITS + token_bits) / 2)
        self.weight_digit, self.weight_digits = _digits_within(headroom(self.size**2) - self.product_digit)
        self.pull_digit, self.pull_digits = _digits_within(headroom(self.size) - BITS - token_bits)


def _digits_within(room: int) -> tuple[int, int]:
    """Bits of a digit that may have so many at most, and how many digits there are."""
    digit = min(room, PRECISION // 2)
    return digit, 2 if 2 * digit >= ENOUGH else ceil(PRECISION / digit)
