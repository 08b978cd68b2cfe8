"""Maps in the frame of the image: what a user of timm's features expects, and where its tokens really stand."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.resample import resample
from ..ops.geometry.shift import circular_shift


def in_image_frame(tokens: Tokens) -> Tokens:
    """Roll the tokens so that the first is the one that starts within the first cell of the image.

    Shift law: a shift by a multiple of the stride rolls the map by whole tokens; the origin keeps the rest.
    """
    stride = tokens.grid.stride
    rows, columns = tokens.grid.origin[:, 0], tokens.grid.origin[:, 1]
    whole = torch.stack([rows // stride[0], columns // stride[1]], 1)
    rest = torch.stack([rows % stride[0], columns % stride[1]], 1)
    grid = TokenGrid(stride, rest, tokens.grid.image_size)
    return Tokens(circular_shift(tokens.values, -whole), grid, tokens.prefix)


def on_fixed_grid(tokens: Tokens) -> Tokens:
    """Interpolate to where the tokens of an ordinary network stand."""
    grid = tokens.grid
    return resample(tokens, TokenGrid(grid.stride, torch.zeros_like(grid.origin), grid.image_size))


FRAMES: dict[str, Callable[[Tokens], Tokens]] = {"stride": in_image_frame, "pixel": on_fixed_grid}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "NCHW": lambda values: values.permute(0, 3, 1, 2),
    "NHWC": lambda values: values,
    "NLC": lambda values: values.flatten(1, 2),
}
