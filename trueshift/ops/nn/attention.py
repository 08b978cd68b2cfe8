"""Attention between all tokens."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .. import kernels


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
        scale: of the products of queries and keys.
        dropped: the part of the weights that is left out.
    """
    if not dropped and kernels.usable(query):
        from ..kernels.attention import attention as by_kernel
        from ..kernels.attention import fits

        if fits(query, heads):
            return by_kernel(query, key, value, heads, scale)
    query, key, value = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (query, key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropped, scale=scale)
    return mixed.transpose(1, 2).flatten(2)
