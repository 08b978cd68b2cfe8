"""What must be the same for a run to resume: the question, and the model that was asked."""

import hashlib
import json
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...utils.provenance import device_name
from ..models.eval_model import EvalModel
from .tasks import Task

# always off here; and where a network comes from, whose weights and preparation are compared themselves
_NO_MATTER = {"training", "name_or_path", "pretrained_cfg", "default_cfg"}


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


def is_identified(model: EvalModel) -> bool:
    """Whether it can be distinguished from any other model; a bare function cannot."""
    return model.module is not None or model.fingerprint is not None


def _model(model: EvalModel) -> dict[str, str | None]:
    if model.module is None:
        return {"weights": model.fingerprint}
    weights = hashlib.sha256()
    for name, value in sorted(model.module.state_dict().items()):
        weights.update(name.encode())
        weights.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return {"weights": _short(weights), "network": _network(model.module), "code": _code(model.module)}


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
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if value is None or isinstance(value, bool | int | float | str):
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
