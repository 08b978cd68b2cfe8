"""Load models by name: registries, folders, checkpoints, factories, and files of other libraries."""

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ...data import Preparation
from ...models import create_model
from ...models.bundled_weights import DamagedWeights
from ...models.hub import check_path, misfits
from ...models.registry import is_ours, list_models
from ...ops.geometry.shift import pair
from ...tasks import adapt, from_pretrained
from ...tasks.fields import ARCHITECTURE as FIELDS
from ...tasks.upernet import ARCHITECTURE
from ...utils.checks import first_line
from ...utils.evaluation_mode import in_evaluation
from ..options import EvalOptions
from .eval_model import EvalModel, answer_to_blank, imagenet_names, is_segmenter, make_eval_model
from .foreign import from_onnx, from_transformers, only_float32, unavailable

_WHERE = (
    "one of trueshift.list_models(), a timm name, a transformers repository or folder, a folder of save_pretrained, a "
    "checkpoint with --architecture, an .onnx file, or package.module:factory"
)


def load_eval_model(model: str, options: EvalOptions | None = None) -> EvalModel:
    """Load a model by name; see :data:`_WHERE` for what a name can be."""
    options = options or EvalOptions()
    torch.manual_seed(options.seed)
    found = _loader(model)(model, options)
    if found.dense and options.crop_pct is not None:
        raise ValueError("crop_pct: a segmentation model is shown whole images; needs img_size, mean and std alone")
    changes: dict[str, Any] = {"mean": options.mean, "std": options.std, "crop_pct": options.crop_pct}
    if side := options.img_size:
        changes |= {"scale": (4 * side, side)} if found.dense else {"size": (side, side)}  # the ratio of the paper's
    given = {key: value for key, value in changes.items() if value is not None}
    assumed = found.assumed and (options.mean is None or options.std is None)
    return replace(found, preparation=replace(found.preparation, **given), assumed=assumed)


def _loader(model: str) -> Callable[[str, EvalOptions], EvalModel]:
    """The function that loads models with such a name."""
    check_path(model)
    path = Path(model)
    if path.suffix == ".onnx":
        return from_onnx
    if model and path.is_dir():
        return _from_folder
    if path.is_file() or path.suffix in (".pt", ".pth", ".bin", ".safetensors"):
        return _from_checkpoint
    if model.startswith(("hf-hub:", "hf_hub:", "local-dir:")) or _is_registered(model):
        return _from_registry
    if ":" in model:
        return _from_factory
    if "/" in model:
        return from_transformers
    close = get_close_matches(model, [*list_models(), *timm.list_models()], n=3)
    meant = f"did you mean {', '.join(close)}? " if close else ""
    raise ValueError(f"no model is called {model!r}, and no folder: {meant}Needs {_WHERE}")


def _is_registered(model: str) -> bool:
    return is_ours(model) or timm.is_model(model.split(".")[0])


def _creator(model: str) -> Callable[..., Any]:
    return create_model if is_ours(model) else timm.create_model


def _from_registry(model: str, options: EvalOptions) -> EvalModel:
    try:
        module = _creator(model)(model, pretrained=not options.random_weights)
    except DamagedWeights:  # its message says what helps
        raise
    except Exception as error:  # no weights, no network, a hub that refuses: one remedy
        raise unavailable(model, error) from error
    tag = module.pretrained_cfg.get("tag")
    return _at_size(module, model, f"pretrained, {tag}" if tag else "pretrained", options)


def _at_size(module: Any, name: str, weights: str, options: EvalOptions) -> EvalModel:
    """A network at the size asked for."""
    side = options.img_size
    if side and hasattr(module, "set_input_size"):
        own = getattr(getattr(module, "patch_embed", None), "img_size", None)
        if own is None or pair(own) != pair(side):  # skipped if unchanged, since timm would pick a new window
            module.set_input_size(img_size=side)
    elif side:
        try:
            with in_evaluation(module), torch.inference_mode():
                module(torch.zeros(1, 3, side, side))
        except Exception as error:  # any exception, from anyone's code
            raise ValueError(
                f"{name} does not take images of {side} x {side} ({first_line(error)}): needs no --img-size"
            ) from error
    weights = f"random, seed {options.seed}" if options.random_weights else weights
    return make_eval_model(module, name, weights, options, options.random_weights)


