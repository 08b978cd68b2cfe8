r"""A key for every possible origin, which depends on the whole content as seen from there and on nothing else.

Exact ties between *different* content are common: flat backgrounds, a few bright pixels, stripes. They must be broken
by something that moves with the image. This key settles all of them: two origins get the same key only if the content
seen from them is the same (up to an accidental collision, about 1 in 2**57).

.. math:: \text{key}[n] = \sum_{i, j} r_i\, c_j\, h[(n + (i, j)) \bmod (H, W)] \bmod p

with :math:`h` a hash of the values at one position, three times over with other multipliers :math:`r, c`. Rows and
columns have different ones: equal ones would tie an origin with its mirror image across the diagonal.
"""

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from ..geometry.shift import Pair
from ..kernels import kernel_for, usable
from .exact import exporting, kept

PRIME = 2**19 - 1  # products of two residues, summed over up to 2**15 positions, are exact in float64
HASHES = 3  # together 57 bits, one int64


def _mix(x: Int64[Tensor, "*any"]) -> Int64[Tensor, "*any"]:
    """Scatter the bits of integers (multiplication wraps around; xor and shift keep it from being linear)."""
    x = (x ^ (x >> 31)) * -4658895280553007687
    x = (x ^ (x >> 27)) * -7723592293110705685
    return x ^ (x >> 33)


