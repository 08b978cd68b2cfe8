"""Windows of neighbouring tokens, and the energy by which A-WSA chooses where they start."""

from math import inf

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from ..selection.exact import exact_power, exact_sum, headroom, power_of_two_above, quantise
from .shift import Pair, circular_pad


def window_partition(x: Shaped[Tensor, "B H W C"], window: Pair) -> Shaped[Tensor, "N wh ww C"]:
    """Cut into windows, those of one image after the other, row by row."""
    rows, columns = window
    split = x.unflatten(2, (-1, columns)).unflatten(1, (-1, rows))
    return split.permute(0, 1, 3, 2, 4, 5).reshape(-1, rows, columns, x.shape[3])


def window_reverse(windows: Shaped[Tensor, "N wh ww C"], size: Pair) -> Shaped[Tensor, "B H W C"]:
    """Put the windows of :func:`window_partition` back together to ``size`` tokens."""
    rows, columns = windows.shape[1:3]
    split = windows.view(-1, size[0] // rows, size[1] // columns, rows, columns, windows.shape[3])
    return split.permute(0, 1, 3, 2, 4, 5).reshape(-1, *size, windows.shape[3])


def whole_windows(size: Pair, window: Pair) -> Pair:
    """The smallest size of at least ``size`` that windows divide."""
    rows, columns = (length + -length % side for length, side in zip(size, window, strict=True))
    return rows, columns


def pad_to_windows(x: Shaped[Tensor, "B H W C"], window: Pair) -> Shaped[Tensor, "B h w C"]:
    """Tokens with zeros below and to the right, up to whole windows."""
    size = (x.shape[1], x.shape[2])
    rows, columns = whole_windows(size, window)
    return x if (rows, columns) == size else F.pad(x, (0, 0, 0, columns - size[1], 0, rows - size[0]))


def border_mask(size: Pair, window: Pair, begin: Int64[Tensor, "B 2"]) -> Bool[Tensor, "B windows length length"]:
    """Pairs of tokens in one window that met only across the border, where windows are cut from ``begin`` on.

    Swin forbids these to see each other. The border is a fixed place, so this is for the ordinary network, or after an
    anchor. Where windows do not divide the grid, it is padded below and to the right, and nothing sees the padding.
    """

    def part(axis: int, whole: int) -> Int64[Tensor, "B whole"]:
        """0 before the border, 1 after it, 2 in the padding."""
        at = begin[:, axis, None] + torch.arange(whole, device=begin.device)
        return torch.where(at % whole < size[axis], (at >= whole).to(torch.int64), 2)

    rows, columns = (part(axis, whole) for axis, whole in enumerate(whole_windows(size, window)))
    parts = 3 * rows[:, :, None] + columns[:, None, :]
    windows = window_partition(parts[..., None], window).flatten(1).unflatten(0, (begin.shape[0], -1))
    return windows[:, :, :, None] != windows[:, :, None, :]


def token_norm(x: Float[Tensor, "B H W C"], p: float = 2) -> Float64[Tensor, "B H W"]:
    """The p-norm of each token. Shift law: ``token_norm(S x) == S token_norm(x)``, bit for bit."""
    magnitude = x.to(torch.float64).abs()
    if p == inf:
        return magnitude.amax(3)
    scale = power_of_two_above(magnitude.amax((1, 2, 3), keepdim=True))  # keeps the powers within range
    power = exact_sum(exact_power(magnitude / scale, p), (3,))
    norm = power.sqrt() if p == 2 else exact_power(power, 1 / p)
    return norm * scale[..., 0]


def window_energy(norms: Float64[Tensor, "B H W"], window: Pair) -> Float64[Tensor, "B H W"]:
    r"""Mean token norm of the window starting at each token (A-WSA; in one dimension:)

    .. math:: v_W^{(m)}[k] = \tfrac1W \sum_l \|T_{(Wk+m+l) \bmod M}\|_p

    Shift law: ``window_energy(S x) == S window_energy(x)``, bit for bit.
    """
    rows, columns = window
    integers, unit = quantise(norms, headroom(rows * columns))
    padded = circular_pad(integers, (0, rows - 1), (0, columns - 1))
    total = padded.unfold(1, rows, 1).sum(3).unfold(2, columns, 1).sum(3)
    return total * (unit / (rows * columns))
