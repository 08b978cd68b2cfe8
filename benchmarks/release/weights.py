"""Trained weights in one small file each: in half precision, with all that is needed to build the network again."""

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save

from trueshift.models.bundled_weights import packed, unpacked
from trueshift.models.hub import CONFIG, WEIGHTS, write_model
from trueshift.utils.files import write_whole


def keep_weights(folder: Path, file: Path) -> Path:
    """Copy what ``save_pretrained`` wrote to one file."""
    stored = packed(load_file(folder / WEIGHTS))
    if too_large := [key for key, value in stored.items() if not value.isfinite().all()]:
        raise ValueError(f"{too_large[0]} of {folder} does not fit into float16")
    file.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(file, save(stored, metadata={"format": "pt", "config": (folder / CONFIG).read_text()}))


def restore_weights(file: Path, folder: Path) -> Path:
    """A folder that ``from_pretrained`` reads, in float32; the values are those of the file."""
    with safe_open(file, "pt") as opened:
        config = json.loads(opened.metadata()["config"])
    return write_model(folder, unpacked(load_file(file)), config)
