"""Models in folders and on the Hugging Face Hub: ``config.json`` as timm writes it, weights as safetensors."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import timm
import torch
from huggingface_hub import HfApi, ModelCard, ModelCardData, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..utils.files import json_text

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
OWN = "trueshift_"  # before names that timm has too, for networks that only ours are

# What builds a model from its config.json, by architecture: builder(config, **changes). Models register themselves.
BUILDERS: dict[str, Callable[..., "HubModel"]] = {}


class HubModel(nn.Module):
    """A module that is saved to and loaded from folders and the Hub. See ``BUILDERS`` for the way back."""

    num_classes: int
    pretrained_cfg: dict[str, Any]
    pipeline_tag: ClassVar[str | None] = None  # what the Hub calls its task

    @property
    def title(self) -> str:
        """What messages call it."""
        raise NotImplementedError

    @property
    def shift_law(self) -> str:
        """What is guaranteed when the image moves, in words; empty if nothing is."""
        raise NotImplementedError

    def hub_config(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        raise NotImplementedError

    def weights_advice(self, weights: Mapping[str, Any], prefix: str = "") -> str | None:
        """How to build a model that takes weights which do not fit this one, where shapes alone do not show it."""
        return None

    def save_pretrained(self, directory: str | Path, **model_config: Any) -> Path:
        """Write ``config.json`` and ``model.safetensors``; earlier ones are replaced once both are complete.

        Args:
            model_config: further entries for the configuration, such as ``label_names``.
        """
        names = model_config.get("label_names")
        if isinstance(names, list | tuple) and len(names) != self.num_classes:
            raise ValueError(f"{len(names)} label_names for {self.num_classes} classes: needs one for each")
        weights, config = self.state_dict(), {**self.hub_config(), **model_config}
        if builder := BUILDERS.get(config["architecture"]):
            with torch.device("meta"):
                again = builder(config)
            # a subclass may know how to load its own
            if type(again) is type(self) and (problems := misfits(again.state_dict(), weights)):
                changed = f"this {self.title} was changed as no configuration can say ({'; '.join(problems)})"
                raise ValueError(
                    f"{changed}: needs reset_classifier for other classes, else torch.save of its state_dict"
                )
        return write_model(directory, weights, named_for_timm(config, weights))

    @classmethod
    def from_pretrained(cls, source: str | Path, **changes: Any) -> Any:
        """A model from a folder or the Hub: see :func:`from_pretrained`."""
        model = from_pretrained(source, **changes)
        if not isinstance(model, cls):
            raise TypeError(f"{source} holds a {type(model).__name__}, not a {cls.__name__}")
        return model

    def push_to_hub(
        self, repository: str, private: bool = False, card: Mapping[str, Any] | None = None, **model_config: Any
    ) -> str:
        """Upload to the Hugging Face Hub (log in with ``hf auth login`` first); returns the address.

        Args:
            card: for the model card, which is written where the repository has none: ``description``, a text, and
                entries of its header such as ``license`` and ``datasets``.
            model_config: as for :meth:`save_pretrained`.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, **model_config)
            api = HfApi()
            address = str(api.create_repo(repository, private=private, exist_ok=True))
            if not api.file_exists(repository, CARD):
                Path(folder, CARD).write_text(
                    model_card(self, repository, read_config(Path(folder, CONFIG)), **card or {})
                )
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"Upload {self.title}")
        return address


def model_card(
    model: HubModel, repository: str, config: Mapping[str, Any], description: str = "", **header: Any
) -> str:
    """Markdown that says what a model is, how it is loaded, what holds when the image moves, and whom to cite."""
    about = {"library_name": "trueshift", "pipeline_tag": model.pipeline_tag, "tags": ["shift-equivariance"], **header}
    card = ModelCard.from_template(
        ModelCardData(**about),
        template_path=str(Path(__file__).with_name("model_card.md.jinja")),
        model=model,
        repository=repository,
        description=description,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        cfg=saved_cfg(config, config.get("num_classes", 0)),
        timm="backbone" not in config,
    )
    return str(card)


