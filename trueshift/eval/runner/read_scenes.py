"""Read images for segmentation ahead of their use, in order; those that cannot be read are reported, not lost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int32, UInt8
from torch import Tensor

from ...data import Unreadable
from ...data.prefetch import in_threads
from ...data.source import Source
from ...data.transforms import ScenePreparation
from ..protocols.registry import ShiftProtocol
from ..protocols.shifts import Circular


@dataclass(frozen=True)
class PreparedScene:
    """An image with a mask, ready for the network except for normalising.

    Args:
        canvases: the image at the network's size, by the way it is made to fit; see :func:`fit_for`.
        mask: the class of each pixel, at its own size.
    """

    index: int
    name: str
    canvases: dict[str, UInt8[Tensor, "3 _ _"]]
    mask: Int32[np.ndarray, "_ _"] | None


def fit_for(protocol: ShiftProtocol, preparation: ScenePreparation) -> str:
    """How an image is made to fit: for circular shifts it must fill its frame, as padding would move with it."""
    return "resize" if isinstance(protocol.motion, Circular) else preparation.fit


def read_scenes(
    source: Source,
    indices: Sequence[int],
    preparation: ScenePreparation,
    protocols: Sequence[ShiftProtocol],
    masks: bool = True,
    workers: int = 4,
    ahead: int = 8,
) -> Iterator[PreparedScene | Unreadable]:
    """Decode and resize in the background, at most about ``ahead`` images before the one in use.

    Args:
        protocols: for which images are made to fit.
        masks: whether to keep them; they mean nothing where the model's classes are not those of the data.
    """
    preparations = {fit: replace(preparation, fit=fit) for fit in {fit_for(each, preparation) for each in protocols}}

    def read(index: int) -> PreparedScene | Unreadable:
        try:
            scene = source[index]
            canvases = {fit: each.canvas(scene.image) for fit, each in preparations.items()}
            return PreparedScene(index, scene.name, canvases, scene.target if masks else None)
        except Exception as error:  # decoders raise many kinds; the other images are still to be read
            return Unreadable(index, source.name(index), f"{type(error).__name__}: {error}")

    return in_threads(read, indices, workers, ahead)
