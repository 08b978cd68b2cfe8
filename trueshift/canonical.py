"""Any image model, made exact under circular shifts from outside: show it the image in a frame that does not move."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Real
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .layers.checks import check_image
from .layers.frame import FrameFinder
from .layers.patch_conv import FrameConv
from .ops.geometry.periodic import repeated, whether_repeating
from .ops.geometry.shift import IMAGE_DIMS, Pair, circular_shift, fixes_rows
from .ops.nn.autocast import without_autocast
from .ops.selection.content_hash import first_row, origin_keys
from .ops.selection.quantised_image import Pixels
from .ops.selection.seam import start_on_seam
from .utils.async_copy import AsyncCopy
from .utils.wrappers import unwrapped

Back = Callable[[Any, Tensor, Pair], Any]
DENSE = (False, True, "pixel")


@torch.no_grad()
def canonical_origin(
    image: Float[Tensor, "B C H W"], finder: FrameFinder | None = None, circular: str = "both"
) -> Int64[Tensor, "B 2"]:
    """The pixel at which the image should start: its border, and the content itself where several look like it.

    Usually the corner of the photograph as it was taken. With ``circular="width"`` it lies in the first row.

    Shift law: ``canonical_origin(S^t x) == canonical_origin(x) - t`` modulo the size, up to a period of the image.
    """
    with without_autocast(image):
        pixels, fixed_rows = image.permute(0, 2, 3, 1), fixes_rows(circular)
        rows, columns = (finder or FrameFinder().to(image.device))(Pixels(pixels))
        rows = torch.zeros_like(rows[:, :1]) if fixed_rows else rows
        first = image.new_zeros((image.shape[0], 2), dtype=torch.int64)
        return start_on_seam(
            rows, columns, first, (1, 1), lambda needed: first_row(origin_keys(pixels, needed), fixed_rows)
        )


def origin(model: nn.Module, image: Float[Tensor, "B C *T H W"]) -> Int64[Tensor, "B 2"]:
    """Row and column of the pixel at which the model's frame starts, of each image.

    For what :func:`canonicalize` gave, and what :func:`~trueshift.adapt` gave where it kept the network's class.

    Shift law: ``origin(model, S^t x) == origin(model, x) - t`` modulo the size, up to a period of the image.

    >>> image = torch.rand(1, 3, 32, 32)
    >>> model = trueshift.canonicalize(torch.nn.Identity())
    >>> bool((model(image)[0, :, 0, 0] == image[0, :, *trueshift.origin(model, image)[0]]).all())
    True
    """
    for part in model.modules():
        if isinstance(part, FrameConv | Canonicalize):
            return part.origin(image)
    raise TypeError(
        f"a {type(model).__name__} chooses no frame: needs canonicalize(model), or an adapted network that kept its "
        "class; those of trueshift's own models are in model.features(image)"
    )


class ImageWrapper(nn.Module):
    """A model that is shown something else than the image that was given, first or as ``pixel_values``.

    ``respond(model, image, ...)`` calls the model, which takes its image where the wrapper's was given.
    """

    model: nn.Module
    respond: Callable[..., Any]

    def forward(self, image: Float[Tensor, "B C H W"] | None = None, *args: Any, **kwargs: Any) -> Any:
        """The model's output on what it is shown."""
        named = image is None  # as transformers calls it
        image = kwargs.pop("pixel_values", None) if image is None else image
        if image is None:
            raise TypeError("no image was given: needs [B, C, H, W] as the first argument, or as pixel_values")
        check_image(image, image.shape[1] if getattr(image, "ndim", 0) == 4 else 3, (1, 1))

        def model(shown: Tensor, *more: Any, **words: Any) -> Any:
            return self.model(*more, pixel_values=shown, **words) if named else self.model(shown, *more, **words)

        return self.respond(model, image, *args, **kwargs)


