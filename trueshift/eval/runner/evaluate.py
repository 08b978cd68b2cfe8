"""The paper's tables on a data set, in one process or many; an interrupted run resumes."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...data import Source, Unreadable
from ...utils.provenance import circumstances
from ..models.eval_model import EvalModel
from ..options import EvalOptions, Progress
from ..protocols.registry import ShiftProtocol
from .fingerprint import identity_of, is_identified
from .records import Journal, Record
from .tasks import problem_of, task_of

SCHEMA = 1


def run_evaluation(
    model: EvalModel,
    source: Source,
    protocols: list[ShiftProtocol],
    options: EvalOptions | None = None,
    output: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a model on a data set; under ``torchrun`` each process takes its share of the images.

    With an output folder, the answers to each image are kept as they come. Started again with the same options, it
    resumes, also with another number of processes; images that could not be read are tried again.

    Args:
        source: images; a segmentation model needs masks for anything but its consistency.
    """
    options = options or EvalOptions()
    progress = progress or (lambda what, done, total: None)
    shifts = {each.name: options.shifts - each.against_unshifted if options.shifts else None for each in protocols}
    task = task_of(model, source, protocols, options, shifts)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    total = min(options.limit or len(source), len(source))
    tallies = task.tallies()
    skipped: list[dict[str, str]] = []
    done = 0

    def count(record: Record | Unreadable) -> None:
        nonlocal done
        done += 1
        problem = problem_of(record)
        if problem:
            skipped.append({"name": record.name, "reason": problem})
        else:
            for tally in tallies:
                tally.add(record)
        progress("images", min(done * world, total), total)

    journal = Journal(output, identity_of(task, total), rank, world) if output else None
    known = journal.read() if journal else {}
    if known and not is_identified(model):
        raise ValueError(
            f"{output} holds answers, and {model.name} is a function, which cannot be distinguished from another: "
            "needs another --output; only a torch module or a file can resume"
        )
    if dist.is_initialized():
        dist.barrier()  # nobody writes before everybody has read
    mine = range(rank, total, world)
    for index in mine:
        if index in known:
            if known[index].name != source.name(index):
                names = f"image {index} was {known[index].name}, is {source.name(index)}"
                raise ValueError(f"{output} holds answers to another question ({names}): needs another --output")
            count(known[index])
    left = [index for index in mine if index not in known]
    for record in _written(task.measure(task.read(left)), journal):
        count(record)
    return {
        "schema": SCHEMA,
        **circumstances(options.seed),
        "task": task.name,
        "settings": options.to_dict(model.dense),
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
        "model": model_facts(model),
        "measured": {tally.protocol.name: tally.summary() for tally in tallies},
    }


def model_facts(model: EvalModel) -> dict[str, Any]:
    """What a result says of a model, as plain data."""
    return {
        "name": model.name,
        "weights": model.weights,
        "random": model.random,
        "assumed": model.assumed,
        "num_classes": model.num_classes,
        "preparation": {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(model.preparation).items()
        },
    }


def _written(records: Iterator[Record | Unreadable], journal: Journal | None) -> Iterator[Record | Unreadable]:
    if journal is None:
        yield from records
        return
    with journal.open() as file:
        for record in records:
            if isinstance(record, Record):
                journal.write(file, record)
            yield record


def _gathered(mine: list[dict[str, str]]) -> list[dict[str, str]]:
    if not dist.is_initialized():
        return mine
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return [entry for part in everyone for entry in part]
