# mypy: allow-untyped-defs, allow-incomplete-defs
"""Depthwise convolutions of tokens: channels last, an own shift for each image, up to three maps in one launch.

Read for every tap are tiles of neighbouring positions and channels, so that all taps but the first come from the cache.
3 x 3 at stride 1 goes down rows instead: :mod:`trueshift.ops.kernels.depthwise_rows`.
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
from . import operation, refuse_second_derivative
from .depthwise_gradients import depthwise_back_to_input, depthwise_back_to_weights
from .depthwise_rows import launch_energy, launch_values
from .launching import blocks_in, launched, power_of_two
from .neighbours import (
    CHANNELS,
    TILE,
    WARPS,
    extent_of,
    in_one_launch,
    origin_of,
    out_shape,
    pick,
    source_of,
    three,
    tile_of,
    tiles_in,
    within_frame,
    within_head,
)
from .norms import BY_HEAD, groups_of_three, kind_of_norm, norm_constants, normed


@launched
@triton.jit
def _forward(
    x0, x1, x2, w0, w1, w2, y0, y1, y2, g0, g1, g2, b0, b1, b2, m0, m1, m2, v0, v1, v2, offset, prefix,
    stride_b, stride_h, stride_w, stride_c, prefix_b, prefix_n, prefix_c, eps,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, D: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    CIRCULAR: tl.constexpr, SHIFTED: tl.constexpr, MAPS: tl.constexpr, NORM: tl.constexpr, LEAD: tl.constexpr,
    EXTENT: tl.constexpr, BLOCK: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (C + EXTENT - 1) // EXTENT
    tiles: tl.constexpr = ((OH + TH - 1) // TH) * ((OW + TW - 1) // TW)
    program = tl.program_id(0)
    which = program % MAPS
    block = (program // MAPS) % blocks
    tile = (program // (MAPS * blocks)) % tiles
    image = program // (MAPS * blocks * tiles)
    x, y, weight = pick(which, x0, x1, x2, MAPS), pick(which, y0, y1, y2, MAPS), pick(which, w0, w1, w2, MAPS)

    lane = tl.arange(0, BLOCK)
    channel, of_head = block * EXTENT + lane, within_head(block, C, D, EXTENT) + lane
    held = (lane < EXTENT) & (channel < C)
    row, column, inside = tile_of(tile, OH, OW, TH, TW)
    row_origin, column_origin = origin_of(offset, image, 0, H, SHIFTED), origin_of(offset, image, 1, W, SHIFTED)
    total = tl.zeros((TH * TW, BLOCK), tl.float32)
    x += image.to(tl.int64) * stride_b
    for i in tl.static_range(KH):
        at_row = row * SH + (i - PH)
        line = source_of(at_row, row_origin, H, KH) * stride_h
        exists = within_frame(at_row, inside, H, CIRCULAR)
        for j in tl.static_range(KW):
            at_column = column * SW + (j - PW)
            place = line + source_of(at_column, column_origin, W, KW) * stride_w
            mask = within_frame(at_column, exists, W, CIRCULAR)[:, None] & held[None, :]
            value = tl.load(x + place[:, None] + (channel * stride_c)[None, :], mask=mask, other=0.0)
            tap = tl.load(weight + of_head * (KH * KW) + (i * KW + j), mask=held, other=0.0)
            total += value.to(tl.float32) * tap.to(tl.float32)[None, :]

    factor, centre, start = norm_constants(
        which, g0, g1, g2, b0, b1, b2, m0, m1, m2, v0, v1, v2, channel, lane, held, eps, MAPS, NORM, BLOCK
    )
    total = normed(total, factor, centre, start, held, eps, D, NORM)
    first = image.to(tl.int64) * ((LEAD + OH * OW) * C)
    place = first + (LEAD + row * OW + column) * C
    tl.store(y + place[:, None] + channel[None, :], total.to(y.dtype.element_ty), mask=inside[:, None] & held[None, :])
    if LEAD:  # noqa: SIM102
        if tile == 0:
            for number in tl.static_range(LEAD):
                source = prefix + image.to(tl.int64) * prefix_b + number * prefix_n + channel * prefix_c
                token = tl.load(source, mask=held, other=0.0)
                tl.store(y + first + number * C + channel, token.to(y.dtype.element_ty), mask=held)


def _fake_forward(
    maps: list[Tensor],
    weights: list[Tensor],
    norms: list[Tensor],
    prefix: Tensor | None,
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
    eps: float,
    dtype: torch.dtype,
) -> list[Tensor]:
    height, width = out_shape(maps[0], stride)
    images, channels, lead = maps[0].shape[0], maps[0].shape[3], 0 if prefix is None else prefix.shape[1]
    return [x.new_empty((images, lead + height * width, channels), dtype=dtype) for x in maps]


@operation("depthwise", _fake_forward)
def depthwise_forward(
    maps: list[Tensor],
    weights: list[Tensor],
    norms: list[Tensor],
    prefix: Tensor | None,
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
    eps: float,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Sequences of the outputs of all maps, behind those of ``prefix`` if there is one.

    Args:
        weights: of each map, ``[D, 1, kh, kw]``; D is the width of a head.
        norms: none; or gains, shifts, means and variances of each map's channels; or gains and shifts of each map's
            heads. The gains of all maps come first, then all shifts.
    """
    out = _fake_forward(maps, weights, norms, prefix, offset, stride, padding, circular, eps, dtype)
    weights = [weight.contiguous() for weight in weights]
    count = len(maps)
    if in_one_launch(maps):
        groups = [(maps, weights, norms, out)]
    else:
        groups = [([maps[n]], [weights[n]], norms[n::count], [out[n]]) for n in range(count)]
    everywhere = stride == padding == [1, 1] and weights[0].shape[2:] == (3, 3)
    for group in groups:
        if everywhere:
            launch_values(*group, prefix, offset, circular, eps)
        else:
            _launch_tiles(*group, prefix, offset, stride, padding, circular, eps)
    return out


