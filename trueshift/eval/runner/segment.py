"""Show a segmentation model every view of every image, and compare the labels of pixels once moved back.

Sizes differ from image to image, so each has its own batches, all of one shape: kernels round differently at another.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat
from math import ceil

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Int64
from PIL import Image
from torch import Tensor

from ...data import Prepared, Source, Unreadable
from ...data.prefetch import Canvases, read_prepared
from ...data.source import IGNORED, WithoutTargets
from ...data.transforms import ScenePreparation
from ...ops.geometry.shift import Pair
from ..metrics.consistency import bit_identical, class_counts, logit_change, pixel_agreement
from ..protocols.registry import ShiftProtocol
from ..protocols.shifts import Circular, CropsApart, Motion, Shifts, ZeroPadded
from .classify import check_logits
from .records import PixelAnswers, Record

DenseForward = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B classes H W"]]
NOT_NUMBERS = "the model's logits are not numbers (NaN)"
_CLASSES_AT_ONCE = 16  # copies of the logits of all classes may take gigabytes


def canvas_key(protocol: ShiftProtocol, preparation: ScenePreparation) -> tuple[str, Pair]:
    """How an image is made to fit, and how many pixels it has beyond what a view shows: larger by so much.

    Crops fill their frame, and under circular shifts an image must, as padding would move with it.
    """
    if isinstance(protocol.motion, CropsApart):
        return "resize", protocol.motion.margin((1, 1))
    return "resize" if isinstance(protocol.motion, Circular) else preparation.fit, (0, 0)


def read_scenes(
    source: Source,
    indices: Sequence[int],
    preparation: ScenePreparation,
    protocols: Sequence[ShiftProtocol],
    masks: bool = True,
    workers: int = 4,
    ahead: int = 8,
) -> Iterator[Prepared | Unreadable]:
    """Decode and resize in the background, at most about ``ahead`` images before the one in use.

    Args:
        protocols: for which images are made to fit.
        masks: whether to keep them; they mean nothing where the model's classes are not those of the data.
    """
    keys = {canvas_key(protocol, preparation) for protocol in protocols}

    def canvases(image: Image.Image) -> Canvases:
        return {(fit, margin): replace(preparation, fit=fit).canvas(image, margin) for fit, margin in keys}

    return read_prepared(source if masks else WithoutTargets(source), indices, canvases, workers, ahead)


def measure_segmentation(
    forward: DenseForward,
    scenes: Iterable[Prepared | Unreadable],
    protocols: list[ShiftProtocol],
    preparation: ScenePreparation,
    shifts: int = 2,
    seed: int = 0,
    batch_size: int = 8,
    device: torch.device | str = "cpu",
    fixed_batch: bool = False,
) -> Iterator[Record | Unreadable]:
    """The answers to each image, in order: right and wrong unshifted, and how many pixels keep their label.

    Args:
        forward: normalised images to logits of their pixels.
        scenes: from :func:`read_scenes` for the same protocols, of any sizes.
        protocols: ``ade20k-circular`` (mASCC), ``ade20k-standard`` (mASSC), or others that are dense.
        shifts: of each image and protocol, at least 2.
        batch_size: views of an image shown together, at most.
        fixed_batch: the model takes no other batch size than this one.
    """
    check_dense(protocols, shifts)
    normalise = preparation.normaliser(device)
    groups: dict[tuple[str, Pair], list[ShiftProtocol]] = {}
    for protocol in protocols:
        groups.setdefault(canvas_key(protocol, preparation), []).append(protocol)
    for scene in scenes:
        if isinstance(scene, Unreadable):
            yield scene
            continue
        record = Record(scene.index, scene.name)
        try:
            for key, together in groups.items():  # protocols that show the same image share its unshifted view
                image, margin = normalise(scene.canvases[key].to(device, non_blocking=True)), key[1]
                size = (image.shape[1] - 2 * margin[0], image.shape[2] - 2 * margin[1])
                drawn = [(protocol, protocol.shifts(scene.index, shifts, size, seed)) for protocol in together]
                with torch.inference_mode():
                    logits = shown_logits(forward, image, size, drawn, batch_size, fixed_batch)
                    unshifted = next(logits).clone()  # the batch it lies in need not be kept
                    if bool(unshifted.isnan().any()):
                        raise _NotMeasured(NOT_NUMBERS)
                    masked = scene.target is not None and not any(margin)  # a mask is that of the whole image
                    counts = _counts(unshifted, scene.target) if masked else None
                    for protocol, moved in drawn:
                        record.answers[protocol.name] = _compared(unshifted, logits, protocol, moved, counts)
            record.answers = {protocol.name: record.answers[protocol.name] for protocol in protocols}
        except _NotMeasured as error:
            yield Unreadable(scene.index, scene.name, str(error))
        else:
            yield record


def check_dense(protocols: list[ShiftProtocol], shifts: int) -> None:
    """Refuse protocols that have no meaning for labels of pixels."""
    for protocol in protocols:
        if not protocol.dense:
            raise ValueError(f"protocol {protocol.name!r} compares one answer per image: needs one of ADE20K's")
        known = type(protocol.motion) in (Circular, ZeroPadded, CropsApart)
        if protocol.distortion or protocol.against_unshifted or not known:
            raise ValueError(
                f"protocol {protocol.name!r} cannot be done pixel by pixel: needs circular or zero-padded shifts or "
                "crops, compared with each other, of images that are not distorted"
            )
    if shifts < 2:
        raise ValueError(f"{shifts} shifts: needs at least 2 for segmentation, to compare one with another")


class _NotMeasured(Exception):
    """Why an image has no answers."""


def shown_logits(
    forward: DenseForward,
    image: Float[Tensor, "C _ _"],
    size: Pair,
    drawn: list[tuple[ShiftProtocol, Shifts]],
    batch_size: int,
    fixed_batch: bool,
) -> Iterator[Float[Tensor, "classes H W"]]:
    """The logits of the unshifted image, then of the shifted ones of each protocol in turn.

    Views are made when they are needed. Batches are equally large; the last one is filled up with the unshifted image.
    """
    top, left = (image.shape[1] - size[0]) // 2, (image.shape[2] - size[1]) // 2
    first_view = image[:, top : top + size[0], left : left + size[1]]
    shifted = (protocol.motion.view(image, shift, size)[0] for protocol, shifts in drawn for shift in shifts[:, None])
    views, count = chain([first_view], shifted, repeat(first_view)), 1 + sum(len(shifts) for _, shifts in drawn)
    together = batch_size if fixed_batch else ceil(count / ceil(count / batch_size))
    for first in range(0, count, together):
        batch = torch.stack(list(islice(views, together)))
        logits = check_logits(forward(batch), together, "classes, height, width")
        if logits.shape[2:] != size:
            shape = tuple(logits.shape[2:])
            raise ValueError(f"the model answered with {shape} pixels: needs the input's {size}")
        yield from logits[: count - first]


def _compared(
    unshifted: Float[Tensor, "classes H W"],
    views: Iterator[Float[Tensor, "classes H W"]],
    protocol: ShiftProtocol,
    shifts: Shifts,
    counts: Int[np.ndarray, "occurring 4"] | None,
) -> PixelAnswers:
    """Compare the views of one protocol with each other and with the unshifted image."""
    labels, covers, rows = [], [], []
    first = unshifted.argmax(0)
    for shift in shifts[:, None]:
        logits = next(views)
        back, covered = protocol.motion.undo(logits.argmax(0)[None], shift)
        labels.append(back)
        covers.append(covered)
        flipped = ((back[0] != first) & covered[0]).sum().double() / covered.sum()
        exact, change = _changes(unshifted, logits, protocol.motion, shift)
        rows.append(torch.stack([flipped, change, exact.double(), logits.isnan().any().double()]))
    agreement = pixel_agreement(torch.cat(labels)[None], torch.cat(covers)[None])
    numbers = torch.stack(rows).cpu().numpy()  # one transfer for all of them
    if numbers[:, 3].any():
        raise _NotMeasured(NOT_NUMBERS)
    size = (unshifted.shape[1], unshifted.shape[2])
    flipped, change, exact, _ = numbers.T
    return PixelAnswers(size, shifts.numpy(), float(agreement), flipped, change, exact.astype(bool), counts)


def _changes(
    unshifted: Float[Tensor, "classes H W"], logits: Float[Tensor, "classes H W"], motion: Motion, shift: Shifts
) -> tuple[Bool[Tensor, ""], Float[Tensor, ""]]:
    """Whether all bits are the unshifted image's where the view shows something, and the largest change there."""
    exact, largest = [], []
    for before, after in zip(unshifted.split(_CLASSES_AT_ONCE), logits.split(_CLASSES_AT_ONCE), strict=True):
        (back,), covered = motion.undo(after[None], shift)
        before, back = before[..., None], back[..., None]  # each logit alone
        exact.append((bit_identical(before, back) | ~covered).all())
        largest.append(logit_change(before, back).masked_fill(~covered, 0).amax())
    return torch.stack(exact).all(), torch.stack(largest).amax()


