"""Attention over all tokens in one kernel, for float32 in TF32, without a gradient.

Torch's fused attention multiplies float32 in three products of TF32 each, whatever its matrices may do; written out it
would store the weights between all tokens. Other types are served well by torch.
"""

import triton
import triton.language as tl
from torch import Tensor

from . import operation
from .launching import blocks_in, launched, power_of_two


@launched
@triton.jit
def _attend(
    query, key, value, out, scale: tl.constexpr, queries, keys, channels,
    dim: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, D: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """A run of queries of one head: keys pass by in blocks, with the largest score so far as the reference."""
    image, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    asked, k, d = tl.program_id(0) * Q + tl.arange(0, Q), tl.arange(0, K), tl.arange(0, D)
    inner, column = d < dim, head * dim + d
    of_queries = (image * queries + asked)[:, None] * channels + column[None, :]
    wanted = (asked < queries)[:, None] & inner[None, :]
    q = tl.load(query + of_queries, wanted, 0.0)
    largest = tl.full((Q,), float("-inf"), tl.float32)
    total = tl.zeros((Q,), tl.float32)
    mixed = tl.zeros((Q, D), tl.float32)
    for begin in range(0, keys, K):
        at = begin + k
        there = at < keys
        of_keys = (image * keys + at)[:, None] * channels + column[None, :]
        known = there[:, None] & inner[None, :]
        score = tl.dot(q, tl.trans(tl.load(key + of_keys, known, 0.0)), input_precision=precision) * scale
        score = tl.where(there[None, :], score, float("-inf"))
        larger = tl.maximum(largest, tl.max(score, 1))
        weight = tl.exp2(score - larger[:, None])
        fade = tl.exp2(largest - larger)
        total = total * fade + tl.sum(weight, 1)
        v = tl.load(value + of_keys, known, 0.0)
        mixed = tl.dot(weight.to(v.dtype), v, mixed * fade[:, None], input_precision=precision)
        largest = larger
    tl.store(out + of_queries, (mixed / total[:, None]).to(out.dtype.element_ty), wanted)


def attention(query: Tensor, key: Tensor, value: Tensor, heads: int, scale: float, dropped: float = 0.0) -> Tensor:
    """Values ``[B, M, C]`` mixed for each query ``[B, N, C]``; nothing is dropped."""
    return attend(query, key, value, heads, scale)


@operation("attention", lambda query, *_: query.new_empty(query.shape))
def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, scale: float) -> Tensor:
    """Values ``[B, M, C]`` mixed for each query ``[B, N, C]``; the heads lie side by side in the channels."""
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    images, queries, channels = query.shape
    keys, dim = key.shape[1], channels // heads
    out = query.new_empty(query.shape)
    part, warps = (256, 8) if queries > 1024 else (128, 4)  # as measured to be fastest
    _attend[(blocks_in(queries, part), heads, images)](
        query, key, value, out, scale * 1.4426950408889634, queries, keys, channels,  # powers of two, not of e
        dim, part, 32, max(16, power_of_two(dim)), "tf32", num_warps=warps, num_stages=3,
    )  # fmt: skip
    return out