def from_pretrained(source: str | Path, **changes: Any) -> HubModel:
    """The backbone or segmentation network that ``save_pretrained`` wrote, from a folder or the Hugging Face Hub.

    Args:
        source: a folder, or a repository ``"user/name"``, also as ``"hf_hub:user/name"``.
        changes: arguments of :func:`~trueshift.create_model` (of :class:`~trueshift.UperNet` for a segmentation
            network) to change; the weights must still fit.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = trueshift.create_model("a_cvt_mini", num_classes=3).save_pretrained(folder)
    ...     trueshift.from_pretrained(folder).num_classes
    3
    """
    config = read_config(fetch(source, CONFIG))
    weights, name = fetch(source, WEIGHTS), config["architecture"]
    if name not in BUILDERS:
        close = get_close_matches(name, BUILDERS, n=3)
        hint = f": did you mean {', '.join(close)}?" if close else ""
        raise ValueError(f"{source} holds a {name!r}, which is not an architecture of trueshift{hint}")
    model = BUILDERS[name](config, **changes)
    load_weights(model, weights)
    return model.eval()


def saved_cfg(config: Mapping[str, Any], num_classes: int) -> dict[str, Any]:
    """The ``pretrained_cfg`` of a configuration, with the class names beside it, as timm reads it."""
    names = {key: config[key] for key in ("label_names", "label_descriptions") if config.get(key)}
    return {**config.get("pretrained_cfg", {}), **names, "num_classes": num_classes}


def named_for_timm(config: dict[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The configuration under timm's own name only if timm's network of that name is this one, else under ours."""
    name, arguments = config["architecture"], dict(config.get("model_args", {}))
    if OWN + name not in BUILDERS:
        return config
    if arguments.get("positions") == "linear":
        del arguments["positions"]  # as timm's network reads them, which has no such argument
    try:
        with torch.device("meta"):
            theirs = timm.create_model(name, **{"num_classes": config["num_classes"], **arguments})
        known = signature(type(theirs)).parameters  # some take any argument and do nothing with it
        same = arguments.keys() <= known.keys() and not misfits(theirs.state_dict(), weights)
    except (TypeError, ValueError, RuntimeError, AssertionError):
        same = False
    return {**config, "model_args": arguments} if same else {**config, "architecture": OWN + name}


def write_model(directory: str | Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> Path:
    """Write weights and configuration to a draft folder, and move them in place when both are on the disk."""
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"{directory} is a file: needs a folder to save to")
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".saving-") as draft:
        tensors = {key: value.detach().contiguous() for key, value in weights.items()}
        save_file(tensors, Path(draft, WEIGHTS), metadata={"format": "pt"})
        Path(draft, CONFIG).write_text(json_text(dict(config)))
        for name in (WEIGHTS, CONFIG):
            with Path(draft, name).open("rb") as file:
                os.fsync(file.fileno())
            os.replace(Path(draft, name), directory / name)
    return directory


def read_config(path: Path) -> dict[str, Any]:
    """The content of a model's ``config.json``, which names an architecture at least."""
    config = read_json(path)
    if not isinstance(config.get("architecture"), str):
        raise ValueError(f"{path} is not the configuration of a model (no architecture): save the model again")
    return config


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds a dictionary."""
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:  # also text that is not UTF-8
        raise ValueError(f"{path} is not the configuration of a model ({error}): save the model again") from error


def check_path(name: str) -> None:
    """Refuse the path of a model that leads nowhere; what may be a name, such as ``owner/name`` of the Hub, is none."""
    path = name.removeprefix("local-dir:")
    may_be_a_name = path == name and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?|.*:.*", name)
    if not may_be_a_name and not Path(path).exists():
        raise FileNotFoundError(f"there is no file or folder {path}: needs one, or the name of a model")


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
        hub = f"{name} of {repository!r} could not be had from the Hub: {error}"
        raise FileNotFoundError(f"there is no folder {source}, and {hub}") from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error}): copy or save it again") from error


def load_weights(model: HubModel, path: Path) -> None:
    """Load a safetensors file, all of it or nothing."""
    state = read_weights(path)
    problems = misfits(model.state_dict(), state)
    for name, part in model.named_modules():
        if isinstance(part, HubModel) and (advice := part.weights_advice(state, f"{name}." if name else "")):
            problems.append(advice)
    if problems:
        raise ValueError(f"{path} does not fit {model.title}: " + "; ".join(problems))
    model.load_state_dict(state)


def misfits(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """How weights differ from those that are needed."""
    problems = []
    for kind, keys in (("missing", wanted.keys() - found.keys()), ("unknown", found.keys() - wanted.keys())):
        if keys:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            problems.append(f"{kind} {', '.join(sorted(keys)[:3])}{more}")
    shapes = [
        f"{key} has shape {tuple(found[key].shape)}, needs {tuple(wanted[key].shape)}"
        for key in sorted(wanted.keys() & found.keys())
        if wanted[key].shape != found[key].shape
    ]
    return problems + shapes[:3]
