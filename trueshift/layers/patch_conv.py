"""The patch embedding of a network that keeps its own classes: its ordinary convolution, in a frame the image chooses.

All that follows sees the same tensor whatever the shift, so absolute and rotary positions, class tokens, registers and
fixed windows are as exact as anything else.
"""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..criteria import Criterion
from ..ops.geometry.grid import Tokens
from ..ops.geometry.shift import IMAGE_DIMS, circular_shift, fixes_rows
from ..ops.nn.conv import project_patches
from ..ops.selection.choose import Choice
from .checks import check_image, check_size
from .frame import FrameFinder
from .patches import LayerGrids
from .tokenize import AdaptiveTokenize


class FrameConv(AdaptiveTokenize):
    """What a convolution needs to choose its frame; made from an ordinary one by :func:`make_adaptive`."""

    anchor = closed = True
    weight: Tensor
    size_check: RemovableHandle

    def origin(self, image: Float[Tensor, "B C *T H W"]) -> Int64[Tensor, "B 2"]:
        """The pixel that becomes the first.

        Shift law: ``origin(S^t x) == origin(x) - t`` modulo the size, up to a period of the image.
        """
        if self.training and self.criterion.adaptive and self.criterion.grid_drop_rate:
            raise ValueError("grids are random while training with grid_drop_rate: needs model.eval()")
        offset = self.choose(image.to(self.weight.dtype)).offset  # as networks cast it that take any type
        return torch.stack([offset[:, axis] % image.shape[axis - 2] for axis in (0, 1)], 1)


class AdaptivePatchConv(FrameConv, nn.Conv2d):  # type: ignore[misc]
    """The convolution of a patch embedding, applied to the image rolled to the origin that its content chooses.

    The criterion chooses the phase of the grid, the photograph's border the first patch; the convolution is then the
    ordinary one, with its own padding.

    Shift law: in evaluation the output is bit-identical for every shift of the image.
    """

    @property
    def proj(self) -> nn.Conv2d:  # type: ignore[override]
        """The convolution that grids are scored by."""
        return self

    def merge(
        self, values: Float[Tensor, "B H W C"], start: Int64[Tensor, "B 2"] | None = None
    ) -> Float[Tensor, "B h w D"]:
        """The patch at every position, for scores; from ``start`` on the ordinary convolution."""
        if start is None:
            return super().merge(values)
        image = values.permute(0, 3, 1, 2)
        if self.kernel_size == self.stride and not any(self.padding) and self.dilation == (1, 1) and self.groups == 1:
            return project_patches(image, self, start, self.factor, (0, 0))  # the same, as one product of matrices
        return nn.Conv2d.forward(self, circular_shift(image, start, IMAGE_DIMS)).permute(0, 2, 3, 1)

    def forward(  # type: ignore[override]
        self, image: Float[Tensor, "B C H W"], start: Int64[Tensor, "B 2"] | None = None
    ) -> Float[Tensor, "B D h w"]:
        """The convolution in the chosen frame, or in the one that starts at ``start``."""
        check_image(image, self.dim, self.factor)
        candidates, choice = self._chosen(Tokens.of_image(image, self.fixed_rows), start)
        return candidates.merged_at(choice).permute(0, 3, 1, 2)


class ClipGrids(LayerGrids):
    """The grids of a clip, for criteria that need no tokens."""

    def features(self) -> Float[Tensor, "B H W D"]:
        """Not for clips: the tokens of every phase at every time would cost more than the network."""
        raise NotImplementedError(
            "this criterion scores the tokens of a clip: needs criterion 'fixed', 'input_norm' or 'spot'"
        )

    dense = features


class AdaptivePatchConv3d(FrameConv, nn.Conv3d):  # type: ignore[misc]
    """The same for a clip, all of whose frames move together; time stays as it is.

    Shift law: in evaluation the output is bit-identical for every shift of the clip.
    """

    grids = ClipGrids  # type: ignore[assignment]

    def choose(self, image: Float[Tensor, "B C T H W"]) -> Choice:
        """Where the grid starts, in pixels: to the criterion, frames are channels of one image."""
        return super().choose(image.flatten(1, 2))

    def forward(self, image: Float[Tensor, "B C T H W"]) -> Float[Tensor, "B D t h w"]:  # type: ignore[override]
        """The convolution in the chosen frame."""
        frames = image.flatten(1, 2)
        check_image(frames, frames.shape[1], self.factor)
        moved = circular_shift(frames, self.choose(image).offset, IMAGE_DIMS)
        return nn.Conv3d.forward(self, moved.unflatten(1, image.shape[1:3]))


def make_adaptive(conv: nn.Module, parent: nn.Module, criterion: Criterion, circular: str = "both") -> None:
    """Make a convolution choose its frame, in place: its parameters, their names and its hooks stay.

    Args:
        conv: an ``nn.Conv2d`` or ``nn.Conv3d``.
        parent: the module it belongs to, which is given the image; it is to refuse images that it would pad.
        criterion: for the phase of the grid.
        circular: ``"width"``: only columns choose.
    """
    layer: Any = conv
    layer.__class__ = AdaptivePatchConv3d if isinstance(conv, nn.Conv3d) else AdaptivePatchConv
    layer.dim, layer.factor, layer.fixed_rows = layer.in_channels, layer.stride[-2:], fixes_rows(circular)
    layer.padding = (0,) * len(layer.stride) if layer.padding == "valid" else layer.padding
    layer.criterion = criterion.to(layer.weight).train(layer.training)
    layer.frame = FrameFinder().to(layer.weight.device).train(layer.training)
    layer.size_check = parent.register_forward_pre_hook(_check_input, with_kwargs=True)


def make_ordinary(conv: nn.Module) -> None:
    """Undo :func:`make_adaptive`, in place."""
    conv.__class__, size_check = (nn.Conv3d if isinstance(conv, nn.Conv3d) else nn.Conv2d), conv.size_check
    size_check.remove()  # type: ignore[operator, union-attr]
    for name in ("dim", "factor", "fixed_rows", "criterion", "frame", "size_check"):
        delattr(conv, name)


def _check_input(parent: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse images whose size is padded before the convolution, and an embedding that was replaced."""
    conv = next((part for part in parent.children() if isinstance(part, FrameConv)), None)
    if conv is None:
        raise RuntimeError(
            f"the patch embedding of {type(parent).__name__} was replaced after adapt: set sizes first, then adapt"
        )
    given = (*args, *kwargs.values())
    image = next((each for each in given if isinstance(each, Tensor | torch.fx.Proxy)), None)
    if image is None:
        kinds = ", ".join(type(each).__name__ for each in given) or "nothing"
        raise TypeError(f"a {type(parent).__name__} was given {kinds}: needs a tensor [B, C, H, W]")
    if isinstance(image, Tensor):
        check_size(tuple(image.shape[-2:]), conv.factor)
