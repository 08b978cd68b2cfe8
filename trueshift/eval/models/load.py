"""Models by what a user calls them: names, folders, checkpoints, ONNX files, functions."""

import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from ...data import Preparation
from ...data.transforms import ScenePreparation
from ...models import create_model
from ...models.bundled_weights import DamagedWeights
from ...models.hub import misfits
from ...models.registry import CIFAR_MEAN, CIFAR_STD, is_ours, list_models
from ...ops.geometry.shift import pair
from ...tasks import from_pretrained
from ...tasks.hub import ARCHITECTURE
from ...utils.evaluation_mode import in_evaluation
from ..runner.fingerprint import onnx_fingerprint
from .dense import answer_to_blank, is_segmenter
from .eval_model import Request, Subject, dense_subject_of, imagenet_names, subject_of

_WHERE = (
    "one of trueshift.list_models(), a timm name, a transformers repository or folder, a folder of save_pretrained, a "
    "checkpoint with --architecture, an .onnx file, or package.module:factory"
)


_RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's numbers


class WeightsUnavailable(RuntimeError):
    """Weights that could not be had, and what can be done instead."""


def load_subject(model: str, request: Request | None = None) -> Subject:
    """The model that a user names; see :data:`_WHERE` for what a name can be."""
    request = request or Request()
    torch.manual_seed(request.seed)
    subject = _loader(model, request)(model, request)
    assumed = subject.assumed and (request.mean is None or request.std is None)
    if subject.scenes is not None:
        return replace(subject, scenes=_scenes_asked_for(subject.scenes, request), assumed=assumed)
    return replace(subject, preparation=_asked_for(subject.preparation, request), assumed=assumed)


def _asked_for(preparation: Preparation, request: Request) -> Preparation:
    changes: dict[str, Any] = {"crop_pct": request.crop_pct, "mean": request.mean, "std": request.std}
    if request.img_size:
        changes["size"] = (request.img_size, request.img_size)
    return replace(preparation, **{key: value for key, value in changes.items() if value is not None})


def _scenes_asked_for(scenes: ScenePreparation, request: Request) -> ScenePreparation:
    if request.crop_pct is not None:
        raise ValueError("crop_pct: a segmentation model is shown whole pictures; needs img_size, mean and std alone")
    changes: dict[str, Any] = {"mean": request.mean, "std": request.std}
    if request.img_size:  # as long and as short as the scales of the paper
        changes["scale"] = (4 * request.img_size, request.img_size)
    return replace(scenes, **{key: value for key, value in changes.items() if value is not None})


def _loader(model: str, request: Request) -> Callable[[str, Request], Subject]:
    """By what a name is read."""
    path = Path(model)
    if path.suffix == ".onnx":
        return _from_onnx
    if model and path.is_dir():
        return _from_folder
    if path.is_file() or path.suffix in (".pt", ".pth", ".bin", ".safetensors"):
        return _from_checkpoint
    if model.startswith(("hf-hub:", "hf_hub:", "local-dir:")) or _is_registered(model):
        return _from_registry
    if ":" in model:
        return _from_factory
    if "/" in model:
        return _from_transformers
    close = get_close_matches(model, [*list_models(), *timm.list_models()], n=3)
    meant = f"did you mean {', '.join(close)}? " if close else ""
    raise ValueError(f"no model is called {model!r}: {meant}Needs {_WHERE}")


def _is_registered(model: str) -> bool:
    return is_ours(model) or timm.is_model(model.split(".")[0])


def _from_registry(model: str, request: Request) -> Subject:
    create = _creator(model)
    if request.random_weights:
        module = _resized(create(model), request, model)
        return subject_of(module, model, f"random, seed {request.seed}", request, random=True)
    try:
        module = create(model, pretrained=True)
    except DamagedWeights:  # no network would help: it says what does
        raise
    except Exception as error:  # no weights published, no network, a hub that refuses: many kinds, one remedy
        raise _unavailable(model, error) from error
    tag = module.pretrained_cfg.get("tag")
    weights = f"pretrained, {tag}" if tag else "pretrained"
    return subject_of(_resized(module, request, model), model, weights, request)


def _creator(model: str) -> Callable[..., Any]:
    return create_model if is_ours(model) else timm.create_model


def _resized(module: Any, request: Request, name: str) -> nn.Module:
    """Networks with tables or windows of a size must be told of another; told of their own, timm's change windows."""
    if request.img_size and hasattr(module, "set_input_size"):
        own = getattr(getattr(module, "patch_embed", None), "img_size", None)
        if own is None or pair(own) != pair(request.img_size):
            module.set_input_size(img_size=request.img_size)
    elif request.img_size:
        _try_size(module, request.img_size, name)
    return module


def _try_size(module: nn.Module, side: int, name: str) -> None:
    """Refuse a size that a network cannot be told of and does not take; only trying tells."""
    try:
        with in_evaluation(module), torch.inference_mode():
            module(torch.zeros(1, 3, side, side))
    except Exception as error:  # whatever comes from within a network of someone else's
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{name} does not take images of {side} x {side} ({reason[:200]}): needs no --img-size"
        ) from error


