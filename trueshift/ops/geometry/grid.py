"""Where tokens lie: a feature map together with its place in the image.

    token (i, j) of a feature map sits at input pixel  (origin + stride * (i, j)) mod (H, W)

All the choices a network has made so far add up to that one pair of integers per image, so nothing else has to travel.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.utils._pytree import tree_map

from .shift import Pair, circular_shift, pair, spread_out


@dataclass(frozen=True)
class TokenGrid:
    """A regular grid on a circular image, at another origin for each image of the batch.

    ``origin`` is the nominal start of the first patch, whatever padding its convolution had. ``anchored`` says that the
    first token was chosen by the content: the values on the grid are then the same whatever the shift, bit for bit.
    ``fixed_rows`` says that rows are ordinary: no choice moves them, and they do not go around. ``spot`` is the pixel
    on which all further grids are to start, where there is one (:class:`~trueshift.criteria.Spot`). ``window``
    is the size of the windows, where one starts at the first token (:class:`~trueshift.layers.AlignWindows`).

    Shift law: the grid of ``S^t x`` has the origin of ``x``'s grid minus ``t``, modulo the image's size.

    >>> grid = trueshift.TokenGrid.of_image(torch.rand(1, 3, 32, 32)).advance(torch.tensor([[1, 2]]), 4)
    >>> grid.stride, grid.origin.tolist(), grid.shape
    ((4, 4), [[1, 2]], (8, 8))
    """

    stride: Pair
    origin: Int[Tensor, "B 2"]
    image_size: Pair
    anchored: bool = False
    fixed_rows: bool = False
    spot: Int[Tensor, "B 2"] | None = None
    window: Pair | None = None

    @classmethod
    def of_image(cls, x: Shaped[Tensor, "B C H W"], fixed_rows: bool = False) -> "TokenGrid":
        """The grid of the pixels themselves."""
        origin = x.new_zeros((x.shape[0], 2), dtype=torch.int64)
        return cls((1, 1), origin, (x.shape[2], x.shape[3]), fixed_rows=fixed_rows)

    @property
    def shape(self) -> Pair:
        """Rows and columns of tokens."""
        return self.image_size[0] // self.stride[0], self.image_size[1] // self.stride[1]

    def advance(
        self,
        offset: Int[Tensor, "B 2"],
        factor: int | Pair = 1,
        anchored: bool = False,
        spot: Int[Tensor, "B 2"] | None = None,
        window: Pair | None = None,
    ) -> "TokenGrid":
        """The grid of every ``factor``-th token, from the token at ``offset`` on; anchor and spot stay."""
        factor = pair(factor)
        if self.stride[0] == self.stride[1] and self.image_size[0] == self.image_size[1]:  # both axes at once
            origin = torch.add(self.origin, offset, alpha=self.stride[0]) % self.image_size[0]
        else:
            rows = (self.origin[:, 0] + offset[:, 0] * self.stride[0]) % self.image_size[0]
            columns = (self.origin[:, 1] + offset[:, 1] * self.stride[1]) % self.image_size[1]
            origin = torch.stack([rows, columns], 1)
        stride = (self.stride[0] * factor[0], self.stride[1] * factor[1])
        spot = self.spot if spot is None else spot
        return TokenGrid(stride, origin, self.image_size, self.anchored or anchored, self.fixed_rows, spot, window)

    def token_at(self, pixel: Int[Tensor, "B 2"]) -> Int[Tensor, "B 2"]:
        """Row and column of the token whose patch holds a pixel, of each image."""
        along = [(pixel[:, axis] - self.origin[:, axis]) % self.image_size[axis] for axis in (0, 1)]
        return torch.stack([distance // step for distance, step in zip(along, self.stride, strict=True)], 1)


@dataclass(frozen=True)
class Tokens:
    """Values ``[B, h, w, C]`` and the grid they lie on.

    Attributes:
        prefix: tokens without a position, such as a class token.
        before_norm: the values before the norm they just passed, where there was one. After it, all tokens have about
            the same energy, so a choice by energy looks at these.

    >>> tokens = trueshift.create_model("a_swin_mini").eval().features(torch.rand(1, 3, 32, 32))[0]
    >>> tokens.values.shape, tokens.grid.stride
    (torch.Size([1, 16, 16, 64]), (2, 2))
    """

    values: Float[Tensor, "B h w C"]
    grid: TokenGrid
    prefix: Float[Tensor, "B n C"] | None = None
    before_norm: Float[Tensor, "B h w C"] | None = None

    def __post_init__(self) -> None:
        if self.values.dim() != 4:
            raise ValueError(f"token values of shape {tuple(self.values.shape)}: needs [B, h, w, C]")
        if tuple(self.values.shape[1:3]) != self.grid.shape:
            of_grid = f"{self.grid.shape} (image {self.grid.image_size}, stride {self.grid.stride})"
            raise ValueError(f"{tuple(self.values.shape[1:3])} tokens on a grid of {of_grid}")

    @property
    def scored(self) -> Float[Tensor, "B h w C"]:
        """What a choice by energy looks at."""
        return self.values if self.before_norm is None else self.before_norm

    @classmethod
    def of_image(cls, x: Float[Tensor, "B C H W"], fixed_rows: bool = False) -> "Tokens":
        """One token for each pixel, in its place."""
        return cls(x.permute(0, 2, 3, 1), TokenGrid.of_image(x, fixed_rows))


def place(tokens: Tokens) -> Float[Tensor, "B H W C"]:
    """Put each token at its absolute pixel, zeros elsewhere.

    Shift law: if the tokens moved with the image, ``place(tokens of S^t x) == S^t place(tokens of x)``: two feature
    maps can be compared without searching for the shift between them.

    >>> trueshift.place(trueshift.AdaptiveTokenize(3, 16, 4)(torch.rand(1, 3, 32, 32))).shape
    torch.Size([1, 32, 32, 16])
    """
    return circular_shift(spread_out(tokens.values, tokens.grid.stride), -tokens.grid.origin)


for _structure, _name in ((TokenGrid, "trueshift.TokenGrid"), (Tokens, "trueshift.Tokens")):
    torch.export.register_dataclass(_structure, serialized_type_name=_name)


def displacements(grids: int, stride: Pair, device: torch.device | None = None) -> Int[Tensor, "grids 2"]:
    """So many offsets within one patch, evenly spread."""
    divisors = [[part for part in range(1, step + 1) if step % part == 0] for step in stride]
    by_evenness = sorted(product(*divisors), key=lambda split: (min(split), split[0] <= split[1]))
    splits = {rows * columns: (rows, columns) for rows, columns in by_evenness}
    if grids not in splits:
        known = ", ".join(map(str, sorted(splits)))
        raise ValueError(f"{grids} grids: needs one of {known} for patches of {stride[0]} x {stride[1]} pixels")
    along = zip(stride, splits[grids], strict=True)
    return torch.cartesian_prod(*[torch.arange(0, step, step // count, device=device) for step, count in along])


def mean_of_each(output: Any, count: int) -> Any:
    """The mean of ``count`` outputs for each image, side by side in a batch.

    What is not a tensor, or one number for the whole batch, such as a loss, stays as it is.
    """

    def mean(part: Any) -> Any:
        if not isinstance(part, Tensor) or part.dim() == 0:
            return part
        if not part.is_floating_point():
            raise TypeError(f"an output of {part.dtype} has no mean: needs a model that gives logits")
        return part.unflatten(0, (-1, count)).mean(1)

    return tree_map(mean, output)


def repeat_each(given: Any, images: int, count: int) -> Any:
    """Arguments for ``count`` views of each image: tensors with a row for each image are repeated."""

    def repeated(part: Any) -> Any:
        if isinstance(part, Tensor) and part.dim() and part.shape[0] == images:
            return part.repeat_interleave(count, 0)
        return part

    return tree_map(repeated, given)
