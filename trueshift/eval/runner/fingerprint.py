"""What must be the same for answers of an earlier run to count: the question, and the model that was asked."""

import hashlib
import json
import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...utils.provenance import device_name
from ..models.eval_model import Subject
from .tasks import Classification, Segmentation

_EXTERNAL = re.compile(rb"\x08location\x12([\x01-\x7f])", re.DOTALL)  # ONNX's key, and the length of its value
# always off here; and where a network comes from, whose weights and preparation are compared themselves
_NO_MATTER = {"training", "name_or_path", "pretrained_cfg", "default_cfg"}


def identity_of(task: Classification | Segmentation, total: int) -> dict[str, Any]:
    """The question and the model, as far as they can be told, as plain data.

    Device and batch size are part of it: kernels round by both, and the exactness of a mixture is that of neither.
    """
    subject, settings = task.subject, task.settings
    return {
        "model": subject.name,
        **_model(subject),
        "preparation": json.loads(json.dumps(task.preparation())),
        "data": f"{task.source.title}, {total} images",
        "classes": _short(hashlib.sha256(json.dumps(task.source.classes).encode())),  # labels are kept as numbers
        "protocols": {protocol.name: repr(protocol) for protocol in task.protocols},
        "shifts": settings.shifts,
        "seed": settings.seed,
        "precision": settings.precision,
        "device": device_name(settings.device),
        "batch_size": subject.batch_size or settings.batch_size,
    }


def is_identified(subject: Subject) -> bool:
    """Whether it can be told from any other model; a bare function cannot."""
    return subject.module is not None or subject.fingerprint is not None


def onnx_fingerprint(path: Path) -> str:
    """Of an ONNX file, with the files beside it that hold its weights."""
    model = path.read_bytes()
    digest = hashlib.sha256(model)
    starts = [(match.end(), match[1][0]) for match in _EXTERNAL.finditer(model)]
    for name in sorted({model[start : start + length].decode(errors="replace") for start, length in starts}):
        if (path.parent / name).is_file():
            with (path.parent / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return _short(digest)


def _model(subject: Subject) -> dict[str, str | None]:
    if subject.module is None:
        return {"weights": subject.fingerprint}
    return {"weights": _weights(subject.module), "network": _network(subject.module), "code": _code(subject.module)}


def _weights(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return _short(digest)


def _network(module: nn.Module) -> str:
    """What is built besides weights: a criterion or a padding may have none."""
    parts = (f"{name} {type(part).__qualname__} {_told(vars(part))}" for name, part in module.named_modules())
    return _short(hashlib.sha256("\n".join(parts).encode()))


def _told(value: Any) -> str:
    """A value as any process would tell it: objects by their kind, since an address is another each time."""
    if is_dataclass(value) and not isinstance(value, type):
        return _told({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, dict):
        public = {str(key): each for key, each in value.items() if not str(key).startswith("_")}
        return "{" + ", ".join(f"{key}: {_told(each)}" for key, each in public.items() if key not in _NO_MATTER) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_told, value)) + "]"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


def _code(module: nn.Module) -> str:
    """The files that its classes stand in: with the same parts, another ``forward`` is another model."""
    modules = {type(part).__module__ for part in module.modules()}
    digest = hashlib.sha256()
    for name in sorted(modules):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).is_file():
            digest.update(name.encode() + Path(file).read_bytes())
    return _short(digest)


def _short(digest: Any) -> str:
    return digest.hexdigest()[:16]
