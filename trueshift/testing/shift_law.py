"""Assert the shift law of any module, and say where it first breaks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from ..ops.geometry.grid import TokenGrid, Tokens, place
from ..ops.geometry.shift import IMAGE_DIMS, Pair, circular_shift, fixes_rows
from ..ops.selection.content_hash import first_row, origin_keys
from .images import hostile_images

Module = Callable[[Any], Any]


class Options(TypedDict, total=False):
    """Options of both assertions."""

    shifts: int | str  # how many random ones, 64 by default, or "all"
    tolerance: float  # largest absolute difference to accept, 0 by default
    channels: int  # of hostile images, 3 by default
    size: int | Pair  # of hostile images, 32 by default
    seed: int
    circular: str  # "width" for shifts of columns alone, "both" by default


def assert_equivariant(module: Module, x: Tensor | Tokens | None = None, **options: Unpack[Options]) -> None:
    """Assert that the output moves with the input: ``f(S x) == S f(x)``, bit for bit unless a tolerance is given.

    Tokens are compared by the pixels at which they lie, so a layer that chooses its grid by content passes, and
    aligned ones (:class:`~trueshift.AlignWindows`) by those at which their windows start; their prefix (a class token)
    stays as it is. An input that repeats has several grids with the same content; any of them is accepted.

    Args:
        module: takes an image batch ``[B, C, H, W]`` or :class:`Tokens`; gives Tokens, dense maps ``[B, D, H, W]``, or
            a list or tuple of these.
        x: what to shift; hostile images of ``channels`` and ``size`` if not given. Every image of the batch moves
            on its own. Tokens are given as not anchored, since a layer may take it that anchored ones never move.
    """
    _assert_law(True, module, x, **options)


def assert_invariant(module: Module, x: Tensor | Tokens | None = None, **options: Unpack[Options]) -> None:
    """Assert that the output does not change when the input moves: ``f(S x) == f(x)``.

    Arguments as :func:`assert_equivariant`; the output is a tensor with the batch first, or several. The values of
    Tokens count, wherever they lie.
    """
    _assert_law(False, module, x, **options)


@dataclass(frozen=True)
class _Part:
    """One tensor of an output, the batch first, whether it moves, and the grid it lies on if it is tokens."""

    values: Tensor
    moves: bool
    grid: TokenGrid | None = None

    def kept(self) -> "_Part":
        return replace(self, values=self.values.clone())

    def shifted(self, pixels: Tensor) -> "_Part":
        if not self.moves:
            return self
        grid = self.grid and TokenGrid(self.grid.stride, self.grid.origin - pixels, self.grid.image_size)
        return _Part(circular_shift(self.values, pixels), True, grid)


@torch.no_grad()
def _assert_law(
    moves: bool,
    module: Module,
    x: Tensor | Tokens | None,
    *,
    shifts: int | str = 64,
    tolerance: float = 0.0,
    channels: int = 3,
    size: int | Pair = 32,
    seed: int = 0,
    circular: str = "both",
) -> None:
    names: list[str] = []
    if x is None:
        images = hostile_images(size, channels)
        names, x = list(images), torch.stack(list(images.values()))
    if isinstance(x, Tensor) and x.dim() != 4:
        raise ValueError(f"an input of shape {tuple(x.shape)}: needs images [B, C, H, W] or Tokens")
    values, grid = (x.values, x.grid) if isinstance(x, Tokens) else (x.permute(0, 2, 3, 1), TokenGrid.of_image(x))
    stride, fixed_rows = torch.tensor(grid.stride, device=values.device), fixes_rows(circular)
    keys = first_row(origin_keys(values), fixed_rows)
    extent = grid.image_size if moves else None
    still = torch.zeros(len(values), 2, dtype=torch.int64, device=values.device)
    # copies: a module may write into its input, or give out the same buffer
    expected = [part.kept() for part in _parts(module(_shift(x, still)), extent)]
    if not expected:
        raise AssertionError("the module returned no tensor: nothing to compare")
    broken, tried, first = 0, 0, ""
    for offset in _offsets(shifts, len(values), (1 if fixed_rows else grid.shape[0], grid.shape[1]), seed):
        tried += 1
        offset = offset.to(values.device)
        want = [part.shifted(offset * stride) for part in expected]
        got = list(_parts(module(_shift(x, offset)), extent))
        wrong = _differing(want, got, tolerance)
        if moves:
            periods = {image: (keys[image] == keys[image, 0, 0]).nonzero() * stride for image in wrong}
            wrong = [image for image in wrong if not _repeats(want, got, image, periods[image], tolerance)]
        broken += bool(wrong)
        if wrong and not first:
            first = _describe(want, got, wrong[0], offset * stride, names, tolerance)
    if broken:
        law = "f(S x) = S f(x)" if moves else "f(S x) = f(x)"
        raise AssertionError(f"{law} does not hold for {broken} of {tried} shifts of the batch.\n{first}")


def _parts(output: Any, extent: Pair | None) -> Iterator[_Part]:
    """All tensors of an output; those that move over the pixels of an input of this extent as maps ``[B, H, W, D]``."""
    if isinstance(output, list | tuple):
        for part in output:
            yield from _parts(part, extent)
    elif isinstance(output, Tokens):
        yield _Part(output.values, False) if extent is None else _Part(place(output), True, output.grid)
        if extent is not None and output.grid.window is not None:  # place shows where tokens lie, not their windows
            first = torch.zeros_like(output.values[..., :1])
            first[:, :: output.grid.window[0], :: output.grid.window[1]] = 1
            yield _Part(place(Tokens(first, output.grid)), True, output.grid)
        if output.prefix is not None:
            yield _Part(output.prefix, False)
    elif isinstance(output, Tensor):
        yield _Part(output, False) if extent is None else _dense(output, extent)
    else:
        raise TypeError(f"the module returned {type(output).__name__}: needs tensors or Tokens")


def _dense(output: Tensor, extent: Pair) -> _Part:
    if output.dim() != 4 or tuple(output.shape[2:]) != extent:
        raise AssertionError(
            f"a dense output of shape {tuple(output.shape)} does not lie on the {extent[0]} x {extent[1]} pixels "
            "of the input, so its shift is not defined; return Tokens, which say where they lie"
        )
    return _Part(output.permute(0, 2, 3, 1), True)


def _repeats(want: list[_Part], got: list[_Part], image: int, period: Tensor, tolerance: float) -> bool:
    """Whether the input repeats and the output differs by one of its periods, the same for all parts."""
    for a, b in zip(want, got, strict=True):
        if a.grid is not None and b.grid is not None:  # only these periods bring the two grids together
            stride, extent = (torch.tensor(each, device=period.device) for each in (a.grid.stride, a.grid.image_size))
            apart = a.grid.origin[image] - b.grid.origin[image]
            period = period[((apart - period) % stride == 0).all(1)]
            same_origin = ((apart - period) % extent == 0).all(1)
            period = period[same_origin.to(torch.uint8).argsort(descending=True)]  # most likely first
    return any(
        all(
            _agree(_Part(a.values[[image]], a.moves).shifted(step[None]).values, b.values[[image]], tolerance)
            for a, b in zip(want, got, strict=True)
        )
        for step in period
    )


def _shift(x: Tensor | Tokens, offset: Tensor) -> Tensor | Tokens:
    if isinstance(x, Tensor):
        return circular_shift(x, offset, IMAGE_DIMS)
    before_norm = None if x.before_norm is None else circular_shift(x.before_norm, offset)
    # what is moved is in no frame that its content chose, and a spot moves along
    pixels = offset * torch.tensor(x.grid.stride, device=offset.device)
    spot = None if x.grid.spot is None else x.grid.spot - pixels
    grid = replace(x.grid, anchored=False, spot=spot, window=None)
    return replace(x, values=circular_shift(x.values, offset), grid=grid, before_norm=before_norm)


def _offsets(shifts: int | str, batch: int, size: Pair, seed: int) -> Iterator[Tensor]:
    """One offset per image at a time. ``"all"``: every image goes through every shift, each from another start."""
    generator = torch.Generator().manual_seed(seed)
    total = size[0] * size[1]
    if shifts == "all":
        start = torch.randint(total, (batch,), generator=generator)
        for step in range(total):
            flat = (start + step) % total
            yield torch.stack([flat // size[1], flat % size[1]], 1)
        return
    if not isinstance(shifts, int) or shifts < 1:
        raise ValueError(f"shifts = {shifts!r}: needs a positive number or 'all'")
    for _ in range(shifts):
        yield torch.stack([torch.randint(n, (batch,), generator=generator) for n in size], 1)


def _difference(want: Tensor, got: Tensor) -> Tensor:
    """Absolute difference in float64; NaN against NaN is equal, NaN against a number is infinitely wrong."""
    wide = torch.complex128 if want.is_complex() or got.is_complex() else torch.float64
    difference = (want.to(wide) - got.to(wide)).abs()
    same = (want == got) | (want.isnan() & got.isnan())  # infinities too
    difference = torch.where(same, 0.0, difference.clamp_min(torch.finfo(torch.float64).tiny))  # of large integers too
    return difference.nan_to_num(nan=float("inf"), posinf=float("inf"))


def _agree(want: Tensor, got: Tensor, tolerance: float) -> bool:
    return torch.equal(want, got) or bool((_difference(want, got) <= tolerance).all())


def _differing(want: list[_Part], got: list[_Part], tolerance: float) -> list[int]:
    """The images for which some part differs."""
    if len(want) != len(got):
        raise AssertionError(f"{len(got)} outputs after a shift, {len(want)} before")
    wrong: set[int] = set()
    for number, (a, b) in enumerate(zip(want, got, strict=True)):
        if a.values.shape != b.values.shape:
            shapes = f"{tuple(b.values.shape)} after a shift, {tuple(a.values.shape)} before"
            raise AssertionError(f"output {number} has shape {shapes}")
        if a.values.dim() == 0:
            raise AssertionError(f"output {number} is a single number: needs the batch first")
        suspects = (a.values != b.values).reshape(len(a.values), -1).any(1).nonzero().flatten().tolist()
        wrong.update(image for image in suspects if not _agree(a.values[image], b.values[image], tolerance))
    return sorted(wrong)


def _describe(
    want: list[_Part], got: list[_Part], image: int, pixels: Tensor, names: list[str], tolerance: float
) -> str:
    parts = enumerate(zip(want, got, strict=True))
    differences = ((number, a, b, _difference(a.values[image], b.values[image])) for number, (a, b) in parts)
    number, a, b, difference = next(found for found in differences if bool((found[3] > tolerance).any()))
    where = tuple(int(i) for i in (difference > tolerance).nonzero()[0])
    share = float((difference > tolerance).double().mean())
    return (
        f"First break: image {image}{f' ({names[image]})' if names else ''} shifted by "
        f"{tuple(int(p) for p in pixels[image])}, output {number} at {where}: expected "
        f"{a.values[image][where].item()!r}, got {b.values[image][where].item()!r}. "
        f"In that image {share:.1%} of the values differ, by up to {float(difference.max()):.3g}."
    )
