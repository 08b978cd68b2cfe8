"""The paper's figure on segmentation: the labels of an image, those of its shifted version moved back, what changed."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...data.source import Source
from ..models.eval_model import Subject
from ..protocols.registry import Protocol
from ..protocols.shifts import Circular
from ..runner.read_scenes import fit_for
from ..runner.tasks import scenes_of
from .mask_png import NOT_SHOWN, packed_labels
from .regions import largest_regions


def flip_map(
    subject: Subject, source: Source, index: int, protocol: Protocol, shift: list[int], device: str
) -> dict[str, Any]:
    """Labels before and after one shift, with the regions that changed; label maps are packed as text."""
    scene = source[index]
    preparation = replace(scenes_of(subject), fit=fit_for(protocol, scenes_of(subject)))
    image = preparation.normalise(preparation.canvas(scene.image).to(device))
    size = (image.shape[1], image.shape[2])
    moved = protocol.motion.view(image, torch.tensor([shift]), size)
    copies = image.expand((subject.batch_size or 2) - 2, *image.shape)  # for a model of one batch size
    with torch.inference_mode():
        labels = subject.forward(torch.cat([image[None], moved, copies])).argmax(1)[:2]
    back, covered = protocol.motion.undo(labels[1:], torch.tensor([shift]))
    before, after, shown = (part.cpu().numpy() for part in (labels[0], back[0], covered[0]))
    changed = (before != after) & shown
    return {
        "index": index,
        "name": scene.name,
        "protocol": protocol.name,
        "shift": shift,
        "wraps": isinstance(protocol.motion, Circular),
        "size": list(size),
        "flipped": float(changed.sum() / shown.sum()),
        "regions": largest_regions(changed),
        "before": packed_labels(before),
        "after": packed_labels(np.where(shown, after, NOT_SHOWN)),
    }