class Canonicalize(ImageWrapper):
    """See :func:`canonicalize`."""

    def __init__(self, model: nn.Module, dense: bool | str | Back, circular: str = "both") -> None:
        super().__init__()
        if not callable(dense) and dense not in DENSE:
            raise ValueError(f"dense {dense!r}: needs one of {DENSE}, or a function of (output, origin, size)")
        fixes_rows(circular)  # refuses another name
        self.model = model
        self.dense, self.circular = dense, circular
        self.frame = FrameFinder()

    @property
    def _chooses(self) -> FrameConv | None:
        """The model's own patch embedding, if that chooses the frame."""
        return next((part for part in self.model.modules() if isinstance(part, FrameConv)), None)

    def origin(self, image: Float[Tensor, "B C H W"]) -> Int64[Tensor, "B 2"]:
        """Where the model's frame starts: where its own patch embedding says, if that chooses."""
        chooses = self._chooses
        return canonical_origin(image, self.frame, self.circular) if chooses is None else chooses.origin(image)

    def respond(self, model: Callable[..., Any], image: Float[Tensor, "B C H W"], *args: Any, **kwargs: Any) -> Any:
        """The model's output on the image in its canonical frame; dense maps rolled back to the image's own."""
        start, size = self.origin(image), (image.shape[2], image.shape[3])
        moved = circular_shift(image, start, IMAGE_DIMS)
        if not self.dense:
            return model(moved, *args, **kwargs)
        # maps of an image that repeats need not if something else lies on the pixels
        alone = not any(_lies_on(part, size) for part in tree_leaves((args, kwargs)))
        repeats = whether_repeating(image) if alone else None
        along = partial(_along, start, size)  # what lies on the pixels moves along
        output = model(moved, *map(along, args), **{name: along(given) for name, given in kwargs.items()})
        if callable(self.dense):
            return self.dense(output, start, size)
        parts, structure = tree_flatten(output)
        declared = getattr(unwrapped(self.model), "output_fmt", None) == "NHWC"  # as timm's Swin does
        last = [
            isinstance(part, Tensor) and part.dim() == 4 and (declared or _ends_in_channels(part, size))
            for part in parts
        ]
        maps = to_image_frame(_permuted(parts, last, (0, 3, 1, 2)), start, size, self.dense == "pixel")
        maps = self._repeated(maps, image, start, repeats)
        return tree_unflatten(_permuted(maps, last, (0, 2, 3, 1)), structure)

    def _repeated(self, output: Any, image: Tensor, start: Tensor, repeats: AsyncCopy | None) -> Any:
        """Maps of images that repeat, with one period repeated: in the frame, the model may say several things."""
        size, chooses = (image.shape[2], image.shape[3]), self._chooses
        fixed_rows = fixes_rows(self.circular) if chooses is None else chooses.fixed_rows

        def each(part: Any) -> Any:
            if not _lies_on(part, size):
                return part
            return repeated(part.reshape(len(part), -1, *size), image, start, fixed_rows, repeats).view_as(part)

        return output if repeats is None else tree_map(each, output)


def canonicalize(model: nn.Module, dense: bool | str | Back = False, circular: str = "both") -> Canonicalize:
    """Wrap any image model so that its answer does not change under circular shifts, weights untouched.

    Each image is rolled to its canonical frame, the model runs on that, and dense output is rolled back. The frame is
    found exactly, so the model sees the same tensor whatever the shift. Where it is not the photograph's own, the model
    sees a rolled image it was not trained on. Under ordinary shifts, where content leaves the frame, the frame may jump
    (``docs/exactness.md`` has numbers), and the model is as sensitive as it was.

    Shift law: ``f(S x) == f(x)``, or ``f(S x) == S f(x)`` for dense output of the image's size, bit for bit. A map of
    stride s can only be rolled by whole cells: there the law holds for shifts by multiples of s, and for every shift
    with ``dense="pixel"``. Of an image that repeats under a shift it holds up to a period where the map is smaller,
    where it comes from a function of yours or out of a compiled or captured graph, and where masks are given.

    Args:
        model: takes images ``[B, C, H, W]`` first, or as ``pixel_values``; further arguments are passed on. With
            ``dense``, those that lie on the image's pixels (labels, masks, a list of the masks of each image) are
            rolled with it.
        dense: whether the output, or parts of a tuple, dictionary or output class of transformers, lies on the image.
            True: every ``[B, D, h, w]`` is rolled back, by whole cells where it is smaller than the image, and every
            ``[B, H, W]`` of the image's size; what has no place (losses, scores of queries) stays as it is. Maps
            ``[B, h, w, D]`` are known by the model's ``output_fmt``, as timm's have it, or where those sides alone fit.
            ``"pixel"``: smaller maps are first enlarged to the image's size, bilinearly (of integers: nearest). Or a
            function ``(output, origin, size) -> output`` for anything else, such as key points and boxes: see
            :func:`move_points`, :func:`move_boxes`, :func:`to_image_frame`.
        circular: ``"width"``: only columns are rolled, and the law is for shifts of columns; for panoramas. An adapted
            network inside says so itself.

    >>> from torchvision.models import resnet18
    >>> model, image = trueshift.canonicalize(resnet18()).eval(), torch.rand(1, 3, 64, 64)
    >>> torch.equal(model(image), model(image.roll((9, 4), (2, 3))))
    True
    >>> maps = trueshift.canonicalize(torch.nn.Conv2d(3, 8, 3, stride=4, padding=1), dense="pixel")
    >>> torch.equal(maps(image).roll((9, 4), (2, 3)), maps(image.roll((9, 4), (2, 3))))
    True
    """
    return Canonicalize(model, dense, circular)


