"""The paper's tables on a data set, in one process or many; an interrupted run resumes."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...data import Source
from ...utils.provenance import circumstances
from ..models.eval_model import EvalModel
from ..options import EvalOptions, Progress
from ..protocols.real_motion import CropsApart, Jitter
from ..protocols.registry import ShiftProtocol
from .fingerprint import identity_of, is_identified
from .records import Journal, Record
from .tasks import Task, problem_of, task_of

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
    shifts = {each.name: options.shifts - each.against_unshifted if options.shifts else None for each in protocols}
    task = task_of(model, source, protocols, options, shifts)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    total = min(options.limit or len(source), len(source))
    journal = Journal(output, identity_of(task, total), rank, world) if output else None
    tallies = [task.tally(protocol) for protocol in protocols]
    skipped: list[dict[str, str]] = []
    for done, record in enumerate(_answers(task, journal, range(rank, total, world)), 1):
        if problem := problem_of(record):
            skipped.append({"name": record.name, "reason": problem})
        else:
            for tally in tallies:
                tally.add(record)
        if progress:
            progress("images", min(done * world, total), total)
    return {
        **result_header(task, total, _gathered(skipped)),
        "processes": world,
        "model": model_facts(model),
        "measured": {tally.protocol.name: tally.summary() for tally in tallies},
    }


def _answers(task: Task, journal: Journal | None, mine: range) -> Iterator[Any]:
    """Those on disk, then those to the other images, written as they come."""
    known, output = (journal.read(), journal.folder.parent) if journal else ({}, None)
    if known and not is_identified(task.model):
        raise ValueError(
            f"{output} holds answers, and {task.model.name} is a function, which cannot be distinguished from "
            "another: needs another --output; only a torch module or a file can resume"
        )
    if dist.is_initialized():
        dist.barrier()  # nobody writes before everybody has read
    for index in filter(known.__contains__, mine):
        if known[index].name != task.source.name(index):
            names = f"image {index} was {known[index].name}, is {task.source.name(index)}"
            raise ValueError(f"{output} holds answers to another question ({names}): needs another --output")
        yield known[index]
    left = [index for index in mine if index not in known]
    with journal.open() if journal else nullcontext() as file:
        for record in task.measure(task.read(left)):
            if journal and file and isinstance(record, Record):
                journal.write(file, record.to_plain())
            yield record


def result_header(task: Task, images: int, skipped: list[dict[str, str]]) -> dict[str, Any]:
    """What every result reports of the question, as plain data."""
    return {
        "schema": SCHEMA,
        **circumstances(task.options.seed),
        "task": task.name,
        "settings": task.options.to_dict(task.model.dense),
        "data": {"title": task.source.title, "images": images, "skipped": skipped, "classes": task.source.classes},
        "protocols": {
            protocol.name: {
                "title": protocol.title,
                "description": task.describe(protocol),
                "against_unshifted": protocol.against_unshifted,
                "real_motion": isinstance(protocol.motion, CropsApart | Jitter),
            }
            for protocol in task.protocols
        },
    }


def model_facts(model: EvalModel) -> dict[str, Any]:
    """What a result reports of a model, as plain data."""
    facts = {key: getattr(model, key) for key in ("name", "weights", "random", "assumed", "num_classes")}
    return {**facts, "preparation": model.preparation.to_dict()}


def _gathered(mine: list[dict[str, str]]) -> list[dict[str, str]]:
    if not dist.is_initialized():
        return mine
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return [entry for part in everyone for entry in part]
