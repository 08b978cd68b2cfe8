"""Accuracy on the pictures that are not learned from, each process on its share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..data import Preparation, Prepared, Source, Unreadable, read_ahead
from .data.batch import Share
from .data.on_device import ResidentImages


@dataclass(frozen=True)
class Accuracy:
    """In parts of 1, and how many pictures it was measured on."""

    top1: float
    loss: float
    images: int


@torch.no_grad()
def measure_accuracy(
    model: nn.Module,
    batches: Iterator[tuple[Float[Tensor, "B 3 H W"], Int[Tensor, " B"]]],
    device: torch.device,
    autocast: Callable[[], torch.autocast],
    stop: Callable[[], bool] = lambda: False,
) -> Accuracy | None:
    """Top-1 and cross-entropy over all processes; None if it was asked to stop on the way."""
    was_training = model.training
    model.eval()
    right = torch.zeros((), dtype=torch.float64, device=device)
    loss, seen, stopped = torch.zeros_like(right), 0, False
    try:
        for images, labels in batches:
            with autocast():
                logits = model(images).float()
            right += (logits.argmax(1) == labels).sum()
            loss += F.cross_entropy(logits, labels, reduction="sum")
            seen += len(labels)
            if stopped := stop():
                break
    finally:
        model.train(was_training)
    sums = torch.tensor([right.item(), loss.item(), seen, stopped], dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(sums)  # one process that stops stops all
    all_right, all_loss, all_seen, any_stopped = sums.tolist()
    if any_stopped:
        return None
    if not all_seen:
        raise ValueError("none of the pictures to measure on could be read")
    return Accuracy(all_right / all_seen, all_loss / all_seen, int(all_seen))


def resident_batches(images: ResidentImages, batch_size: int, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
    """Pictures that are on the device already."""
    mine = torch.arange(share.rank, len(images), share.processes, device=images.pixels.device)
    for at in mine.split(batch_size):
        yield images.normalise(images.pictures(at)), images.labels[at]


def read_batches(
    source: Source,
    preparation: Preparation,
    batch_size: int,
    share: Share,
    device: torch.device,
    workers: int,
    left_out: set[str],
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pictures that are read; those that cannot be, or have no class, are left out and named in ``left_out``."""
    normalise = preparation.normaliser(device)
    mine = range(share.rank, len(source), share.processes)
    pictures = read_ahead(source, mine, preparation, workers=workers, for_gpu=device.type == "cuda")
    waiting: list[Prepared] = []

    def together() -> tuple[Tensor, Tensor]:
        canvases = torch.stack([picture.canvas for picture in waiting])
        labels = torch.tensor([picture.label for picture in waiting])
        waiting.clear()
        return normalise(canvases.to(device, non_blocking=True)), labels.to(device)

    for picture in pictures:
        if isinstance(picture, Unreadable):
            left_out.add(f"{picture.name}: {picture.reason}")
        elif picture.label is None:
            left_out.add(f"{picture.name}: it has no class")
        else:
            waiting.append(picture)
        if len(waiting) == batch_size:
            yield together()
    if waiting:
        yield together()
