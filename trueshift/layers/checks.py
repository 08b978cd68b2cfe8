"""What layers refuse, in words that name what would be right."""

from typing import NoReturn

import torch
from torch import Tensor

from ..ops.geometry.shift import Pair
from ..ops.nn.conv import PADDINGS


def check_image(image: Tensor | torch.fx.Proxy, channels: int, multiple: Pair) -> None:
    """Refuse what cannot be tokenized, and name what could."""
    if isinstance(image, torch.fx.Proxy):
        raise NotImplementedError(
            "torch.fx traces without an image, and sizes and choices go by the image: needs features_only=True, "
            "forward_intermediates, forward hooks or torch.export.export"
        )
    if not isinstance(image, Tensor):
        raise TypeError(f"an image of the type {type(image).__name__}: needs a tensor [B, {channels}, H, W]")
    if image.dim() != 4:
        raise ValueError(f"an image batch of shape {tuple(image.shape)}: needs [B, {channels}, H, W]")
    if image.shape[0] == 0:
        raise ValueError("an empty batch: needs at least one image")
    if image.shape[1] != channels:
        raise ValueError(f"{image.shape[1]} channels: this layer was made for {channels}")
    if not image.is_floating_point():
        raise TypeError(f"an image of {image.dtype}: needs a floating-point type, e.g. image.float() / 255")
    check_size(tuple(image.shape[2:]), multiple)


def check_size(size: tuple[int, ...], multiple: Pair, what: str = "", otherwise: str = "") -> None:
    """Refuse a size that a grid of this stride does not divide; name the nearest between ``what`` and ``otherwise``."""
    for name, length, step in zip(("height", "width"), size, multiple, strict=True):
        if length % step or length == 0:
            below, above = length // step * step, (length // step + 1) * step
            near = f"{below} or {above}" if below else f"{above}"
            raise ValueError(f"{what}{name} {length}: needs a multiple of {step}, e.g. {near}{otherwise}")


def check_padding(kernel: Pair, padding: Pair, mode: str) -> None:
    """Refuse a kernel that would not reach over its own position, and padding of another kind."""
    if not (0 <= padding[0] < kernel[0] and 0 <= padding[1] < kernel[1]):
        raise ValueError(f"padding {padding}: needs to be at least 0 and less than the kernel {kernel}")
    if mode not in PADDINGS:
        raise ValueError(f"padding_mode {mode!r}: needs one of {PADDINGS}")


def check_heads(dim: int, heads: int) -> None:
    """Refuse channels that cannot be shared out among the heads."""
    if dim % heads:
        raise ValueError(f"{dim} channels: needs a multiple of the {heads} heads")


def refuse_scripting() -> NoReturn:
    """For ``__prepare_scriptable__``, which ``torch.jit.script`` calls first."""
    raise NotImplementedError(
        "torch.jit.script does not know the types of this network: needs torch.export.export, torch.compile or "
        "trueshift.export_onnx; of an ordinary network torch.jit.trace"
    )
