"""The network that is trained: built by name, from published weights or from another run's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
from torch import nn

from ..data.prepare import Preparation
from ..layers.tokenize import check_size
from ..models import adapt, create_model, from_pretrained
from ..models.backbone import Backbone
from ..models.registry import resolve_name
from ..models.saving import name_of, save_pretrained
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
        given.pop("padding", None)
        return timm.create_model(asked.name, pretrained=asked.pretrained, num_classes=num_classes, **given).train()
    return create_model(asked.name, asked.pretrained, num_classes=num_classes, **given).train()


def is_ours(name: str) -> bool:
    """Whether a network is one of trueshift's; an unknown name is refused."""
    if timm.is_model(name.split(".")[0]) and not name.startswith("a_"):
        try:
            resolve_name(name.split(".")[0])
        except ValueError:
            return False
        return True
    return bool(resolve_name(name.split(".")[0]))


def _from_folder(name: str, folder: Path, changes: dict[str, Any]) -> Backbone:
    """Weights of another run; the ordinary network is adapted if the adaptive one is asked for."""
    wanted = resolve_name(name)
    model = from_pretrained(folder)
    if name_of(model) == wanted.removeprefix("a_") and wanted != name_of(model):
        model = adapt(model, **changes)
    elif changes:
        model = from_pretrained(folder, **changes)
    if name_of(model) != wanted:
        raise ValueError(f"{folder} holds a {name_of(model)}: needs {wanted}, or the ordinary network to adapt")
    return model


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
    from timm.models import save_for_hf

    folder.mkdir(parents=True, exist_ok=True)
    save_for_hf(
        model, str(folder), {"num_classes": len(classes), "label_names": list(classes)}, safe_serialization=True
    )
    return folder
