"""The paper's tables on a data set: in one process or many, and from where it stopped."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..data import ImageSource, Unreadable, read_ahead
from ..provenance import circumstances
from .audit import Progress
from .journal import Journal
from .measure import measure
from .protocols import Protocol
from .records import ImageRecord
from .settings import check_shifts, on_gpu
from .subject import Subject
from .tally import Tally, is_answered
from .views import margin_of


@dataclass(frozen=True)
class EvalSettings:
    """How much is measured.

    Args:
        shifts: of each image where shifts are compared with each other, at least 2; the paper draws a pair. 0 for all.
        limit: images at most, from the first on; 0 for all.
    """

    shifts: int = 2
    limit: int = 0
    batch_size: int = 128
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"
    workers: int = 8

    def __post_init__(self) -> None:
        check_shifts(self.shifts)


def run_evaluation(
    subject: Subject,
    source: ImageSource,
    protocols: list[Protocol],
    settings: EvalSettings | None = None,
    output: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a model on a data set; under ``torchrun`` each process takes its share of the images.

    With an output folder, the answers to each image are kept as they come. Started again with the same settings, it
    goes on where it stopped, also with another number of processes.
    """
    settings = settings or EvalSettings()
    progress = progress or (lambda what, done, total: None)
    if any(protocol.dense for protocol in protocols):
        raise ValueError("protocols for segmentation need a segmentation model: see measure_segmentation")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    total = min(settings.limit or len(source), len(source))
    labelled = source.classes is not None and len(source.classes) == subject.num_classes
    tallies = [Tally(protocol, labelled) for protocol in protocols]
    skipped: list[dict[str, str]] = []
    done = 0
    identity = _identity(subject, source, total, protocols, settings)

    def count(record: ImageRecord | Unreadable) -> None:
        nonlocal done
        done += 1
        if isinstance(record, Unreadable):
            skipped.append({"name": record.name, "reason": record.reason})
        elif not is_answered(record):
            skipped.append({"name": record.name, "reason": "the model's logits are not numbers (NaN)"})
        else:
            for tally in tallies:
                tally.add(record)
        progress("images", done * world if done * world < total else total, total)

    journal = Journal(output, identity, rank, world) if output else None
    known = journal.read() if journal else {}
    if dist.is_initialized():
        dist.barrier()  # nobody writes before everybody has read
    mine = range(rank, total, world)
    for index in mine:
        if index in known:
            if known[index].name != source.name(index):
                told = f"image {index} was {known[index].name}, is {source.name(index)}"
                raise ValueError(f"{output} holds answers to another question ({told}): needs another --output")
            count(known[index])
    left = [index for index in mine if index not in known]
    pictures = read_ahead(
        source,
        left,
        subject.preparation,
        margin_of(protocols, subject.preparation.size),
        settings.workers,
        for_gpu=on_gpu(settings.device),
    )
    numbers = {protocol.name: _shifts(protocol, settings) for protocol in protocols}
    batch_size = subject.batch_size or settings.batch_size
    records = measure(
        subject.forward, pictures, protocols, subject.preparation, numbers, settings.seed, batch_size, settings.device
    )
    for record in _noted(records, journal):
        count(record)
    return {
        **circumstances(settings.seed),
        "settings": {**asdict(settings), "shifts": settings.shifts or "all"},
        "processes": world,
        "data": {"title": source.title, "images": total, "skipped": _gathered(skipped)},
        "protocols": {
            protocol.name: {"title": protocol.title, "description": protocol.describe(subject.preparation.size)}
            for protocol in protocols
        },
        "model": {
            "name": subject.name,
            "weights": subject.weights,
            "random": subject.random,
            "assumed": subject.assumed,
            "preparation": asdict(subject.preparation),
        },
        "measured": {tally.protocol.name: tally.summary() for tally in tallies},
    }


def _shifts(protocol: Protocol, settings: EvalSettings) -> int | None:
    if not settings.shifts:
        return None
    return settings.shifts - 1 if protocol.against_unshifted else settings.shifts


def _noted(records: Iterator[ImageRecord | Unreadable], journal: Journal | None) -> Iterator[ImageRecord | Unreadable]:
    if journal is None:
        yield from records
        return
    with journal.open() as file:
        for record in records:
            journal.note(file, record)
            yield record


def _gathered(mine: list[dict[str, str]]) -> list[dict[str, str]]:
    if not dist.is_initialized():
        return mine
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return [entry for part in everyone for entry in part]


def _identity(
    subject: Subject, source: ImageSource, total: int, protocols: list[Protocol], settings: EvalSettings
) -> dict[str, Any]:
    """What must be the same for answers of an earlier run to count."""
    weights = hashlib.sha256()
    if subject.module is not None:
        for name, value in sorted(subject.module.state_dict().items()):
            weights.update(name.encode())
            weights.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return {
        "model": subject.name,
        "weights": weights.hexdigest()[:16],
        "preparation": json.loads(json.dumps(asdict(subject.preparation))),
        "data": f"{source.title}, {total} images",
        "protocols": {protocol.name: repr(protocol) for protocol in protocols},
        "shifts": settings.shifts,
        "seed": settings.seed,
        "precision": settings.precision,
    }
