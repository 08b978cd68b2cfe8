"""Segmentation networks in folders and on the Hugging Face Hub, beside the backbones alone."""

from pathlib import Path
from typing import Any

from ..models import hub as saving
from ..models.backbone import Backbone
from ..models.registry import name_of
from ..utils.files import json_text, write_whole
from .upernet import UperNet

ARCHITECTURE = "upernet"


def save_segmenter(model: UperNet, directory: str | Path, **model_config: Any) -> Path:
    """Write ``config.json`` and ``model.safetensors``; what was there before is replaced only when both are complete.

    Args:
        model_config: further entries for the configuration, such as ``label_names``.
    """
    saving.check_names(model_config, model.num_classes)
    of_classifier = ("num_classes", "global_pool", "drop_rate")
    arguments = {key: value for key, value in saving.arguments_of(model.encoder).items() if key not in of_classifier}
    config = {
        "architecture": ARCHITECTURE,
        "backbone": name_of(model.encoder),
        "backbone_args": arguments,
        "num_classes": model.num_classes,
        "model_args": model.own_arguments(),
        "pretrained_cfg": model.pretrained_cfg,
        **model_config,
    }
    return saving.write_model(directory, model.state_dict(), lambda path: _write(path, config))


def _write(path: Path, config: dict[str, Any]) -> None:
    write_whole(path, json_text(config))


def from_pretrained(source: str | Path, **changes: Any) -> Backbone | UperNet:
    """What ``save_pretrained`` of a backbone or a segmentation network wrote, from a folder or the Hub.

    Args:
        source: a folder, or a repository ``"user/name"``, also as ``"hf_hub:user/name"``.
        changes: arguments of :func:`~trueshift.create_model` (of :class:`~trueshift.UperNet` for a segmentation
            network) to set otherwise; those that change the shape of the weights are refused by them.
    """
    config = saving.read_config(saving.fetch(source, saving.CONFIG))
    if config["architecture"] != ARCHITECTURE:
        return saving.restored(source, config, **changes)
    try:
        backbone, classes = config["backbone"], config["num_classes"]
        arguments = {**config["backbone_args"], **config["model_args"], **changes}
    except KeyError as error:
        raise ValueError(f"the configuration of {source} does not say {error}: save the model again") from error
    model = UperNet(backbone, classes, **arguments)
    model.pretrained_cfg = {**model.pretrained_cfg, **saving.said_of(config, model.num_classes)}
    saving.load_weights(model, saving.fetch(source, saving.WEIGHTS), f"UperNet on {backbone}")
    return model.eval()
