"""Kernels: the energy of every phase of a patch grid. The products of neighbouring pixels on the int8 matrix units, in
two digits per pixel and 32 bits for their sums; then the weighing of the products, in digits held by float64.

All sums are of integers, and exact in any order: what comes out is what :mod:`.gram_energy` computes plainly,
bit for bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..geometry.shift import Pair
from ..selection.gram_energy import Plan, extended_gram
from ..selection.quantised_image import Pixels
from . import INTERPRETED, operation
from .launching import blocks_in, launched, power_of_two
from .quantised_image import LANES, Layout, _power_of_two_above, _round

# neighbours, bytes of tokens, warps and stages of one program
TILE = {"neighbours": 128, "tokens": 128, "warps": 4, "stages": 3}
BUSY = 264  # programs, two on each multiprocessor; fewer images are cut in parts


def patch_energy(
    image: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, pixels: Pixels | None = None
) -> Tensor:
    """The energies ``[B, sh, sw]``: products of pixels, then their weighing."""
    plan = Plan(image, weight, stride, padding)
    planes = (pixels or Pixels(image)).planes(stride, plan.kernel)
    found = products(planes.digits, list(image.shape), list(stride), list(plan.kernel))
    energy = weigh(
        found, extended_gram(weight, bias), planes.scale, plan.channels, list(stride), list(plan.kernel), list(padding),
        plan.tokens, [plan.product_digit, plan.weight_digit, plan.pull_digit],
    )  # fmt: skip
    return energy.view(-1, *stride)


def _neighbours(channels: int, stride: list[int], kernel: list[int]) -> int:
    return kernel[0] * (stride[1] + 2 * (kernel[1] - 1)) * channels


def _products(digits, shape, stride, kernel) -> Tensor:
    columns = _neighbours(shape[3], stride, kernel) + 1
    return digits.new_empty((shape[0], stride[0], columns, stride[1] * shape[3]), dtype=torch.float64)


@operation("products", _products)
def products(digits: Tensor, shape: list[int], stride: list[int], kernel: list[int]) -> Tensor:
    """For each row of a block: its pixels times the neighbours down and to both sides, summed over all blocks.

    Returns:
        ``[B, sh, kh * (sw + 2 (kw - 1)) * C + 1, sw * C]``; the last neighbour is the number 1.
    """
    images, _, _, channels = shape
    layout = Layout(shape, stride, kernel)
    neighbours, pixels = _neighbours(channels, stride, kernel), stride[1] * channels
    run = layout.block_columns * LANES  # bytes of tokens in one row of a plane
    tile, tokens = TILE["neighbours"], TILE["tokens"]
    if INTERPRETED:  # which is slow in the number of operations, whatever their size
        tile, tokens = power_of_two(neighbours + 1), power_of_two(run)
    tiles = blocks_in(neighbours + 1, tile)
    steps = layout.per_lane * blocks_in(run, tokens)
    parts = max(1, min(BUSY // (images * stride[0] * tiles), steps // 4))
    found = _products(digits, shape, stride, kernel)
    if parts > 1:
        found.zero_()
    _multiply[(images * parts, stride[0], tiles)](
        digits, found, layout.ones, parts, blocks_in(steps, parts), steps,
        channels, stride[0], stride[1], kernel[1], neighbours, layout.block_rows, layout.per_lane, layout.beside, run,
        layout.row, layout.plane, LANES, layout.block_rows % LANES == 0, pixels,
        max(16, power_of_two(pixels)), tile, tokens, parts > 1,
        num_warps=TILE["warps"], num_stages=TILE["stages"],
    )  # fmt: skip
    return found


@launched
@triton.jit
def _multiply(
    digits, found, ones, parts, steps_per_part, steps,
    CHANNELS: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, KW: tl.constexpr, NEIGHBOURS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, PER_LANE: tl.constexpr, BESIDE: tl.constexpr, RUN: tl.constexpr, ROW: tl.constexpr,
    PLANE: tl.constexpr, LANES: tl.constexpr, EVEN: tl.constexpr, PIXELS: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr, TOKENS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """One row of the blocks of one image, with a tile of their neighbours."""
    image, part = tl.program_id(0).to(tl.int64) // parts, tl.program_id(0) % parts
    residue, tile = tl.program_id(1), tl.program_id(2)

    # where each neighbour's plane starts, as seen from a block
    neighbour = tl.minimum(tile * TILE + tl.arange(0, TILE), NEIGHBOURS)
    down = residue + neighbour // ((SW + 2 * (KW - 1)) * CHANNELS)
    right = neighbour // CHANNELS % (SW + 2 * (KW - 1)) - (KW - 1) + BESIDE * SW
    plane = ((image * CHANNELS + neighbour % CHANNELS) * SH + down % SH) * SW + right % SW
    first = plane * 2 * PLANE + down // SH * ROW + right // SW * LANES
    first = tl.where(neighbour < NEIGHBOURS, first, ones + BESIDE * LANES)

    # both digits of each pixel of the block, side by side
    entry = tl.arange(0, 2 * PADDED)
    pixel = tl.minimum(entry // 2, PIXELS - 1)
    plane = ((image * CHANNELS + pixel % CHANNELS) * SH + residue) * SW + pixel // CHANNELS
    own = (plane * 2 + entry % 2) * PLANE + BESIDE * LANES

    token = tl.arange(0, TOKENS)
    neighbour_at = digits + tl.multiple_of(first, LANES)[:, None] + token[None, :]
    own_at = digits + tl.multiple_of(own, LANES)[None, :] + token[:, None]
    upper = tl.zeros([TILE, 2 * PADDED], tl.int32)
    lower = tl.zeros([TILE, 2 * PADDED], tl.int32)
    per_row: tl.constexpr = (RUN + TOKENS - 1) // TOKENS
    for step in range(part * steps_per_part, tl.minimum((part + 1) * steps_per_part, steps)):
        inner = step // per_row
        along = (step - inner * per_row) * TOKENS
        moved = tl.multiple_of(inner * ROW + along, LANES)
        if EVEN:
            if RUN % TOKENS == 0:
                mine = tl.load(own_at + moved)
            else:
                mine = tl.load(own_at + moved, (token < RUN - along)[:, None], other=0)
        else:  # some lanes have a row less
            there = (token < RUN - along) & (token % LANES * PER_LANE + inner < BLOCK_ROWS)
            mine = tl.load(own_at + moved, there[:, None], other=0)
        upper = tl.dot(tl.load(neighbour_at + moved), mine, upper, out_dtype=tl.int32)
        lower = tl.dot(tl.load(neighbour_at + PLANE + moved), mine, lower, out_dtype=tl.int32)

    high_high, high_low = tl.split(tl.reshape(upper, [TILE, PADDED, 2]))
    low_high, low_low = tl.split(tl.reshape(lower, [TILE, PADDED, 2]))
    total = high_high.to(tl.int64) * 65536 + (high_low + low_high).to(tl.int64) * 256 + low_low.to(tl.int64)
    line = tile * TILE + tl.arange(0, TILE)
    column = tl.arange(0, PADDED)
    target = found + ((image * SH + residue) * (NEIGHBOURS + 1) + line[:, None]) * PIXELS + column[None, :]
    inside = (line <= NEIGHBOURS)[:, None] & (column < PIXELS)[None, :]
    if ADD:
        tl.atomic_add(target, total.to(tl.float64), inside, sem="relaxed")
    else:
        tl.store(target, total.to(tl.float64), inside)


@operation(
    "weigh", lambda found, gram, scale, channels, stride, *_: found.new_empty((found.shape[0], stride[0] * stride[1]))
)
def weigh(
    found: Tensor, gram: Tensor, scale: Tensor, channels: int, stride: list[int], kernel: list[int],
    padding: list[int], tokens: int, digits: list[int],
) -> Tensor:  # fmt: skip
    """The energies ``[B, sh * sw]`` from the products, ``[E, b, E 1]^T [E, b, E 1]`` and the images' centres and units.

    Args:
        digits: bits of a digit of the products, of the weights and of ``E^T b_c``.
    """
    images, phases = found.shape[0], stride[0] * stride[1]
    energy = found.new_empty((images, phases))
    size = channels * kernel[0] * kernel[1]
    together = min(16 if INTERPRETED else 4, power_of_two(phases))
    images_together = 4 if images >= 64 or INTERPRETED else 1
    _weigh[(blocks_in(images, images_together), blocks_in(phases, together))](
        found, gram, scale, energy, images, gram.stride(0), tokens,
        channels, *stride, *kernel, *padding, found.shape[2] - 1, size, power_of_two(size), *digits,
        images_together, together, 4096 if INTERPRETED else 128, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return energy


@launched
@triton.jit
def _weigh(
    found, gram, scale, energy, images, step, tokens,
    CHANNELS: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, NEIGHBOURS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    PRODUCT_DIGIT: tl.constexpr, WEIGHT_DIGIT: tl.constexpr, PULL_DIGIT: tl.constexpr,
    IMAGES: tl.constexpr, PHASES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some phases of some images."""
    image = (tl.program_id(0) * IMAGES + tl.arange(0, IMAGES)).to(tl.int64)
    phase = tl.program_id(1) * PHASES + tl.arange(0, PHASES)
    here = image < images
    phase_row, phase_column = (phase // SW)[:, None], (phase % SW)[:, None]
    pixels: tl.constexpr = SW * CHANNELS
    across: tl.constexpr = SW + 2 * (KW - 1)
    per_image: tl.constexpr = SH * (NEIGHBOURS + 1) * pixels

    tap = tl.arange(0, PADDED)
    diagonal = tl.max(tl.load(gram + tap * (step + 1), tap < SIZE, other=0.0), 0)
    exponent = _power_of_two_above(diagonal)
    to_integer = ((2046 - exponent + 2 * WEIGHT_DIGIT) << 52).to(tl.float64, bitcast=True)
    weight_unit = ((exponent - 2 * WEIGHT_DIGIT) << 52).to(tl.float64, bitcast=True)

    product_digit: tl.constexpr = 2.0**PRODUCT_DIGIT
    weight_digit: tl.constexpr = 2.0**WEIGHT_DIGIT
    low_low = tl.zeros([IMAGES, PHASES, BLOCK], tl.float64)
    low_high = tl.zeros([IMAGES, PHASES, BLOCK], tl.float64)
    high_low = tl.zeros([IMAGES, PHASES, BLOCK], tl.float64)
    high_high = tl.zeros([IMAGES, PHASES, BLOCK], tl.float64)
    for start in range(0, per_image, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < per_image
        pixel = at % pixels
        neighbour = at // pixels % (NEIGHBOURS + 1)
        row = at // (pixels * (NEIGHBOURS + 1))
        own_channel, column = pixel % CHANNELS, pixel // CHANNELS
        channel = neighbour % CHANNELS
        right = neighbour // CHANNELS % across - (KW - 1) - column
        down = neighbour // (CHANNELS * across)
        # the taps at which a phase sees this pixel, and its neighbour too
        low = tl.zeros([PHASES, BLOCK], tl.float64)
        high = tl.zeros([PHASES, BLOCK], tl.float64)
        for further_down in tl.static_range((KH + SH - 1) // SH):
            for further_right in tl.static_range((KW + SW - 1) // SW):
                tap_row = (row[None, :] - phase_row + (PH + SH)) % SH + further_down * SH
                tap_column = (column[None, :] - phase_column + (PW + SW)) % SW + further_right * SW
                seen = (tap_row + down[None, :] < KH) & (tap_column < KW)
                seen = seen & (tap_column + right[None, :] < KW) & (tap_column + right[None, :] >= 0)
                seen = seen & (inside & (neighbour < NEIGHBOURS))[None, :]
                first = (own_channel[None, :] * KH + tap_row) * KW + tap_column
                second = (channel[None, :] * KH + tap_row + down[None, :]) * KW + tap_column + right[None, :]
                whole = _round(tl.load(gram + first * step + second, seen, other=0.0) * to_integer)
                upper = tl.floor(whole * (1.0 / weight_digit))
                high += upper
                low += whole - upper * weight_digit
        twice = tl.where(down > 0, 2.0, 1.0).to(tl.float64)[None, :]  # for the opposite displacement
        low, high = (low * twice)[None, :, :], (high * twice)[None, :, :]
        where = found + image[:, None] * per_image + at[None, :]
        value = tl.load(where, here[:, None] & inside[None, :], other=0.0)
        upper = tl.floor(value * (1.0 / product_digit))
        lower = (value - upper * product_digit)[:, None, :]
        upper = upper[:, None, :]
        low_low += lower * low
        low_high += lower * high
        high_low += upper * low
        high_high += upper * high
    square = tl.sum(low_low, 2) + tl.sum(low_high, 2) * weight_digit
    square = square + tl.sum(high_low, 2) * product_digit
    square = square + tl.sum(high_high, 2) * (product_digit * weight_digit)

    centre = tl.load(scale + image * 2, here, other=0.0)
    unit = tl.load(scale + image * 2 + 1, here, other=1.0)
    pull = tl.load(gram + tap * step + SIZE, tap < SIZE, other=0.0)[None, :]
    pull = pull + centre[:, None] * tl.load(gram + tap * step + SIZE + 1, tap < SIZE, other=0.0)[None, :]
    exponent = _power_of_two_above(tl.max(tl.abs(pull), 1))
    to_integer = ((2046 - exponent + 2 * PULL_DIGIT) << 52).to(tl.float64, bitcast=True)
    pull_unit = ((exponent - 2 * PULL_DIGIT) << 52).to(tl.float64, bitcast=True)
    whole = _round(pull * to_integer[:, None])
    pull_digit: tl.constexpr = 2.0**PULL_DIGIT
    upper = tl.floor(whole * (1.0 / pull_digit))
    lower = whole - upper * pull_digit
    tap_row, tap_column, channel = tap // KW % KH, tap % KW, tap // (KH * KW)
    row = (phase_row + tap_row[None, :] + (SH - PH % SH)) % SH
    column = (phase_column + tap_column[None, :] + (SW - PW % SW)) % SW
    spot = (row * (NEIGHBOURS + 1) + NEIGHBOURS) * pixels + column * CHANNELS + channel[None, :]  # PHASES, PADDED
    present = here[:, None, None] & (tap < SIZE)[None, None, :]
    sums = tl.load(found + image[:, None, None] * per_image + spot[None, :, :], present, other=0.0)
    linear = tl.sum(sums * lower[:, None, :], 2) + tl.sum(sums * upper[:, None, :], 2) * pull_digit

    offset = tl.load(gram + SIZE * step + SIZE)
    both = tl.load(gram + SIZE * step + SIZE + 1)
    ones = tl.load(gram + (SIZE + 1) * step + SIZE + 1)
    constant = offset + 2 * centre * both + centre * centre * ones
    square = square * (unit * unit * weight_unit)[:, None]
    linear = linear * (2 * unit * pull_unit)[:, None]
    total = square + linear + (tokens * constant)[:, None]
    target = energy + image[:, None] * (SH * SW) + phase[None, :]
    tl.store(target, total, here[:, None] & (phase < SH * SW)[None, :])
