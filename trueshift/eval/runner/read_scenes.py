"""Read images for segmentation ahead of their use."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int32, UInt8
from torch import Tensor

from ...data import Sample, Source, Unreadable
from ...data.prefetch import read_samples
from ...data.transforms import ScenePreparation
from ..protocols.registry import ShiftProtocol
from ..protocols.shifts import Circular


@dataclass(frozen=True)
class PreparedScene:
    """An image with a mask, ready for the network except for normalising."""

    index: int
    name: str
    canvases: dict[str, UInt8[Tensor, "3 _ _"]]  # at the network's size, by the way it is made to fit
    mask: Int32[np.ndarray, "_ _"] | None  # the class of each pixel, at its own size


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

    def prepared(index: int, sample: Sample) -> PreparedScene:
        canvases = {fit: each.canvas(sample.image) for fit, each in preparations.items()}
        return PreparedScene(index, sample.name, canvases, sample.target if masks else None)

    return read_samples(source, indices, prepared, workers, ahead)
