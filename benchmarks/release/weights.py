"""Trained weights in one small file each: float16, with all that is needed to build the network again."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trueshift.models.hub import CONFIG, WEIGHTS


def keep_weights(folder: Path, file: Path) -> Path:
    """Copy what ``save_pretrained`` wrote to one file."""
    tensors = load_file(folder / WEIGHTS)
    halved = {key: value.half() if value.is_floating_point() else value for key, value in tensors.items()}
    if too_large := [key for key, value in halved.items() if not bool(torch.isfinite(value.float()).all())]:
        raise ValueError(f"{too_large[0]} of {folder} does not fit into float16")
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    save_file(halved, draft, metadata={"format": "pt", "config": (folder / CONFIG).read_text()})
    draft.replace(file)
    return file


def restore_weights(file: Path, folder: Path) -> Path:
    """A folder that ``from_pretrained`` reads, in float32; the values are those of float16."""
    with safe_open(file, "pt") as opened:
        config = json.loads(opened.metadata()["config"])
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.float() if value.is_floating_point() else value for key, value in load_file(file).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2))
    return folder
