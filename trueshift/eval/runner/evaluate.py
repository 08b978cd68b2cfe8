"""The paper's tables on a data set, in one process or many; an interrupted run resumes."""

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...data import Source
from ...data.subset import spread
from ...utils.distributed import gathered
from ...utils.evaluation_mode import in_evaluation
from ...utils.provenance import circumstances, device_name
from ..models.eval_model import EvalModel
from ..options import EvalOptions, Progress
from ..protocols.registry import ShiftProtocol
from ..protocols.shifts import CropsApart, Jitter
from .records import Journal, Record
from .tasks import Task, problem_of, task_of

SCHEMA = 1
# always off here; and where a network comes from, whose weights and preparation are compared themselves
_NO_MATTER = {"training", "name_or_path", "pretrained_cfg", "default_cfg"}


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
    if not protocols:
        raise ValueError("no protocols: needs at least one, e.g. find_protocols(['circular'])")
    options = options or EvalOptions()
    shifts = {each.name: options.shifts - each.against_unshifted if options.shifts else None for each in protocols}
    task = task_of(model, source, protocols, options, shifts)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    indices = spread(len(source), options.limit)
    total = len(indices)
    journal = Journal(output, identity_of(task, total), rank, world) if output else None
    tallies = [task.tally(protocol) for protocol in protocols]
    skipped: list[dict[str, str]] = []
    with in_evaluation(*filter(None, [model.module])):
        for done, record in enumerate(_answers(task, journal, indices[rank::world]), 1):
            if problem := problem_of(record):
                skipped.append({"name": record.name, "reason": problem})
            else:
                for tally in tallies:
                    tally.add(record)
            if progress:
                progress("images", min(done * world, total), total)
    return {
        **result_header(task, total, [entry for part in gathered(skipped) for entry in part]),
        "processes": world,
        "model": model_facts(model),
        "measured": {tally.protocol.name: tally.summary() for tally in tallies},
    }


def _answers(task: Task, journal: Journal | None, mine: list[int]) -> Iterator[Any]:
    """Those on disk, then those to the other images, written as they come."""
    known, output = (journal.read(), journal.folder.parent) if journal else ({}, None)
    if known and task.model.module is None and task.model.fingerprint is None:
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


# what must be the same for a run to resume: the question, and the model that was asked


def identity_of(task: Task, total: int) -> dict[str, Any]:
    """The question and the model, as far as they can be identified, as plain data.

    Device and batch size are part of it: kernels round by both.
    """
    model, options = task.model, task.options
    return {
        "model": model.name,
        **_model(model),
        "preparation": model.preparation.to_dict(),
        "data": f"{task.source.title}, {total} images",
        "classes": _short(hashlib.sha256(json.dumps(task.source.classes).encode())),  # labels are kept as numbers
        "protocols": {protocol.name: repr(protocol) for protocol in task.protocols},
        "shifts": options.shifts,
        "seed": options.seed,
        "precision": options.precision,
        "device": device_name(options.device),
        "batch_size": task.batch_size,
    }


def _model(model: EvalModel) -> dict[str, str | None]:
    if model.module is None:
        return {"weights": model.fingerprint}
    weights = hashlib.sha256()
    for name, value in sorted((model.module.state_dict() | dict(model.module.named_buffers())).items()):
        weights.update(name.encode() + _bytes(value))
    return {"weights": _short(weights), "network": _network(model.module), "code": _code(model.module)}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _network(module: nn.Module) -> str:
    """Everything but weights: a criterion or a padding may have none."""
    parts = (f"{name} {type(part).__qualname__} {_text(vars(part))}" for name, part in module.named_modules())
    return _short(hashlib.sha256("\n".join(parts).encode()))


def _text(value: Any) -> str:
    """A value as any process would write it: objects by their kind, since their addresses differ."""
    if is_dataclass(value) and not isinstance(value, type):
        return _text({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, dict):
        public = {str(key): each for key, each in value.items() if not str(key).startswith("_")}
        return "{" + ", ".join(f"{key}: {_text(each)}" for key, each in public.items() if key not in _NO_MATTER) + "}"
    if isinstance(value, tuple | list | set | frozenset):
        return "[" + ", ".join(map(_text, value if isinstance(value, tuple | list) else sorted(value, key=_text))) + "]"
    if isinstance(value, Tensor):
        return _short(hashlib.sha256(_bytes(value)))
    if value is None or isinstance(value, bool | int | float | str | range | torch.dtype):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


def _code(module: nn.Module) -> str:
    """The files of its classes: with the same parts, another ``forward`` is another model."""
    modules = {type(part).__module__ for part in module.modules()}
    digest = hashlib.sha256()
    for name in sorted(modules):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).is_file():
            digest.update(name.encode() + Path(file).read_bytes())
    return _short(digest)


def _short(digest: Any) -> str:
    return digest.hexdigest()[:16]
