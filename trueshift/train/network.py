"""The network to train: built by name, from published weights or from another run."""

import os
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import timm
from timm.models import save_for_hf
from torch import nn

from ..data.transforms import Preparation
from ..layers.tokenize import check_size
from ..models import create_model
from ..models import hub as saving
from ..models.backbone import Backbone
from ..models.config import BackboneConfig
from ..models.registry import is_ours, name_of, resolve_name
from ..tasks import UperNet, adapt, from_pretrained
from ..tasks.upernet import ARCHITECTURE, UperNetConfig
from .config import TrainConfig


def build_network(config: TrainConfig, num_classes: int) -> nn.Module:
    """The network of a configuration, with a logit for each class."""
    asked, given = config.model, _arguments(config)
    if asked.start_from:
        model = _from_folder(asked.name, Path(asked.start_from), given)
        if model.num_classes != num_classes:
            model.reset_classifier(num_classes)
        return model.train()
    if not is_ours(asked.name):
        if ":" not in asked.name and not timm.is_model(asked.name.partition(".")[0]):
            resolve_name(asked.name)  # raises with a suggestion
        if given.pop("padding", None) == "circular":
            raise ValueError(f"{asked.name} of timm's cannot be padded circularly: needs --model.padding null")
        return _of_timm(asked.name, asked.pretrained, num_classes, given)
    return create_model(asked.name, asked.pretrained, num_classes=num_classes, **given).train()


def _arguments(config: TrainConfig) -> dict[str, Any]:
    """Arguments of the network beside its name."""
    asked = config.model
    arguments = {
        "drop_path_rate": asked.drop_path_rate,
        "grid_drop_rate": asked.grid_drop_rate,
        "padding": asked.padding,
        "img_size": config.data.img_size,
        **asked.arguments,
    }
    return {key: value for key, value in arguments.items() if value is not None}


def build_segmenter(config: TrainConfig, num_classes: int) -> UperNet:
    """UperNet on the network of a configuration; either may start from a folder."""
    asked, decoder = config.model, config.segmentation.decoder
    known = [field.name for field in fields(UperNetConfig) if field.name != "num_classes"]
    if unknown := sorted(decoder.keys() - set(known)):
        raise ValueError(f"segmentation.decoder has {', '.join(unknown)}: needs some of {', '.join(known)}")
    if not is_ours(asked.name):
        if timm.is_model(asked.name.partition(".")[0]):
            raise ValueError(f"{asked.name} is timm's own: UperNet needs a network of ours, e.g. a_swin_tiny")
        resolve_name(asked.name)  # raises with a suggestion
    if asked.start_from:
        folder = Path(asked.start_from)
        if saving.read_config(saving.fetch(folder, saving.CONFIG))["architecture"] == ARCHITECTURE:
            return _segmenter_from(folder, config, num_classes)
    backbone: Any = build_network(config, num_classes)
    return UperNet(backbone, num_classes, **decoder).train()


def _segmenter_from(folder: Path, config: TrainConfig, num_classes: int) -> UperNet:
    """UperNet of another run, decoder included; the configuration's arguments override its own."""
    given, decoder = _arguments(config), config.segmentation.decoder
    model: Any = from_pretrained(folder, **decoder)
    if model.num_classes != num_classes:
        raise ValueError(f"{folder} knows {model.num_classes} classes: needs the {num_classes} of the data")
    asked = create_model(config.model.name, **given).config
    if _to_adapt(model.encoder, config.model.name, asked, folder):
        model = adapt(model, **{key: getattr(asked, key) for key in given})
    elif given:
        model = from_pretrained(folder, **decoder, **given)
    return model.train()


def _of_timm(name: str, pretrained: bool, num_classes: int, given: dict[str, Any]) -> nn.Module:
    """A network of timm's; convolutional ones have no img_size argument."""
    try:
        model: Any = timm.create_model(name, pretrained=pretrained, num_classes=num_classes, **given)
    except TypeError:
        given = {key: value for key, value in given.items() if key != "img_size"}
        model = timm.create_model(name, pretrained=pretrained, num_classes=num_classes, **given)
    model.made_with = given  # needed to save it; timm does not keep it
    return model.train()


def _from_folder(name: str, folder: Path, changes: dict[str, Any]) -> Backbone:
    """Weights of another run; ``changes`` override its arguments."""
    model, asked = Backbone.from_pretrained(folder), create_model(name, **changes).config
    if _to_adapt(model, name, asked, folder):
        return adapt(model, **{key: getattr(asked, key) for key in changes})
    return Backbone.from_pretrained(folder, **changes) if changes else model


def _to_adapt(model: Backbone, name: str, asked: BackboneConfig, folder: Path) -> bool:
    """Whether a folder holds the ordinary twin of the wanted adaptive network; other networks are refused."""
    held, wanted = name_of(model), resolve_name(name.partition(".")[0])
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
    model.pretrained_cfg = {  # type: ignore[assignment]
        **dict(model.pretrained_cfg),  # type: ignore[arg-type]
        "input_size": (3, *preparation.size),
        "crop_pct": preparation.crop_pct,
        "mean": preparation.mean,
        "std": preparation.std,
        "interpolation": preparation.interpolation,
        "num_classes": len(classes),
        "label_names": list(classes),
        "hf_hub_id": None,
    }
    if isinstance(model, Backbone):
        return model.save_pretrained(folder, num_classes=len(classes), label_names=list(classes))
    folder.mkdir(parents=True, exist_ok=True)
    about = {"num_classes": len(classes), "label_names": list(classes)}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as draft:
        save_for_hf(model, draft, about, getattr(model, "made_with", None), safe_serialization=True)
        for written in Path(draft).iterdir():
            os.replace(written, folder / written.name)
    return folder