def _counts(logits: Float[Tensor, "classes h w"], mask: Int[np.ndarray, "H W"]) -> Int[np.ndarray, "occurring 4"]:
    """Right and wrong at the mask's own size: only the classes that occur, with their numbers in front."""
    known, classes = mask[mask != IGNORED], len(logits)
    if known.size and not 0 <= known.min() <= known.max() < classes:
        had, needed = f"{known.min()} to {known.max()}", f"0 to {classes - 1}"
        raise _NotMeasured(f"its mask has labels {had}: needs {needed}, or {IGNORED} to ignore")
    target = torch.from_numpy(mask).to(logits.device)
    labels = labels_at(logits, (target.shape[0], target.shape[1]))
    counts = class_counts(labels, target, classes, IGNORED).cpu().numpy()
    occurring = np.flatnonzero(counts.any(1))
    return np.concatenate([occurring[:, None], counts[occurring]], 1)


def labels_at(logits: Float[Tensor, "classes h w"], size: Pair) -> Int64[Tensor, "H W"]:
    """The label of each pixel at another size: logits are interpolated, labels never are."""
    if logits.shape[1:] == size:
        return logits.argmax(0)
    best = torch.full(size, -torch.inf, device=logits.device)
    labels = torch.zeros(size, dtype=torch.int64, device=logits.device)
    for first in range(0, len(logits), _CLASSES_AT_ONCE):
        some = logits[None, first : first + _CLASSES_AT_ONCE].float()
        values, places = F.interpolate(some, size, mode="bilinear", align_corners=False)[0].max(0)
        better = values > best  # at a tie the first class, as argmax has it
        best, labels = torch.where(better, values, best), torch.where(better, places + first, labels)
    return labels