def _unavailable(model: str, error: Exception) -> WeightsUnavailable:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return WeightsUnavailable(
        f"the weights of {model} could not be had ({type(error).__name__}: {reason[:200]}): needs a network "
        "connection, a local checkpoint or folder in place of the name, or --random-weights for the initialisation"
    )


def _from_folder(model: str, request: Request) -> Subject:
    folder = Path(model)
    config = folder / "config.json"
    if not config.is_file():
        raise FileNotFoundError(f"{config} is missing: needs a folder written by save_pretrained")
    try:
        read = json.loads(config.read_text())
    except ValueError as error:
        raise ValueError(f"{config} cannot be read ({error}): save the model again") from error
    if "model_type" in read:
        return _from_transformers(model, request)
    if "architecture" not in read:
        raise ValueError(f"{config} names no architecture: needs a folder written by save_pretrained")
    name = folder.resolve().name
    if read["architecture"] == ARCHITECTURE:
        if request.random_weights:
            raise ValueError(
                f"{name} is a folder of a segmentation network with its weights: needs no --random-weights"
            )
        return subject_of(from_pretrained(folder), name, f"folder {name}", request)
    where = f"local-dir:{folder}"
    if request.random_weights:
        made = _resized(timm.create_model(where, pretrained=False), request, name)
        return subject_of(made, name, f"random, seed {request.seed}", request, random=True)
    module: Any = from_pretrained(folder) if is_ours(read["architecture"]) else timm.create_model(where, True)
    return subject_of(_resized(module, request, name), name, f"folder {name}", request)


def _from_checkpoint(model: str, request: Request) -> Subject:
    path = Path(model)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if not request.architecture:
        raise ValueError(f"{path.name} holds weights only: name their network with --architecture, e.g. a_swin_tiny")
    if not _is_registered(request.architecture):
        raise ValueError(f"--architecture {request.architecture}: needs a name of trueshift's or timm's")
    state, part = _read_weights(path)
    module = _creator(request.architecture)(request.architecture)
    classifier = state.get(f"{module.pretrained_cfg.get('classifier', 'head')}.weight")
    if classifier is not None and len(classifier) != module.num_classes:
        module.reset_classifier(len(classifier))
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        told = misfits(module.state_dict(), state) or [str(error)]
        raise ValueError(f"{path.name} does not fit {request.architecture}: {'; '.join(told)}") from error
    name = f"{request.architecture}, {path.stem}"
    return subject_of(_resized(module, request, name), name, f"file {path.name}{part}", request)


