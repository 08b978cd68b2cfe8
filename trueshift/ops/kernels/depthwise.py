"""Depthwise convolutions of tokens: channels last, an own shift for each image, up to three maps in one launch.

By tiles (:mod:`trueshift.ops.kernels.neighbours`); 3 x 3 at stride 1 by rows (:mod:`.depthwise_rows`).
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ..geometry.shift import Pair
from ..nn.autocast import network_precision
from ..nn.depthwise import finish, fusible, pooled_shape, same
from . import neighbours, operation, refuse_second_derivative
from .depthwise_rows import launch_energy, launch_values
from .launching import blocks_in, launched, power_of_two
from .neighbours import (
    WARPS,
    extent_of,
    in_one_launch,
    launch_back_to_input,
    launch_forward,
    origin_of,
    pick,
    three,
    tile_of,
    tiles_in,
    within_frame,
    wrapped,
)


@launched
@triton.jit
def _back_to_weight(
    x0, x1, x2, g0, g1, g2, partial, offset, stride_b, stride_h, stride_w, stride_c, parts,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    CIRCULAR: tl.constexpr, SHIFTED: tl.constexpr, MAPS: tl.constexpr, SPLITS: tl.constexpr, TAPS: tl.constexpr,
    EXTENT: tl.constexpr, BLOCK: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """Products of outputs' gradients and inputs, summed over part of the positions of one image."""
    blocks: tl.constexpr = (C + EXTENT - 1) // EXTENT
    tiles: tl.constexpr = ((OH + TH - 1) // TH) * ((OW + TW - 1) // TW)
    each: tl.constexpr = (tiles + SPLITS - 1) // SPLITS
    program = tl.program_id(0)
    which = program % MAPS
    lane = tl.arange(0, BLOCK)
    channel = ((program // MAPS) % blocks) * EXTENT + lane
    part = program // (MAPS * blocks)
    image, split = part // SPLITS, part % SPLITS
    x, grad = pick(which, x0, x1, x2, MAPS), pick(which, g0, g1, g2, MAPS)
    held = (lane < EXTENT) & (channel < C)
    number = tl.arange(0, TAPS)
    row_origin, column_origin = origin_of(offset, image, 0, H, SHIFTED), origin_of(offset, image, 1, W, SHIFTED)
    total = tl.zeros((TAPS, BLOCK), tl.float32)
    x += image.to(tl.int64) * stride_b
    for step in range(each):
        row, column, inside = tile_of(split * each + step, OH, OW, TH, TW)
        place = image.to(tl.int64) * (OH * OW * C) + (row * OW + column) * C
        wanted = tl.load(grad + place[:, None] + channel[None, :], mask=inside[:, None] & held[None, :], other=0.0)
        wanted = wanted.to(tl.float32)
        for i in tl.static_range(KH):
            at_row = row * SH + (i - PH)
            line = wrapped(at_row + row_origin, H, KH) * stride_h
            exists = within_frame(at_row, inside, H, CIRCULAR)
            for j in tl.static_range(KW):
                at_column = column * SW + (j - PW)
                place = line + wrapped(at_column + column_origin, W, KW) * stride_w
                mask = within_frame(at_column, exists, W, CIRCULAR)[:, None] & held[None, :]
                value = tl.load(x + place[:, None] + (channel * stride_c)[None, :], mask=mask, other=0.0)
                summed = tl.sum(value.to(tl.float32) * wanted, 0)
                total += tl.where((number == i * KW + j)[:, None], summed[None, :], 0.0)
    place = ((which * parts + part).to(tl.int64) * (KH * KW) + number) * C
    tl.store(partial + place[:, None] + channel[None, :], total, mask=(number < KH * KW)[:, None] & held[None, :])


def _sequences(
    maps: Sequence[Tensor], prefix: Tensor | None, stride: Sequence[int], dtype: torch.dtype
) -> list[Tensor]:
    height, width = pooled_shape(maps[0].shape, stride)
    length = height * width + (0 if prefix is None else prefix.shape[1])
    return [x.new_empty((x.shape[0], length, x.shape[3]), dtype=dtype) for x in maps]


@operation(
    "depthwise",
    lambda maps, weights, norms, prefix, offset, stride, padding, circular, eps, dtype: _sequences(
        maps, prefix, stride, dtype
    ),
)
def depthwise_forward(
    maps: list[Tensor], weights: list[Tensor], norms: list[Tensor], prefix: Tensor | None, offset: Tensor | None,
    stride: list[int], padding: list[int], circular: bool, eps: float, dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    """Sequences of the outputs of all maps, after those of ``prefix`` if there is one.

    Args:
        weights: of each map, ``[D, 1, kh, kw]``; D is the width of a head.
        norms: none; or gains, shifts, means and variances of each map's channels; or gains and shifts of each map's
            heads. The gains of all maps come first, then all shifts.
    """
    out = _sequences(maps, prefix, stride, dtype)
    weights = [weight.contiguous() for weight in weights]
    count, kernel = len(maps), weights[0].shape[2:]
    if in_one_launch(maps):
        groups = [(maps, weights, norms, out)]
    else:
        groups = [([maps[n]], [weights[n]], norms[n::count], [out[n]]) for n in range(count)]
    for group in groups:
        if stride == padding == [1, 1] and kernel == (3, 3):
            launch_values(*group, prefix, offset, circular, eps)
        else:
            launch_forward(*group, prefix, offset, stride, padding, kernel, circular, eps)
    return out


@operation(
    "depthwise_back_to_input", lambda grads, maps, *_: [x.new_empty(x.shape) for x in (maps[:1] if _[-1] else maps)]
)
def depthwise_back_to_input(
    grads: list[Tensor], maps: list[Tensor], weights: list[Tensor], offset: Tensor | None,
    stride: list[int], padding: list[int], circular: bool, together: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradient of each map; with ``together``, of the one tensor that all maps are."""
    out = [x.new_empty(x.shape) for x in (maps[:1] if together else maps)]
    launch_back_to_input(grads, weights, out, offset, stride, padding, weights[0].shape[2:], circular)
    return out


@operation("depthwise_back_to_weights", lambda grads, maps, weights, *_: [torch.empty_like(w) for w in weights])
def depthwise_back_to_weights(
    grads: list[Tensor], maps: list[Tensor], weights: list[Tensor], offset: Tensor | None,
    stride: list[int], padding: list[int], circular: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradient of each weight."""
    if not in_one_launch(maps):
        maps = [x.contiguous().to(maps[0].dtype) for x in maps]
    x, count, (width, _, rows, columns) = maps[0], len(weights), weights[0].shape
    channels, images, outputs, tile = x.shape[3], x.shape[0], pooled_shape(x.shape, stride), neighbours.TILE
    extent = extent_of(channels, width)
    blocks, tiles = blocks_in(channels, extent), tiles_in(*outputs, tile)
    splits = max(1, min(tiles, 2048 // (images * blocks * count)))
    parts = images * splits
    partial = x.new_empty((count, parts, rows * columns, channels), dtype=torch.float32)
    _back_to_weight[(parts * blocks * count,)](
        *three(maps), *three([grad.contiguous() for grad in grads]), partial,
        None if offset is None else offset.contiguous(), *x.stride(), parts,
        *x.shape[1:], width, *outputs, *stride, *padding, rows, columns, circular, offset is not None, count, splits,
        power_of_two(rows * columns), extent, power_of_two(extent), *tile, num_warps=WARPS,
    )  # fmt: skip
    summed = partial.view(count, parts, rows, columns, channels // width, width).sum((1, 4))
    return [
        grad.permute(2, 0, 1)[:, None].to(weight.dtype).contiguous()
        for grad, weight in zip(summed, weights, strict=True)
    ]


class _Depthwise(torch.autograd.Function):
    """The convolutions of several maps as sequences, differentiable once."""

    @staticmethod
    def forward(ctx: Any, offset, stride, padding, circular, dtype, count, *tensors) -> tuple[Tensor, ...]:
        ctx.stride, ctx.padding, ctx.circular, ctx.count = stride, padding, circular, count
        ctx.save_for_backward(offset, *tensors)
        weights, maps = list(tensors[:count]), _for_each(tensors[count:], count)
        return tuple(depthwise_forward(maps, weights, [], None, offset, stride, padding, circular, 0.0, dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        refuse_second_derivative(grads)
        offset, *tensors = ctx.saved_tensors
        weights, own = tensors[: ctx.count], tensors[ctx.count :]
        common = (list(grads), _for_each(own, ctx.count), weights, offset, ctx.stride, ctx.padding, ctx.circular)
        to_weights: Sequence[Tensor | None] = [None] * len(weights)
        to_maps: Sequence[Tensor | None] = [None] * len(own)
        if any(ctx.needs_input_grad[6 : 6 + ctx.count]):
            to_weights = depthwise_back_to_weights(*common)
        if any(ctx.needs_input_grad[6 + ctx.count :]):
            to_maps = depthwise_back_to_input(*common, len(own) < ctx.count)
        return None, None, None, None, None, None, *to_weights, *to_maps


def depthwise_sequences(
    maps: Sequence[Tensor], weights: Sequence[Tensor], stride: Pair, padding: Pair, offset: Tensor | None = None,
    mode: str = "circular", norms: Sequence[nn.Module] | None = None, prefix: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Norms and prefix on the way where no gradient is needed; the gradient of one single map comes in one piece."""
    dtype, step, reach, circular = network_precision(maps[0]), list(stride), list(padding), mode == "circular"
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*weights, *maps))):
        fused = ([], 0.0) if norms is None else fusible(norms, weights[0])
        if fused is not None:
            constants, eps = fused
            return depthwise_forward(
                list(maps), list(weights), constants, prefix, offset, step, reach, circular, eps, dtype
            )
    own = maps[:1] if same(maps) else maps
    sequences = _Depthwise.apply(offset, step, reach, circular, dtype, len(weights), *weights, *own)
    if norms is None and prefix is None:
        return list(sequences)
    shape = pooled_shape(maps[0].shape, stride)
    return finish([sequence.unflatten(1, shape) for sequence in sequences], norms, prefix)


def depthwise_energy(maps: Sequence[Tensor], weights: Sequence[Tensor], padding: Pair) -> Tensor:
    """Squares at every position, without the values; scores have no gradient."""
    if torch.is_grad_enabled():
        first = maps[0].detach()
        maps, weights = [first if x is maps[0] else x.detach() for x in maps], [weight.detach() for weight in weights]
    return launch_energy(list(maps), list(weights))


def _for_each(own: Sequence[Tensor], count: int) -> list[Tensor]:
    """One map for each weight; one single map is that of all."""
    return list(own) if len(own) == count else [own[0]] * count
