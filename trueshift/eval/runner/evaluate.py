"""The paper's tables on a data set: in one process or many, and from where it stopped."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...data import Source, Unreadable
from ...utils.provenance import circumstances
from ..metrics.aggregate import is_answered
from ..models.eval_model import Subject
from ..protocols.registry import Protocol
from .fingerprint import identity_of, is_identified
from .records import ImageRecord
from .resume import Journal, Record
from .settings import EvalSettings, Progress
from .tasks import task_of

SCHEMA = 1


def run_evaluation(
    subject: Subject,
    source: Source,
    protocols: list[Protocol],
    settings: EvalSettings | None = None,
    output: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a model on a data set; under ``torchrun`` each process takes its share of the images.

    With an output folder, the answers to each image are kept as they come. Started again with the same settings, it
    goes on where it stopped, also with another number of processes; images that could not be read are tried again.

    Args:
        source: pictures, or scenes for a segmentation model; without masks, only its consistency can be told.
    """
    settings = settings or EvalSettings()
    progress = progress or (lambda what, done, total: None)
    task = task_of(subject, source, protocols, settings)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    total = min(settings.limit or len(source), len(source))
    tallies: list[Any] = list(task.tallies())
    skipped: list[dict[str, str]] = []
    done = 0
    identity = identity_of(task, total)

    def count(record: Record | Unreadable) -> None:
        nonlocal done
        done += 1
        if isinstance(record, Unreadable):
            skipped.append({"name": record.name, "reason": record.reason})
        elif isinstance(record, ImageRecord) and not is_answered(record):
            skipped.append({"name": record.name, "reason": "the model's logits are not numbers (NaN)"})
        else:
            for tally in tallies:
                tally.add(record)
        progress("images", done * world if done * world < total else total, total)

    journal = Journal(output, identity, rank, world) if output else None
    known = journal.read() if journal else {}
    if known and not is_identified(subject):
        raise ValueError(
            f"{output} holds answers, and {subject.name} is a function, which cannot be told from one that answered "
            "otherwise: needs another --output; a torch module goes on where it was"
        )
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
    for record in _noted(task.records(left), journal):
        count(record)
    return {
        "schema": SCHEMA,
        **circumstances(settings.seed),
        "task": task.name,
        "settings": {**asdict(settings), "shifts": settings.shifts or "all"},
        "processes": world,
        "data": {
            "title": source.title,
            "images": total,
            "skipped": _gathered(skipped),
            "classes": source.classes,
        },
        "protocols": {
            protocol.name: {"title": protocol.title, "description": task.describe(protocol)} for protocol in protocols
        },
        "model": {
            "name": subject.name,
            "weights": subject.weights,
            "random": subject.random,
            "assumed": subject.assumed,
            "num_classes": subject.num_classes,
            "preparation": task.preparation(),
        },
        "measured": {tally.protocol.name: tally.summary() for tally in tallies},
    }


def _noted(records: Iterator[Record | Unreadable], journal: Journal | None) -> Iterator[Record | Unreadable]:
    if journal is None:
        yield from records
        return
    with journal.open() as file:
        for record in records:
            if not isinstance(record, Unreadable):
                journal.note(file, record)
            yield record


def _gathered(mine: list[dict[str, str]]) -> list[dict[str, str]]:
    if not dist.is_initialized():
        return mine
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return [entry for part in everyone for entry in part]
