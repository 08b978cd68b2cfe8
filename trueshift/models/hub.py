"""Models in folders and on the Hugging Face Hub: ``config.json`` as timm writes it, weights as safetensors."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.models._hub import save_config_for_hf
from torch import Tensor, nn

from .backbone import Backbone
from .mvit_v2 import MvitV2
from .registry import FAMILIES, create_model, name_of, resolve_name
from .selection_config import describe

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_pretrained(model: Backbone, directory: str | Path, **model_config: Any) -> Path:
    """Write ``config.json`` and ``model.safetensors``; what was there before is replaced only when both are complete.

    The folder is one of timm's: ``timm.create_model("local-dir:...", pretrained=True)`` reads it, and uploaded to the
    Hub, ``timm.create_model("hf_hub:...", pretrained=True)`` does.

    Args:
        model_config: further entries for the configuration, such as ``label_names``.
    """
    arguments = arguments_of(model)  # before anything is written: a criterion may have no name
    check_names(model_config, model.num_classes)

    def write_config(path: Path) -> None:
        if not model.pretrained_cfg.get("input_size"):  # made by its class: nothing was said of it
            model.tell_input_size()
        model.pretrained_cfg = {**model.pretrained_cfg, "architecture": name_of(model)}
        save_config_for_hf(model, path, dict(model_config), arguments)  # type: ignore[arg-type]

    return write_model(directory, model.state_dict(), write_config)


def write_model(directory: str | Path, weights: Mapping[str, Tensor], write_config: Callable[[Path], None]) -> Path:
    """Weights and configuration, drafted beside their place and moved there when both are on the disk."""
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"{directory} is a file: needs a folder to save to")
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.detach().contiguous() for key, value in weights.items()}
    with tempfile.TemporaryDirectory(dir=directory, prefix=".saving-") as draft:
        drafts = (Path(draft) / WEIGHTS, Path(draft) / CONFIG)
        save_file(tensors, drafts[0], metadata={"format": "pt"})
        write_config(drafts[1])
        for written in drafts:
            with written.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(written, directory / written.name)
    return directory


_NAMES = ("label_names", "label_descriptions")


def check_names(model_config: Mapping[str, Any], num_classes: int) -> None:
    """Refuse names of other classes than a model has."""
    names = model_config.get("label_names")
    if isinstance(names, list | tuple) and len(names) != num_classes:
        raise ValueError(f"{len(names)} label_names for {num_classes} classes: needs one for each")


def said_of(config: Mapping[str, Any], num_classes: int) -> dict[str, Any]:
    """The ``pretrained_cfg`` of a configuration, with the names of classes that stand beside it, as timm reads it."""
    names = {key: config[key] for key in _NAMES if config.get(key)}
    return {**config.get("pretrained_cfg", {}), **names, "num_classes": num_classes}


def arguments_of(model: Backbone) -> dict[str, Any]:
    """The fields of the configuration in which a model differs from the variant whose name it takes."""
    name = name_of(model)
    variant = FAMILIES[type(model)][name.removeprefix("a_")]
    named = type(model).Config(**{**variant, "criterion": "max_norm" if name.startswith("a_") else "fixed"})
    own, usual = model.config.arguments(), named.arguments()
    own["num_classes"], own["global_pool"] = model.num_classes, model.global_pool
    different = {key: value for key, value in own.items() if value != usual[key]}
    if isinstance(model, MvitV2):
        different["positions"] = model.config.choices.position_mode  # which tables the weights have
    if "criterion" in different:
        different["criterion"] = describe(different["criterion"])
    return different


def from_pretrained(source: str | Path, **changes: Any) -> Backbone:
    """The model that :func:`save_pretrained` wrote, from a folder or from the Hugging Face Hub.

    Args:
        source: a folder, or a repository ``"user/name"``, also as ``"hf_hub:user/name"``.
        changes: arguments of :func:`~trueshift.models.registry.create_model` to set otherwise; those that change
            the shape of the weights are refused by them.
    """
    return restored(source, read_config(fetch(source, CONFIG)), **changes)


def restored(source: str | Path, config: dict[str, Any], **changes: Any) -> Backbone:
    """The model that a configuration describes, with the weights beside it."""
    weights_file = fetch(source, WEIGHTS)
    name = resolve_name(config["architecture"])
    arguments = config.get("model_args", {})
    model = create_model(name, **{"num_classes": config.get("num_classes"), **arguments, **changes})
    model.pretrained_cfg = {**model.pretrained_cfg, **said_of(config, model.num_classes), "architecture": name}
    if "img_size" in changes:
        model.tell_input_size()
    load_weights(model, weights_file, name_of(model))
    return model.eval()


def read_config(path: Path) -> dict[str, Any]:
    """What a model's ``config.json`` says; it names an architecture at least."""
    config = read_json(path)
    if not isinstance(config.get("architecture"), str):
        raise ValueError(f"{path} is not the configuration of a model (no architecture): save the model again")
    return config


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds a dictionary."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: needs a folder written by save_pretrained")
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:  # also text that is not UTF-8
        raise ValueError(f"{path} is not the configuration of a model ({error}): save the model again") from error