def _launch_tiles(
    maps: Sequence[Tensor],
    weights: Sequence[Tensor],
    norms: Sequence[Tensor],
    out: Sequence[Tensor],
    prefix: Tensor | None,
    offset: Tensor | None,
    stride: list[int],
    padding: list[int],
    circular: bool,
    eps: float,
) -> None:
    x, count, width = maps[0], len(maps), weights[0].shape[0]
    kind = kind_of_norm(norms, count)
    (images, height, columns, channels), outputs = x.shape, out_shape(x, stride)
    extent = width if kind == BY_HEAD else extent_of(channels, width, CHANNELS)
    lead = prefix.stride() if prefix is not None else (0, 0, 0)
    tile = TILE if extent <= CHANNELS else (TILE[0] // 2, TILE[1])  # more would not fit into the registers
    programs = images * tiles_in(*outputs, tile) * blocks_in(channels, extent) * count
    _forward[(programs,)](
        *three(maps), *three(weights), *three(out), *groups_of_three(norms, count),
        None if offset is None else offset.contiguous(), prefix,
        *x.stride(), *lead, eps,
        height, columns, channels, width, *outputs, *stride, *padding, *weights[0].shape[2:],
        circular, offset is not None, count, kind, 0 if prefix is None else prefix.shape[1],
        extent, power_of_two(extent), *tile, num_warps=WARPS,
    )  # fmt: skip


class _Depthwise(torch.autograd.Function):
    """The convolutions of several maps, differentiable once.

    Sequences and not maps come out: what follows is a projection, and a class token may be in front.
    """

    @staticmethod
    def forward(
        offset: Tensor | None,
        stride: Pair,
        padding: Pair,
        circular: bool,
        dtype: torch.dtype,
        count: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        weights, maps = list(tensors[:count]), _for_each(tensors[count:], count)
        step, reach = list(stride), list(padding)
        return tuple(depthwise_forward(maps, weights, [], None, offset, step, reach, circular, 0.0, dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        offset, ctx.stride, ctx.padding, ctx.circular, _, ctx.count, *tensors = inputs
        ctx.save_for_backward(offset, *tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        refuse_second_derivative(grads)
        offset, *tensors = ctx.saved_tensors
        weights, own = tensors[: ctx.count], tensors[ctx.count :]
        geometry = (offset, list(ctx.stride), list(ctx.padding), ctx.circular)
        common = (list(grads), _for_each(own, ctx.count), weights, *geometry)
        to_weights: Sequence[Tensor | None] = [None] * len(weights)
        to_maps: Sequence[Tensor | None] = [None] * len(own)
        if any(ctx.needs_input_grad[6 : 6 + ctx.count]):
            to_weights = depthwise_back_to_weights(*common)
        if any(ctx.needs_input_grad[6 + ctx.count :]):
            to_maps = depthwise_back_to_input(*common, len(own) < ctx.count)
        return None, None, None, None, None, None, *to_weights, *to_maps


def depthwise_sequences(
    maps: Sequence[Tensor],
    weights: Sequence[Tensor],
    stride: Pair,
    padding: Pair,
    offset: Tensor | None = None,
    mode: str = "circular",
    norms: Sequence[nn.Module] | None = None,
    prefix: Tensor | None = None,
) -> list[Tensor]:
    """Norms and prefix on the way where no gradient is asked for; the gradient of one single map comes in one piece."""
    dtype, circular = network_precision(maps[0]), mode == "circular"
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*weights, *maps))):
        fused = ([], 0.0) if norms is None else fusible(norms, weights[0])
        if fused is not None:
            constants, eps = fused
            step, reach = list(stride), list(padding)
            return depthwise_forward(
                list(maps), list(weights), constants, prefix, offset, step, reach, circular, eps, dtype
            )
    own = maps[:1] if same(maps) else maps
    sequences = _Depthwise.apply(offset, stride, padding, circular, dtype, len(weights), *weights, *own)
    if norms is None and prefix is None:
        return list(sequences)
    shape = pooled_shape(maps[0], stride)
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
