"""Attention within windows that begin where each image says."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from ..geometry.blocks import cut_blocks, join_blocks
from ..geometry.shift import Pair, circular_shift
from ..geometry.windows import border_mask, pad_to_windows, window_partition, window_reverse
from ..kernels import kernel_for, usable
from .attention import fused_attention, joined_heads

Project = Callable[[Tensor], Tensor]
LONGEST, LONGEST_IN_TRAINING, WIDEST = 256, 64, 128  # tokens of a window and channels of a head that a kernel takes


def _fits(x: Tensor, bias: Tensor, window: Pair, dropped: float) -> bool:
    longest = LONGEST_IN_TRAINING if torch.is_grad_enabled() else LONGEST
    small = window[0] * window[1] <= longest and x.shape[3] // bias.shape[0] <= WIDEST
    return small and not dropped and usable(x)


@kernel_for(lambda x, _, bias, sharpness, start, window, shift, border, dropped: _fits(x, bias, window, dropped))
def window_attention(
    x: Float[Tensor, "B H W C"],
    project: Project,
    bias: Float[Tensor, "heads L L"],
    sharpness: Float[Tensor, "heads 1 1"] | None,
    start: Int64[Tensor, "B 2"] | None,
    window: Pair,
    shift: Pair,
    border: bool,
    dropped: float,
) -> Float[Tensor, "B H W C"]:
    """What each token finds among those of its window.

    Shift law: ``window_attention(S^t x, start) == S^t window_attention(x, start + t)``, without a border.

    Args:
        project: from tokens to queries, keys and values, side by side in the channels.
        bias: added to the scores of each head.
        sharpness: of cosine attention, for each head; None for dot products.
        start: where the first window begins in each image; at the first token if None.
        shift: how far beyond that the windows are cut.
        border: shifted windows stop at the image's border; otherwise they go around. Windows that do not divide the
            grid always stop there: the last ones are cut off.
        dropped: the part of the weights that is left out.
    """
    size = (x.shape[1], x.shape[2])
    x = pad_to_windows(x, window)
    padded = (x.shape[1], x.shape[2])
    begin = x.new_zeros(1, 2, dtype=torch.int64) if start is None else start
    begin = torch.stack([begin[:, axis] + shift[axis] for axis in (0, 1)], 1) if any(shift) else begin
    every = bias[None]
    if padded != size or (border and (any(shift) or start is not None)):
        mask = border_mask(size, window, begin)[:, :, None]
        every = (bias - 100.0 * mask.to(bias.dtype)).expand(x.shape[0], -1, -1, -1, -1).flatten(0, 1)

    def attend(windows: Float[Tensor, "N L C"]) -> Float[Tensor, "N L C"]:
        queries, keys, values = project(windows).unflatten(2, (3, bias.shape[0], -1)).permute(2, 0, 3, 1, 4)
        scale = None
        if sharpness is not None:
            scale = 1.0
            queries = (F.normalize(queries, dim=-1) * sharpness).to(values.dtype)
            keys = F.normalize(keys, dim=-1).to(values.dtype)
        return joined_heads(biased_attention(queries, keys, values, every, dropped, scale))

    if start is None:
        windows = window_partition(circular_shift(x, shift) if any(shift) else x, window)
        mixed = window_reverse(attend(windows.flatten(1, 2)).view_as(windows), padded)
        mixed = circular_shift(mixed, (-shift[0], -shift[1])) if any(shift) else mixed
    else:
        blocks = cut_blocks(x, window, begin)
        mixed = join_blocks(attend(blocks.flatten(0, 2)).view_as(blocks), window, begin)
    return mixed[:, : size[0], : size[1]]


def biased_attention(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, dropped: float = 0.0, scale: float | None = None
) -> Tensor:
    """Attention with an additive bias, over few tokens and many windows.

    On an accelerator in plain steps, which a compiler fuses: the fused kernels are not taken for a bias of 49 x 49, and
    what is taken instead computes in float32. On a CPU the fused kernel is the faster one by far.
    """
    if queries.device.type == "cpu":
        return fused_attention(queries, keys, values, bias, dropped, scale)
    factor = queries.shape[-1] ** -0.5 if scale is None else scale
    weights = ((queries * factor) @ keys.mT + bias).softmax(-1)
    if dropped:
        weights = F.dropout(weights, dropped)
    return weights.to(values.dtype) @ values