def fetch(source: str | Path, name: str) -> Path:
    """One file of a folder, or of a repository on the Hub."""
    if Path(source).is_dir():
        path = Path(source) / name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: needs a folder written by save_pretrained")
        return path
    repository = str(source).removeprefix("hf_hub:").removeprefix("hf-hub:")
    try:
        return Path(hf_hub_download(repository, name))
    except HFValidationError as error:
        raise FileNotFoundError(f"{source} is neither a folder nor a repository 'user/name' on the Hub") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise FileNotFoundError(f"{name} of {repository!r} could not be had from the Hub: {error}") from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error}): copy or save it again") from error


def load_weights(model: nn.Module, path: Path, name: str) -> None:
    """Weights from a safetensors file, all of them or none."""
    state = read_weights(path)
    problems = misfits(model.state_dict(), state) + _advice(model, state)
    if problems:
        raise ValueError(f"{path} does not fit {name}: " + "; ".join(problems))
    model.load_state_dict(state)


def _advice(model: nn.Module, state: dict[str, Tensor]) -> list[str]:
    """What an MViTv2, alone or as a part, says of position tables that it cannot read."""
    parts = [(name, part) for name, part in model.named_modules() if isinstance(part, MvitV2)]
    said = [part.table_advice(state, f"{name}." if name else "") for name, part in parts]
    return [advice for advice in said if advice]


def misfits(wanted: dict[str, Tensor], found: dict[str, Tensor]) -> list[str]:
    """In words, how weights differ from those that are needed."""

    def some(keys: list[str]) -> str:
        return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")

    missing = sorted(wanted.keys() - found.keys())
    extra = sorted(found.keys() - wanted.keys())
    shapes = [
        f"{key} has shape {tuple(found[key].shape)}, needs {tuple(wanted[key].shape)}"
        for key in sorted(wanted.keys() & found.keys())
        if wanted[key].shape != found[key].shape
    ]
    problems = [f"missing {some(missing)}"] if missing else []
    problems += [f"unknown {some(extra)}"] if extra else []
    return problems + shapes[:3]


def push_to_hub(model: Backbone, repository: str, private: bool = False, **model_config: Any) -> str:
    """Upload a model to the Hugging Face Hub (log in with ``huggingface-cli login`` first); gives its address."""
    return upload(lambda folder: save_pretrained(model, folder, **model_config), repository, private, name_of(model))


def upload(write: Callable[[str], Any], repository: str, private: bool, name: str) -> str:
    """What ``write`` puts into a folder, as a repository on the Hub; gives its address."""
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        api = HfApi()
        address = str(api.create_repo(repository, private=private, exist_ok=True))
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"Upload {name}")
    return address
