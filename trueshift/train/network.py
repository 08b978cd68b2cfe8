"""The network that is trained: built by name, from published weights or from another run's."""

import os
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import timm
from timm.models import save_for_hf
from torch import nn

from ..data.prepare import Preparation
from ..layers.tokenize import check_size
from ..models import create_model, from_pretrained, saving
from ..models.backbone import Backbone
from ..models.config import BackboneConfig
from ..models.registry import is_ours, resolve_name
from ..models.saving import name_of, save_pretrained
from ..tasks import UperNet, adapt
from ..tasks.saving import ARCHITECTURE
from ..tasks.saving import from_pretrained as from_folder
from .config import TrainConfig


def build_network(config: TrainConfig, num_classes: int) -> nn.Module:
    """The network a configuration asks for, with an answer for each class."""
    asked = config.model
    arguments = {
        "drop_path_rate": asked.drop_path_rate,
        "padding": asked.padding,
        "img_size": config.data.img_size,
        **asked.arguments,
    }
    given = {key: value for key, value in arguments.items() if value is not None}
    if asked.start_from:
        model = _from_folder(asked.name, Path(asked.start_from), given)
        if model.num_classes != num_classes:
            model.reset_classifier(num_classes)
        return model.train()
    if not is_ours(asked.name):
        if ":" not in asked.name and not timm.is_model(asked.name.partition(".")[0]):
            resolve_name(asked.name)  # says what may have been meant
        if given.pop("padding", None) == "circular":
            raise ValueError(f"{asked.name} of timm's cannot be padded circularly: needs --model.padding null")
        return _of_timm(asked.name, asked.pretrained, num_classes, given)
    return create_model(asked.name, asked.pretrained, num_classes=num_classes, **given).train()


def build_segmenter(config: TrainConfig, num_classes: int) -> UperNet:
    """UperNet on the network a configuration asks for, or one of another run's."""
    asked = config.model
    folder = Path(asked.start_from) if asked.start_from else None
    if folder is not None and saving.read_config(folder / saving.CONFIG)["architecture"] == ARCHITECTURE:
        return _segmenter_from(folder, asked.name, num_classes)
    resolve_name(asked.name.partition(".")[0])  # says what may have been meant
    backbone: Any = build_network(config, num_classes)
    return UperNet(backbone, num_classes, **config.segmentation.decoder).train()


def _segmenter_from(folder: Path, name: str, num_classes: int) -> UperNet:
    """Another run's; the ordinary network is adapted if the adaptive one is asked for."""
    model: Any = from_folder(folder)
    held, wanted = name_of(model.encoder), resolve_name(name)
    if model.num_classes != num_classes:
        raise ValueError(f"{folder} knows {model.num_classes} classes: needs the {num_classes} of the data")
    if wanted == f"a_{held}":
        model = adapt(model)
    elif held != wanted:
        raise ValueError(f"{folder} holds UperNet on {held}: needs {wanted}, or the ordinary network to adapt")
    return model.train()


def _of_timm(name: str, pretrained: bool, num_classes: int, given: dict[str, Any]) -> nn.Module:
    """A network of timm's; a convolutional one takes any size and is not told of it."""
    try:
        model: Any = timm.create_model(name, pretrained=pretrained, num_classes=num_classes, **given)
    except TypeError:
        given = {key: value for key, value in given.items() if key != "img_size"}
        model = timm.create_model(name, pretrained=pretrained, num_classes=num_classes, **given)
    model.made_with = given  # timm does not remember it, and a saved network needs it
    return model.train()


def _from_folder(name: str, folder: Path, changes: dict[str, Any]) -> Backbone:
    """Weights of another run; the ordinary network is adapted if the adaptive one is asked for."""
    wanted, model = resolve_name(name), from_pretrained(folder)
    held = name_of(model)
    asked = create_model(wanted, **changes).config
    if held.removeprefix("a_") == wanted.removeprefix("a_") or _structure(model.config) == _structure(asked):
        if held.startswith("a_") == wanted.startswith("a_"):
            return from_pretrained(folder, **changes) if changes else model
        if wanted.startswith("a_"):
            return adapt(model, **{key: getattr(asked, key) for key in changes})
    raise ValueError(f"{folder} holds a {held}: needs {wanted}, or the ordinary network to adapt")


def _structure(config: BackboneConfig) -> tuple[type, dict[str, Any]]:
    """What the weights depend on: a network of other sizes than those with names is known by these."""
    usual = {field.name for field in fields(BackboneConfig)}
    own = [field.name for field in fields(config) if field.name not in usual and not field.name.endswith("_rate")]
    return type(config), {name: getattr(config, name) for name in own}


def preparation_for(config: TrainConfig, model: nn.Module) -> Preparation:
    """How the network wants its pictures, with what the configuration says of it."""
    preparation = Preparation.from_config(dict(model.pretrained_cfg))  # type: ignore[arg-type]
    if config.data.crop_pct is not None:
        preparation = replace(preparation, crop_pct=config.data.crop_pct)
    if config.data.img_size is not None:
        preparation = replace(preparation, size=(config.data.img_size, config.data.img_size))
    if isinstance(model, Backbone):
        check_size(preparation.size, model.size_multiple)
    return preparation


def save_network(model: nn.Module, folder: Path, preparation: Preparation, classes: list[str]) -> Path:
    """A folder that ``trueshift eval``, ``from_pretrained`` and timm read, with how pictures were prepared."""
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
        return save_pretrained(model, folder, num_classes=len(classes), label_names=list(classes))
    folder.mkdir(parents=True, exist_ok=True)
    about = {"num_classes": len(classes), "label_names": list(classes)}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as draft:
        save_for_hf(model, draft, about, getattr(model, "made_with", None), safe_serialization=True)
        for written in Path(draft).iterdir():
            os.replace(written, folder / written.name)
    return folder