def _read_weights(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a checkpoint, and which part of what training scripts wrap around them; averages first."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise many kinds
        raise ValueError(
            f"{path} cannot be read as weights ({error}): needs a safetensors file or a state_dict"
        ) from error
    part = ""
    for key in ("state_dict_ema", "model_ema", "state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found, part = found[key], f", its {key}"
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()) or not found:
        raise ValueError(f"{path} holds no weights: needs a safetensors file or a state_dict")
    # as wrappers for many processes and compilers name them
    return {key.replace("_orig_mod.", "").removeprefix("module."): value for key, value in found.items()}, part


def _from_factory(model: str, request: Request) -> Subject:
    module_name, _, name = model.partition(":")
    sys.path.insert(0, "")  # the user's own file, beside which the command is given
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
    made = _called(factory, model) if not isinstance(factory, nn.Module) else factory
    weights = f"as {model} makes them"
    if isinstance(made, nn.Module):
        return _made_by_hand(made, model, weights, request)
    if not callable(made):
        raise TypeError(f"{model} gave a {type(made).__name__}: needs a torch module, or a function of images")
    _only_float32(model, request)
    classes = _classes_in(answer_to_blank(made, request.device, request.img_size), dimensions=2)
    names = imagenet_names() if classes == 1000 else None
    return Subject(model, made, Preparation(), weights, classes=names, num_classes=classes, assumed=True)


def _called(factory: Any, model: str) -> Any:
    try:
        inspect.signature(factory).bind()
    except ValueError:  # some built in say nothing of themselves
        pass
    except TypeError as error:
        raise TypeError(f"{model} takes arguments: needs a function without any that gives a model") from error
    return factory()


def _made_by_hand(module: nn.Module, name: str, weights: str, request: Request) -> Subject:
    """Of a network that says nothing of itself, its answer to a blank image tells its classes, and for what."""
    module = module.to(request.device).eval()
    if is_segmenter(module):
        return subject_of(module, name, weights, request)
    answer = answer_to_blank(module, request.device, request.img_size)
    of_pixels = _classes_in(answer, dimensions=4)
    if of_pixels is not None:
        return dense_subject_of(module, name, weights, request, num_classes=of_pixels)
    return subject_of(module, name, weights, request, num_classes=_classes_in(answer, dimensions=2))


def _classes_in(answer: Tensor | None, dimensions: int) -> int | None:
    return answer.shape[1] if answer is not None and answer.dim() == dimensions else None


def _only_float32(model: str, request: Request) -> None:
    if request.precision != "float32":
        raise ValueError(f"{model} runs as it is: --precision {request.precision} needs a network in torch")


def _from_transformers(model: str, request: Request) -> Subject:
    try:
        from transformers import (
            AutoConfig,
            AutoImageProcessor,
            AutoModelForImageClassification,
            AutoModelForSemanticSegmentation,
        )
    except ImportError as error:
        raise ImportError(f"{model} needs transformers: pip install transformers") from error
    try:
        config = AutoConfig.from_pretrained(model)
    except Exception as error:  # not there, not readable, or no network to ask
        reason = str(error).strip().splitlines()[0]
        raise WeightsUnavailable(
            f"{model} could not be had from the Hub ({reason[:200]}): needs a network connection, or a local folder"
        ) from error
    dense = any(name.endswith("ForSemanticSegmentation") for name in config.architectures or ())
    kind: Any = AutoModelForSemanticSegmentation if dense else AutoModelForImageClassification
    try:
        module = kind.from_config(config) if request.random_weights else kind.from_pretrained(model)
    except Exception as error:  # of another kind, or weights that are not there
        raise _unavailable(model, error) from error
    try:
        wanted = AutoImageProcessor.from_pretrained(model).to_dict()
    except (OSError, ValueError):  # a model without one: said in every table
        wanted = {}
    weights = f"random, seed {request.seed}" if request.random_weights else "pretrained"
    name = Path(model).name if Path(model).is_dir() else model
    labels = [str(config.id2label[index]) for index in sorted(config.id2label)]
    if dense:
        subject = dense_subject_of(module, name, weights, request, request.random_weights, config.num_labels)
        return replace(subject, classes=labels, scenes=_scenes_from_processor(wanted, config), assumed=not wanted)
    subject = subject_of(module, name, weights, request, random=request.random_weights)
    preparation = _from_processor(wanted, config)
    return replace(subject, preparation=preparation, classes=labels, num_classes=config.num_labels, assumed=not wanted)


def _from_processor(wanted: dict[str, Any], config: Any) -> Preparation:
    """transformers' image processor in timm's terms."""
    size, crop = wanted.get("size") or {}, wanted.get("crop_size") or {}
    side = size.get("shortest_edge") or size.get("height") or getattr(config, "image_size", None) or 224
    side = side if isinstance(side, int) else side[0]
    keep = float(wanted.get("crop_pct") or 1.0)
    if wanted.get("do_center_crop") and crop:
        shown = (crop["height"], crop["width"])
        keep = min(1.0, shown[0] / side)
    else:
        shown = (side, side)
    resample = wanted.get("resample")
    return Preparation.from_config(
        {
            "input_size": (3, *shown),
            "crop_pct": keep,
            "mean": wanted.get("image_mean"),
            "std": wanted.get("image_std"),
            "interpolation": _RESAMPLING[3 if resample is None else int(resample)],
        }
    )


_COARSEST = 32  # pixels to a token in the last stage of the networks for segmentation there are


def _scenes_from_processor(wanted: dict[str, Any], config: Any) -> ScenePreparation:
    """The same for segmentation: the size is that of the shortest side, at a multiple that all stages divide."""
    same = _from_processor(wanted, config)
    shortest = min(same.size)
    return ScenePreparation(
        (4 * shortest, shortest), (_COARSEST, _COARSEST), "resize", same.mean, same.std, same.interpolation
    )


def _from_onnx(model: str, request: Request) -> Subject:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("an .onnx file needs onnxruntime: pip install onnxruntime") from error
    _only_float32(model, request)
    path = Path(model)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        session = onnxruntime.InferenceSession(str(path), providers=onnxruntime.get_available_providers())
    except Exception as error:  # onnxruntime's own kinds are not public
        raise ValueError(f"{path} cannot be run by onnxruntime: {str(error).splitlines()[0]}") from error
    entry, answer = session.get_inputs()[0], session.get_outputs()[0]
    if len(entry.shape) != 4 or (isinstance(entry.shape[1], int) and entry.shape[1] != 3):
        raise ValueError(f"{path.name} takes {entry.shape}: needs images of shape [batch, 3, height, width]")
    batch, _, height, width = (side if isinstance(side, int) else None for side in entry.shape)
    size = (height or request.img_size or 224, width or request.img_size or 224)
    small = max(size) <= 64
    kind = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}.get(entry.type)
    if kind is None:
        raise ValueError(f"{path.name} takes {entry.type}: needs normalised images as float or float16")

    def forward(images: Tensor) -> Tensor:
        (logits,) = session.run([answer.name], {entry.name: images.to("cpu", kind).numpy()})
        return torch.from_numpy(logits)

    preparation = Preparation(
        size, 1.0 if small else 0.875, *((CIFAR_MEAN, CIFAR_STD) if small else (Preparation.mean, Preparation.std))
    )
    classes = answer.shape[-1] if isinstance(answer.shape[-1], int) else None
    return Subject(
        path.name,
        forward,
        preparation,
        f"file {path.name}",
        classes=imagenet_names() if classes == 1000 else None,
        num_classes=classes,
        fingerprint=onnx_fingerprint(path),
        batch_size=batch,
        assumed=True,
    )
