"""Attention between all tokens."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..kernels import kernel_for, tf32_allowed, transformed, usable
from ..selection.exact import exporting

WIDEST = 128  # channels of a head that a kernel takes


def _in_tf32(query: Tensor, key: Tensor, value: Tensor, heads: int, scale: float, dropped: float = 0.0) -> bool:
    """Float32 that may be multiplied in TF32, by heads that are not too wide, where no gradient is needed."""
    served = usable(query, (torch.float32,)) and not dropped and not torch.is_grad_enabled()
    return served and query.shape[2] // heads <= WIDEST and tf32_allowed()


@kernel_for(_in_tf32)
def attention(
    query: Float[Tensor, "B N C"],
    key: Float[Tensor, "B M C"],
    value: Float[Tensor, "B M C"],
    heads: int,
    scale: float,
    dropped: float = 0.0,
) -> Float[Tensor, "B N C"]:
    """What each query finds among the values, head by head.

    Shift law: queries move, their answers move with them; keys and values may be permuted, to rounding.

    Args:
        heads: lie side by side in the channels.
        dropped: the part of the weights that is left out.
    """
    query, key, value = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (query, key, value))
    return joined_heads(fused_attention(query, key, value, None, dropped, scale))


def fused_attention(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, dropped: float = 0.0, scale: float | None = None
) -> Tensor:
    """torch's attention: fused, but within transforms of ``torch.func``, for which fused kernels have no rules."""
    bias = bias if bias is None else bias.to(queries.dtype)
    with sdpa_kernel(SDPBackend.MATH) if transformed() else nullcontext():
        return F.scaled_dot_product_attention(queries, keys, values, bias, dropped, scale=scale)


def joined_heads(mixed: Float[Tensor, "B heads N C"]) -> Float[Tensor, "B N heads_C"]:
    """The answers of all heads side by side in the channels."""
    mixed = mixed.transpose(1, 2)
    if exporting():  # a program's attention may later be replaced by one that lays out its answers differently
        mixed = mixed.clone(memory_format=torch.contiguous_format)
    return mixed.flatten(2)