def to_image_frame(output: Any, origin: Int64[Tensor, "B 2"], size: Pair, enlarge: bool = False) -> Any:
    """Maps that were computed in the frame at ``origin``, back in the image's own; see :func:`canonicalize`.

    Shift law: of maps of the image's size, or enlarged to it, exact for every shift; of others for whole cells.

    Args:
        output: maps ``[B, D, h, w]`` or ``[B, H, W]``, alone or in any structure.
        size: of the image.
        enlarge: to the image's size, before they are rolled.
    """
    maps = 0

    def back(part: Any) -> Any:
        nonlocal maps
        if not (isinstance(part, Tensor) and (part.dim() == 4 or _lies_on(part, size))):
            return part
        maps += 1
        shape = part.shape[-2:]
        if any(large % small for large, small in zip(map(max, shape, size), map(min, shape, size), strict=True)):
            raise ValueError(
                f"a map of shape {tuple(part.shape)} cannot be rolled back to an image of {size} pixels: needs sides "
                f"that divide {size[0]} and {size[1]}; use dense=False, or a function for such outputs"
            )
        if enlarge and part.dim() == 4 and shape.numel() < size[0] * size[1]:
            smooth = {"mode": "bilinear", "align_corners": False} if part.is_floating_point() else {}
            part = F.interpolate(part if smooth else part.double(), size, **smooth).to(part.dtype)  # type: ignore[arg-type]
        return _rolled(part, -torch.stack([origin[:, i] * part.shape[i - 2] // size[i] for i in (0, 1)], 1))

    output = tree_map(back, output)
    if not maps:
        raise ValueError(
            f"no part of the output is a map: needs [B, D, {size[0]}, {size[1]}] or a fraction of that size; use "
            "dense=False for outputs that do not lie on the pixels"
        )
    return output


def move_points(
    points: Float[Tensor, "B N 2"], origin: Real[Tensor, "B 2"], size: Sequence[float]
) -> Float[Tensor, "B N 2"]:
    """Points (x, y) found in the frame at ``origin``, in the image's own; modulo its size.

    Shift law: moves with the image, up to the rounding of the coordinates.

    Args:
        origin: row and column, as the function given to :func:`canonicalize` receives it.
        size: height and width. For coordinates from 0 to 1: ``origin / torch.tensor(size)`` and ``(1, 1)``.

    >>> trueshift.move_points(torch.tensor([[[5.0, 1.0]]]), torch.tensor([[2, 30]]), (32, 32))
    tensor([[[3., 3.]]])
    """
    extent = points.new_tensor([size[1], size[0]])
    moved = (points + origin.flip(1)[:, None]) % extent
    return torch.where(moved < extent, moved, 0)  # what is just below 0 is rounded up


def move_boxes(
    boxes: Float[Tensor, "B N 4"], origin: Real[Tensor, "B 2"], size: Sequence[float]
) -> Float[Tensor, "B N 4"]:
    """Boxes (x1, y1, x2, y2) found in the frame at ``origin``, in the image's own.

    The first corner lies in the image and every box keeps its size. One that crosses the border of the image ends
    beyond it, and continues on the other side.

    Shift law and arguments as :func:`move_points`.

    >>> trueshift.move_boxes(torch.tensor([[[5.0, 1.0, 9.0, 2.0]]]), torch.tensor([[2, 25]]), (32, 32))
    tensor([[[30.,  3., 34.,  4.]]])
    """
    first = move_points(boxes[..., :2], origin, size)
    return torch.cat([first, first + (boxes[..., 2:] - boxes[..., :2])], 2)


def _ends_in_channels(part: Tensor, size: Pair) -> bool:
    """Whether the sides of the image are those of ``[B, h, w, D]`` alone: there cells are as high as they are wide."""
    of_last, of_first = (rows * size[1] == columns * size[0] for rows, columns in (part.shape[2:], part.shape[1:3]))
    return of_first and not of_last


def _permuted(parts: list[Any], which: list[bool], order: tuple[int, ...]) -> list[Any]:
    """Some of the maps with their dimensions in another order."""
    return [part.permute(order) if chosen else part for part, chosen in zip(parts, which, strict=True)]


def _lies_on(part: Any, size: Pair) -> bool:
    """Whether this is ``[B, H, W]`` or ``[B, D, H, W]``."""
    return isinstance(part, Tensor) and part.dim() in (3, 4) and tuple(part.shape[-2:]) == size


def _along(start: Tensor, size: Pair, given: Any) -> Any:
    """An argument whose parts that lie on the image are in the frame at ``start``."""

    def each_on(part: Any) -> bool:
        """Whether this is a list of masks ``[N, H, W]``, of each image its own."""
        own = isinstance(part, list) and len(part) == len(start)
        return own and all(_lies_on(masks, size) and masks.dim() == 3 for masks in part)

    def moved(part: Any) -> Any:
        if each_on(part):
            return [_rolled(masks[None], start[image : image + 1])[0] for image, masks in enumerate(part)]
        if not _lies_on(part, size):
            return part
        if part.shape[0] != start.shape[0]:
            shape = f"an argument of shape {tuple(part.shape)} for {start.shape[0]} images"
            raise ValueError(f"{shape}: needs one map for each, or a list of {len(start)} with the masks of each")
        return _rolled(part, start)

    return tree_map(moved, given, is_leaf=each_on)


def _rolled(part: Tensor, offset: Tensor) -> Tensor:
    return circular_shift(part, offset, (part.dim() - 2, part.dim() - 1))
