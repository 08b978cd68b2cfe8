"""Bundled weights: found by name and tag, checked, and read without a network.

A model has three files in ``trueshift/weights``: ``NAME.TAG.safetensors``, ``NAME.TAG.json`` with all that is known of
it, and ``NAME.TAG.md``, its card. ``benchmarks/release/ship_weights.py`` writes them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm.models import PretrainedCfg
from torch import Tensor

from ..utils.files import sha256_of

FOLDER = Path(__file__).parents[1] / "weights"
_PARTS = ("architecture", "tag", "arguments", "pretrained_cfg", "weights")
_SOURCES = ("file", "url", "hf_hub_id", "state_dict")
_ORDINARY_ONLY = ("criterion", "anchor", "padding")
_REPAIR = "install trueshift again (pip install --force-reinstall --no-deps), or check the file out again"


class DamagedWeights(ValueError):
    """A file of the package that is not as it was shipped."""


@dataclass(frozen=True)
class Shipped:
    """The weights of one model and what is known of them."""

    about: dict[str, Any]  # content of NAME.TAG.json
    path: Path  # of the weights
    borrowed: bool = False  # from the ordinary network, for its adaptive twin

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments that the weights need; for an adaptive twin, those that their shapes need."""
        own = dict(self.about["arguments"])
        if not self.borrowed:
            return own
        if own.get("positions") == "linear":
            own["positions"] = "shortest"  # the same table, read around the image
        return {key: value for key, value in own.items() if key not in _ORDINARY_ONLY}

    @property
    def num_classes(self) -> int:
        """How many classes the weights know."""
        return self.about["pretrained_cfg"]["num_classes"]

    def pretrained_cfg(self, num_classes: int | None) -> dict[str, Any]:
        """timm's description, with the names of the classes for a model with as many classes."""
        about = self.about["pretrained_cfg"]
        known = {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}
        if num_classes != self.num_classes:  # a new classifier: the names would be wrong
            known.pop("label_names", None)
        return {**known, "file": str(self.path), "tag": self.about["tag"]}

    def check(self) -> None:
        """Refuse a file that is not the one that was shipped."""
        if not self.path.is_file():
            raise DamagedWeights(f"{self.path} is missing: {_REPAIR}")
        found, wanted = sha256_of(self.path), self.about["weights"]["sha256"]
        if found != wanted:
            size, whole = self.path.stat().st_size, self.about["weights"]["bytes"]
            details = f"{size:,} of {whole:,} bytes, sha256 {found[:12]}..., needs {wanted[:12]}..."
            raise DamagedWeights(f"{self.path} is damaged ({details}): {_REPAIR}")


def tags_of(name: str) -> dict[str, Path]:
    """Descriptions of a model's shipped weights, by tag; an adaptive model's own before those of its ordinary twin."""
    own = {path.stem.partition(".")[2]: path for path in sorted(FOLDER.glob(f"{name}.*.json"))}
    twin = tags_of(name.removeprefix("a_")) if name.startswith("a_") else {}
    return {**own, **{tag: path for tag, path in twin.items() if tag not in own}}


def has_own_weights(name: str) -> bool:
    """Whether bundled weights were trained as this very network, not as its ordinary twin."""
    return any(path.name.startswith(f"{name}.") for path in tags_of(name).values())


def find_shipped(
    name: str, tag: str | Mapping[str, Any] | PretrainedCfg | None = None, overlay: Mapping[str, Any] | None = None
) -> Shipped | None:
    """The requested bundled weights, if there are any; their description alone is read.

    Args:
        tag: the first there is if none is given; a whole ``pretrained_cfg`` asks for weights from elsewhere.
        overlay: timm's ``pretrained_cfg_overlay``, which may also name weights from elsewhere.
    """
    if (tag and not isinstance(tag, str)) or any((overlay or {}).get(source) for source in _SOURCES):
        return None
    tags = tags_of(name)
    path = tags.get(tag) if isinstance(tag, str) and tag else next(iter(tags.values()), None)
    if path is None:
        return None
    try:
        about = json.loads(path.read_text())
        missing = [part for part in _PARTS if part not in about]
    except (ValueError, TypeError, OSError) as error:  # also text that is not UTF-8
        raise DamagedWeights(f"{path} cannot be read ({error}): {_REPAIR}") from error
    if missing:
        raise DamagedWeights(f"{path} has no {', '.join(missing)}: {_REPAIR}")
    return Shipped(about, path.with_name(about["weights"]["file"]), borrowed=not path.name.startswith(f"{name}."))


def packed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are stored: half precision for parameters, statistics of a norm as they are."""

    def halved(key: str, value: Tensor) -> bool:
        return value.is_floating_point() and not key.endswith((".running_mean", ".running_var"))

    return {key: (value.half() if halved(key, value) else value).contiguous() for key, value in state.items()}


def unpacked(state: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`packed` made, in float32 before timm sums its channels for ``in_chans=1``; the rest as it is."""
    return {
        key: value.float() if isinstance(value, Tensor) and value.dtype == torch.float16 else value
        for key, value in state.items()
    }
