"""The network to train: built by name, from published weights or from another run."""

import os
import tempfile
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import timm
from timm.models import save_for_hf
from torch import nn

from ..data.transforms import Preparation
from ..layers.checks import check_size
from ..models import create_model
from ..models import hub as saving
from ..models.backbone import Backbone
from ..models.config import BackboneConfig, check_one_grid
from ..models.foreign import described_criterion, is_adapted
from ..models.registry import is_ours, resolve_name
from ..tasks import UperNet, adapt, from_pretrained
from ..tasks.upernet import ARCHITECTURE, UperNetConfig
from .config import TrainConfig


def build_network(config: TrainConfig, num_classes: int) -> nn.Module:
    """The network of a configuration, with a logit for each class."""
    asked, given = config.model, backbone_arguments(config)
    model: Any
    if asked.start_from:
        if _is_timms(asked.name):
            instead = f"--model.name local-dir:{asked.start_from} --model.pretrained true"
            raise ValueError(f"{asked.name} of timm's: model.start_from is for networks of ours; needs {instead}")
        model = _started(asked.name, Path(asked.start_from), given)
        if model.num_classes != num_classes:
            model.reset_classifier(num_classes)
    elif is_ours(asked.name):
        model = create_model(asked.name, asked.pretrained, num_classes=num_classes, **given)
    else:
        if not _is_timms(asked.name):
            resolve_name(asked.name)  # raises with a suggestion
        if given.pop("padding", None) == "circular":
            raise ValueError(f"{asked.name} of timm's cannot be padded circularly: needs --model.padding null")
        chosen = {key: given.pop(key) for key in ("criterion", "grid_drop_rate") if key in given}
        made = partial(timm.create_model, asked.name, pretrained=asked.pretrained, num_classes=num_classes)
        try:
            model = made(**given)
        except TypeError:  # convolutional networks have no img_size argument
            given.pop("img_size", None)
            model = made(**given)
        if chosen:
            model = adapt(model, **chosen)
        model.made_with = given  # needed to save it; timm does not keep it
    return model.train()


def _is_timms(name: str) -> bool:
    return not is_ours(name) and (":" in name or timm.is_model(name.partition(".")[0]))


def backbone_arguments(config: TrainConfig) -> dict[str, Any]:
    """Arguments of the network beside its name."""
    asked = config.model
    named = {"drop_path_rate": asked.drop_path_rate, "grid_drop_rate": asked.grid_drop_rate, "padding": asked.padding}
    arguments = {**named, "img_size": config.data.img_size, **asked.arguments}
    return {key: value for key, value in arguments.items() if value is not None}


def decoder_arguments(config: TrainConfig, kind: type) -> dict[str, Any]:
    """Arguments of what follows the backbone of a dense network; the first is not the user's."""
    given: dict[str, Any] = getattr(config, config.task).decoder
    _, *known = (field.name for field in fields(kind))
    if unknown := sorted(given.keys() - set(known)):
        raise ValueError(f"{config.task}.decoder has {', '.join(unknown)}: needs some of {', '.join(known)}")
    return given


def build_segmenter(config: TrainConfig, num_classes: int) -> UperNet:
    """UperNet on the network of a configuration; either may start from a folder."""
    asked, decoder = config.model, decoder_arguments(config, UperNetConfig)
    if _is_timms(asked.name):
        raise ValueError(f"{asked.name} is timm's own: UperNet needs a network of ours, e.g. a_swin_tiny")
    if not is_ours(asked.name):
        resolve_name(asked.name)  # raises with a suggestion
    folder = Path(asked.start_from or "")
    if asked.start_from and saving.read_config(saving.fetch(folder, saving.CONFIG))["architecture"] == ARCHITECTURE:
        model = _started(asked.name, folder, backbone_arguments(config), decoder)
        if model.num_classes != num_classes:
            raise ValueError(f"{folder} knows {model.num_classes} classes: needs the {num_classes} of the data")
    else:
        check_one_grid(asked.arguments)
        model = UperNet(build_network(config, num_classes), num_classes, **decoder)  # type: ignore[arg-type]
    return model.train()


def _started(name: str, folder: Path, changes: dict[str, Any], decoder: dict[str, Any] | None = None) -> Any:
    """A backbone of another run, or UperNet with a decoder; ``changes`` override the backbone's arguments."""
    load: Any = Backbone.from_pretrained if decoder is None else partial(from_pretrained, **decoder)
    model = load(folder)
    asked = create_model(name, **changes).config
    if _to_adapt(model if decoder is None else model.encoder, name, asked, folder):
        return adapt(model, **{key: getattr(asked, key) for key in changes})
    return load(folder, **changes)


def _to_adapt(model: Backbone, name: str, asked: BackboneConfig, folder: Path) -> bool:
    """Whether a folder holds the ordinary twin of the wanted adaptive network; other networks are refused."""
    held, wanted = model.architecture, resolve_name(name.partition(".")[0])
    alike = held.removeprefix("a_") == wanted.removeprefix("a_") or _structure(model.config) == _structure(asked)
    if not alike or (held.startswith("a_") and not wanted.startswith("a_")):
        raise ValueError(f"{folder} holds a {held}: needs {wanted}, or the ordinary network to adapt")
    return held.startswith("a_") != wanted.startswith("a_")


def _structure(config: BackboneConfig) -> tuple[type, dict[str, Any]]:
    """What the shapes of the weights depend on; identifies networks without a registered name."""
    usual = {field.name for field in fields(BackboneConfig)}
    own = [field.name for field in fields(config) if field.name not in usual and not field.name.endswith("_rate")]
    return type(config), {name: getattr(config, name) for name in own}


def preparation_for(config: TrainConfig, model: nn.Module) -> Preparation:
    """The network's preparation of images, with the configuration's overrides."""
    preparation = Preparation.from_config(dict(model.pretrained_cfg))  # type: ignore[arg-type]
    if config.data.crop_pct is not None:
        preparation = replace(preparation, crop_pct=config.data.crop_pct)
    if config.data.img_size is not None:
        preparation = replace(preparation, size=(config.data.img_size, config.data.img_size))
    if isinstance(model, Backbone):
        check_size(preparation.size, model.size_multiple)
    return preparation


def save_network(model: nn.Module, folder: Path, preparation: Preparation, classes: list[str]) -> Path:
    """Write a folder that ``trueshift eval``, ``from_pretrained`` and timm read, with the preparation of images."""
    about = {"num_classes": len(classes), "label_names": list(classes)}
    prepared = {key: getattr(preparation, key) for key in ("crop_pct", "mean", "std", "interpolation")}
    cfg = {**dict(model.pretrained_cfg), "input_size": (3, *preparation.size), **prepared}  # type: ignore[arg-type]
    model.pretrained_cfg = {**cfg, **about, "hf_hub_id": None}  # type: ignore[assignment]
    if isinstance(model, Backbone):
        return model.save_pretrained(folder, **about)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as draft:
        adapted = {"adapted": {"criterion": described_criterion(model)}} if is_adapted(model) else {}
        save_for_hf(model, draft, about | adapted, getattr(model, "made_with", None), safe_serialization=True)
        for written in Path(draft).iterdir():
            os.replace(written, folder / written.name)
    return folder