def _scatter(x: Int64[Tensor, "*any"]) -> Int64[Tensor, "*any"]:
    """Scatter the bits of integers below 2**32, without a product that wraps around.

    torch's compiler folds constants as if nothing wrapped around: with one thread on a CPU, its salts were others.
    """
    x = ((x ^ (x >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    x = ((x ^ (x >> 12)) * 0x297A2D39) & 0xFFFFFFFF
    return x ^ (x >> 15)


def fingerprint(x: Shaped[Tensor, "B H W C"]) -> Int64[Tensor, "B H W"]:
    """Hash the values of all channels at each position, bit by bit; narrower types as if they were float32.

    Shift law: ``fingerprint(S x) == S fingerprint(x)``.
    """
    values = x if x.dtype == torch.float64 else x.to(torch.float32)
    multipliers = _salts(1, x.shape[-1], x.device) | 1
    if exporting():  # a sum that may wrap around, of two that do not: ONNX Runtime adds up integers in float64
        words = bits_by_arithmetic(values) * multipliers
        return _mix((words & 0xFFFFFFFF).sum(-1) + (words >> 32).sum(-1) * 2**32)
    return _mix((bits_by_view(values) * multipliers).sum(-1))


def bits_by_view(x: Float[Tensor, "*any"]) -> Int64[Tensor, "*any"]:
    """The bit pattern of float32 or float64, as a signed integer."""
    return x.contiguous().view(torch.int64 if x.dtype == torch.float64 else torch.int32).to(torch.int64)


def bits_by_arithmetic(x: Float[Tensor, "*any"]) -> Int64[Tensor, "*any"]:
    """:func:`bits_by_view` of finite values by exact arithmetic, in exported graphs."""
    digits, lowest, first, sign = (52, 1022, 512, -(2**63)) if x.dtype == torch.float64 else (23, 126, 64, -(2**31))
    wide = x.to(torch.float64)
    magnitude = wide.abs()
    large = magnitude >= 1
    mantissa = torch.where(large, magnitude, magnitude * 2.0**lowest)  # the smallest normal number becomes 1
    exponent = torch.where(large, lowest, 0)
    while first:  # halve what is 2 or more until it is not; subnormal numbers stay below 1, and their exponent 0
        large = mantissa >= 2.0**first
        mantissa = torch.where(large, mantissa * 2.0**-first, mantissa)
        exponent = exponent + torch.where(large, first, 0)
        first //= 2
    bits = exponent * 2**digits + (mantissa * 2.0**digits).to(torch.int64)  # the leading 1 adds 1 to the exponent
    return bits + torch.where((wide < 0) | (1 / wide < 0), sign, 0)  # -0 shows its sign only when divided by


@kernel_for(lambda x, needed=None: needed is not None and max(x.shape[1:3]) <= 2**15 and usable(x))
def origin_keys(x: Shaped[Tensor, "B H W C"], needed: Bool[Tensor, " B"] | None = None) -> Int64[Tensor, "B H W"]:
    """The key of the content as seen from each position, in 0 .. 2**57 - 1.

    Shift law: ``origin_keys(S x) == S origin_keys(x)``; equal keys mean equal content.

    Args:
        needed: images whose keys are used, if not all. On a GPU the others cost nothing and their keys mean nothing.
    """
    if max(x.shape[1:3]) > 2**15:
        raise ValueError(f"size {tuple(x.shape[1:3])}: needs at most {2**15} rows and columns; cut the image in tiles")
    return _keys(x, _circulant(x.shape[1], 0, x.device), _circulant(x.shape[2], HASHES, x.device))


def first_row(keys: Int64[Tensor, "B H W"], fixed_rows: bool) -> Int64[Tensor, "B h W"]:
    """The keys of the positions at which an image may start: where rows are fixed, those of its first row."""
    return keys[:, :1].contiguous() if fixed_rows else keys


def window_keys(x: Shaped[Tensor, "B H W C"], window: Pair) -> Int64[Tensor, "B h w"]:
    """The key of the window that starts at each position and does not leave the image, as in :func:`origin_keys`.

    Shift law: the key depends on the content of the window and on nothing else; equal keys mean equal content.
    """
    return _keys(x, _band(x.shape[1], window[0], 0, x.device), _band(x.shape[2], window[1], HASHES, x.device))


def _keys(
    x: Shaped[Tensor, "B H W C"], rows: Float[Tensor, "HASHES h H"], columns: Float[Tensor, "HASHES w W"]
) -> Int64[Tensor, "B h w"]:
    """Hashes of all positions, multiplied and summed."""
    salts = _salts(1, HASHES, x.device).view(HASHES, 1, 1, 1)
    residues = (_mix(fingerprint(x) ^ salts) % PRIME).to(torch.float64)  # HASHES B H W
    hashes = ((rows[:, None] @ residues) % PRIME) @ columns[:, None].mT % PRIME
    first, second, third = hashes.to(torch.int64)
    return (first << 38) | (second << 19) | third


def _salts(first: int, last: int, device: torch.device) -> Int64[Tensor, " all"]:
    return _scatter(torch.arange(first, last + 1, device=device))


def _multipliers(size: int, seed: int, device: torch.device) -> Int64[Tensor, "HASHES size"]:
    """Of the rows, or of the columns, by their distance."""
    salts = _salts(seed + 1, seed + HASHES, device)[:, None]
    return _scatter(torch.arange(size, device=device) ^ salts) % PRIME


def _circulant(size: int, seed: int, device: torch.device) -> Tensor:
    """``[HASHES, size, size]`` with entry ``(n, k)`` the multiplier of position ``k`` as seen from ``n``."""
    index = torch.arange(size, device=device)
    return _multipliers(size, seed, device).to(torch.float64)[:, (index[None, :] - index[:, None]) % size]


def _band(size: int, window: int, seed: int, device: torch.device) -> Tensor:
    """The same for windows: entry ``(n, k)`` is 0 where the window that starts at ``n`` does not reach ``k``."""
    distance = torch.arange(size, device=device) - torch.arange(size - window + 1, device=device)[:, None]
    inside = (distance >= 0) & (distance < window)
    return _multipliers(window, seed, device).to(torch.float64)[:, distance.clamp(0, window - 1)] * inside


@kept(64)
def all_multipliers(device: torch.device, rows: int, columns: int, channels: int) -> Int64[Tensor, " all"]:
    """For the kernels: of the channels, the salts, of rows and columns."""
    lines = (_multipliers(rows, 0, device).flatten(), _multipliers(columns, HASHES, device).flatten())
    return torch.cat([_salts(1, channels, device) | 1, _salts(1, HASHES, device), *lines])
