"""Read scenes a little ahead of their use, in order, each once; those that cannot be read are told, not lost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int32, UInt8
from torch import Tensor

from ...data import Unreadable
from ...data.prefetch import in_threads
from ...data.source import Source
from ...data.transforms import ScenePreparation
from ..protocols.registry import Protocol
from ..protocols.shifts import Circular


@dataclass(frozen=True)
class PreparedScene:
    """A scene, ready for the network but for normalising.

    Args:
        canvases: the picture as the network wants it, by the way in which it is made to fit; see :func:`fit_for`.
        mask: the class of each pixel, at its own size.
    """

    index: int
    name: str
    canvases: dict[str, UInt8[Tensor, "3 _ _"]]
    mask: Int32[np.ndarray, "_ _"] | None


def fit_for(protocol: Protocol, preparation: ScenePreparation) -> str:
    """How a picture is made to fit: on a circle it must fill its frame, as padding would be moved with it."""
    return "resize" if isinstance(protocol.motion, Circular) else preparation.fit


def read_scenes(
    source: Source,
    indices: Sequence[int],
    preparation: ScenePreparation,
    protocols: Sequence[Protocol],
    masks: bool = True,
    workers: int = 4,
    ahead: int = 8,
) -> Iterator[PreparedScene | Unreadable]:
    """Decode and resize in the background, never more than about ``ahead`` scenes before the one that is used.

    Args:
        protocols: for which pictures are made to fit.
        masks: whether they are wanted; without meaning where the model's classes are not those of the data.
    """
    preparations = {fit: replace(preparation, fit=fit) for fit in {fit_for(each, preparation) for each in protocols}}

    def read(index: int) -> PreparedScene | Unreadable:
        try:
            scene = source[index]
            canvases = {fit: each.canvas(scene.image) for fit, each in preparations.items()}
            return PreparedScene(index, scene.name, canvases, scene.target if masks else None)
        except Exception as error:  # decoders raise many kinds; whichever it is, the others can go on
            return Unreadable(index, source.name(index), f"{type(error).__name__}: {error}")

    return in_threads(read, indices, workers, ahead)