def _from_folder(model: str, options: EvalOptions) -> EvalModel:
    folder = Path(model)
    config, name = folder / "config.json", folder.resolve().name
    if not config.is_file():
        raise FileNotFoundError(f"{config} is missing: needs a folder written by save_pretrained")
    try:
        read = json.loads(config.read_text())
    except ValueError as error:
        raise ValueError(f"{config} cannot be read ({error}): save the model again") from error
    if "model_type" in read:
        return from_transformers(model, options)
    if "architecture" not in read:
        raise ValueError(f"{config} names no architecture: needs a folder written by save_pretrained")
    if read["architecture"] == ARCHITECTURE:
        if options.random_weights:
            raise ValueError(f"{name} is a segmentation network with its weights: needs no --random-weights")
        return make_eval_model(from_pretrained(folder), name, f"folder {name}", options)
    if read["architecture"] == FIELDS:
        raise ValueError(f"{name} is a network for fields, which has no classes: needs `trueshift eval` or audit")
    trained = not options.random_weights
    ours = trained and is_ours(read["architecture"])
    module: Any = from_pretrained(folder) if ours else timm.create_model(f"local-dir:{folder}", trained)
    if "adapted" in read:  # a network of timm's, trained by us
        module = adapt(module, **read["adapted"])
    return _at_size(module, name, f"folder {name}", options)


def _from_checkpoint(model: str, options: EvalOptions) -> EvalModel:
    path = Path(model)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if not options.architecture:
        raise ValueError(f"{path.name} holds weights only: name their network with --architecture, e.g. a_swin_tiny")
    if not _is_registered(options.architecture):
        raise ValueError(f"--architecture {options.architecture}: needs a name of trueshift's or timm's")
    state, part = _read_weights(path)
    module = _creator(options.architecture)(options.architecture)
    classifier = state.get(f"{module.pretrained_cfg.get('classifier', 'head')}.weight")
    if classifier is not None and len(classifier) != module.num_classes:
        module.reset_classifier(len(classifier))
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        problems = misfits(module.state_dict(), state) or [str(error)]
        raise ValueError(f"{path.name} does not fit {options.architecture}: {'; '.join(problems)}") from error
    weights = f"file {path.name}{part}"
    return _at_size(module, f"{options.architecture}, {path.stem}", weights, replace(options, random_weights=False))


def _read_weights(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a checkpoint, and which part of what training scripts wrap around them; averages first."""
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise many kinds
        said = str(error).rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0]  # torch writes ten lines
        why = f" ({said})" if " " in said else ""  # pickle may say no more than a number
        needs = "needs a checkpoint, a safetensors file or a state_dict"
        raise ValueError(f"{path} cannot be read as weights{why}: {needs}") from error
    part = ""
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found, part = found[key], f", its {key}"
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()) or not found:
        raise ValueError(f"{path} holds no weights: needs a safetensors file or a state_dict")
    # without the prefixes of DistributedDataParallel and torch.compile
    return {key.replace("_orig_mod.", "").removeprefix("module."): value for key, value in found.items()}, part


def _from_factory(model: str, options: EvalOptions) -> EvalModel:
    made, weights = _made_by(model), f"as {model} makes them"
    if not callable(made):
        raise TypeError(f"{model} gave a {type(made).__name__}: needs a torch module, or a function of images")
    network = isinstance(made, nn.Module)
    if network:
        made = made.to(options.device).eval()
    else:
        only_float32(model, options)
    # a network without a configuration: its answer to a blank image shows its classes and whether it is dense
    answer = answer_to_blank(made, options.device, options.img_size)
    dimensions = 0 if answer is None else answer.dim()
    classes = answer.shape[1] if answer is not None and dimensions in (2, 4) else None
    if network:
        dense = is_segmenter(made) or dimensions == 4
        return make_eval_model(made, model, weights, options, num_classes=classes, dense=dense)
    names = imagenet_names() if classes == 1000 else None
    return EvalModel(model, made, Preparation(), weights, classes=names, num_classes=classes, assumed=True)


def _made_by(model: str) -> Any:
    """What a factory of the name ``package.module:factory`` makes, or the network of that name."""
    module_name, _, name = model.partition(":")
    sys.path.insert(0, "")  # modules in the current folder
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{module_name} cannot be imported ({error}): needs {_WHERE}") from error
    except AttributeError as error:
        raise ValueError(
            f"{module_name} has no {name}: needs a function without arguments that gives a model"
        ) from error
    finally:
        sys.path.remove("")
    if isinstance(factory, nn.Module):
        return factory
    with suppress(ValueError):  # some built-in functions have no signature
        try:
            inspect.signature(factory).bind()
        except TypeError as error:
            raise TypeError(f"{model} takes arguments: needs a function without any that gives a model") from error
    return factory()
