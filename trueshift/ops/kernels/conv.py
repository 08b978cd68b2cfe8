"""Cut images into the patches of a strided convolution, from each image's own start, in one pass over the pixels.

With all pixels of a patch in a row, the convolution is a product of matrices, and its result has channels last.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from ..geometry.shift import Pair
from ..nn.autocast import network_precision
from . import operation
from .launching import blocks_in, launched, power_of_two


@launched
@triton.jit
def _cut(
    image, start, out, of_image, of_channel, of_row, of_column, height, width, tokens, count, wide,
    rows: tl.constexpr, columns: tl.constexpr, step_down: tl.constexpr, step_right: tl.constexpr,
    up: tl.constexpr, left: tl.constexpr, channels: tl.constexpr,
    T: tl.constexpr, K: tl.constexpr, circular: tl.constexpr, started: tl.constexpr,
):  # fmt: skip
    token, k = tl.program_id(0) * T + tl.arange(0, T), tl.arange(0, K)
    number = token // tokens
    place = token % tokens
    per_row = width // step_right
    row, column = place // per_row * step_down - up, place % per_row * step_right - left
    exists = token < count
    channel, inside = k // (rows * columns), k % (rows * columns)
    y, x = row[:, None] + (inside // columns)[None, :], column[:, None] + (inside % columns)[None, :]
    here = exists[:, None] & (channel < channels)[None, :]
    if not circular:
        here = here & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    if started:
        y += tl.load(start + 2 * number, exists, 0).to(tl.int32)[:, None]
        x += tl.load(start + 2 * number + 1, exists, 0).to(tl.int32)[:, None]
    y, x = (y + height) % height, (x + width) % width
    at = number.to(tl.int64)[:, None] * of_image + channel[None, :] * of_channel + y * of_row + x * of_column
    pixel = tl.load(image + at, here, 0.0)
    to = token.to(tl.int64)[:, None] * wide + k[None, :]
    tl.store(out + to, pixel.to(out.dtype.element_ty), exists[:, None] & (k < wide)[None, :])


def project_patches(
    image: Tensor, conv: nn.Conv2d, start: Tensor, stride: Pair, padding: Pair, mode: str = "circular"
) -> Tensor:
    """Patches, then one matrix product. No gradient flows to the image."""
    kernel, dtype = [conv.kernel_size[0], conv.kernel_size[1]], network_precision(image)
    patches = cut_patches(image.detach(), start, kernel, list(stride), list(padding), mode == "circular", dtype)
    weight = conv.weight.flatten(1)
    return F.linear(patches, F.pad(weight, (0, patches.shape[3] - weight.shape[1])), conv.bias)


def _patches(image, start, kernel, stride, padding, circular, dtype) -> Tensor:
    """Rows are a few zeros longer than a patch, so that they begin at whole lines of memory."""
    length = blocks_in(image.shape[1] * kernel[0] * kernel[1], 16) * 16
    shape = (image.shape[0], image.shape[2] // stride[0], image.shape[3] // stride[1], length)
    return image.new_empty(shape, dtype=dtype)


@operation("cut_patches", _patches)
def cut_patches(
    image: Tensor, start: Tensor | None, kernel: list[int], stride: list[int], padding: list[int], circular: bool,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The pixels of each patch in a row ``[B, h, w, K]``, ordered as a convolution's weights, zeros after them."""
    images, channels, height, width = image.shape
    out = _patches(image, start, kernel, stride, padding, circular, dtype)
    tokens, wide = out.shape[1] * out.shape[2], out.shape[3]
    block = power_of_two(wide)
    rows = max(1, 4096 // block)
    _cut[(blocks_in(images * tokens, rows),)](
        image, start, out, *image.stride(), height, width, tokens, images * tokens, wide,
        *kernel, *stride, *padding, channels, rows, block, circular, start is not None, num_warps=4,
    )  # fmt: skip
    return out
