"""Any segmentation network as one that gives logits for every pixel of its input."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ...canonical import Canonicalize
from ...ops.geometry.shift import Pair, pair
from ...tasks import UperNet

_TRIED = (64, 224)  # sides of the blank images that are tried


class PixelLogits(nn.Module):
    """A network's logits, wherever it puts them, brought to the size of its input.

    Shift law: as the network's own where it answers at the size of its input; interpolation knows where the frame is.

    Args:
        model: gives ``[B, classes, h, w]``, or an object or mapping that has them as ``logits`` (transformers) or
            ``out`` (torchvision).
        size_multiple: of rows and columns, that it needs.
    """

    def __init__(self, model: Callable[[Tensor], Any], size_multiple: Pair = (1, 1)) -> None:
        super().__init__()
        self.model = model
        self.size_multiple = size_multiple

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes H W"]:
        """Logits of every pixel; smaller maps are interpolated bilinearly, in float32."""
        logits = logits_in(self.model(images))
        if logits.dim() == 4 and logits.shape[2:] != images.shape[2:]:
            logits = F.interpolate(logits.float(), images.shape[2:], mode="bilinear", align_corners=False)
        return logits


def logits_in(answer: Any) -> Any:
    """The logits of an answer, in whatever it wraps them."""
    if isinstance(answer, Mapping):
        return answer.get("logits", answer.get("out", answer))
    return getattr(answer, "logits", answer)


def size_multiple_of(model: Any) -> Pair:
    """Of what the sides of an image must be multiples, where a model says."""
    return pair(getattr(model, "size_multiple", 1))


def is_segmenter(module: nn.Module) -> bool:
    """Whether a network is known to give a label for each pixel, without trying it."""
    if isinstance(module, Canonicalize):
        return bool(module.dense)
    return isinstance(module, UperNet) or getattr(module, "dense", False) is True


def answer_to_blank(model: Any, device: torch.device | str, side: int | None = None) -> Tensor | None:
    """A model's logits for a blank image; None if it takes none of the sizes tried.

    Args:
        side: of the image to try, where it is known.
    """
    sizes = [tuple(-(-tried // each) * each for each in size_multiple_of(model)) for tried in _TRIED]
    for size in [(side, side)] if side else sizes:
        # it may need another size; any other fault shows when it is measured
        with suppress(Exception), torch.inference_mode():
            answer = logits_in(model(torch.zeros(1, 3, *size, device=device)))
            return answer if isinstance(answer, Tensor) else None
    return None
