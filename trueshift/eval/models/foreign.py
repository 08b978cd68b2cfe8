"""Models of other libraries: transformers repositories and folders, and ONNX files."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ...data import Preparation
from ...data.transforms import ScenePreparation
from ...models.registry import CIFAR_MEAN, CIFAR_STD
from ...utils.checks import first_line, import_optional
from ...utils.files import sha256_of
from ..options import EvalOptions
from .eval_model import EvalModel, imagenet_names, make_eval_model

_COARSEST = 32  # pixels per token in the last stage of existing segmentation networks
_EXTERNAL = re.compile(rb"\x08location\x12([\x01-\x7f])", re.DOTALL)  # ONNX's key, and the length of its value


class WeightsUnavailable(RuntimeError):
    """Weights that could not be loaded, and what can be done instead."""


def unavailable(model: str, error: Exception) -> WeightsUnavailable:
    """What to do without a model's weights."""
    return WeightsUnavailable(
        f"the weights of {model} are unavailable ({type(error).__name__}: {first_line(error)}): needs a network "
        "connection, a local checkpoint or folder in place of the name, or --random-weights for the initialisation"
    )


def only_float32(model: str, options: EvalOptions) -> None:
    """Refuse autocast for what is not a network in torch."""
    if options.precision != "float32":
        raise ValueError(f"{model} runs as it is: --precision {options.precision} needs a network in torch")


def from_transformers(model: str, options: EvalOptions) -> EvalModel:
    """A classifier or segmentation model of transformers."""
    transformers = import_optional("transformers", f"{model} needs transformers: pip install transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(model)
    except Exception as error:  # missing, unreadable, or no network to ask
        where = "cannot be read" if Path(model).is_dir() else "is no folder, and unavailable on the Hub"
        raise WeightsUnavailable(
            f"{model} {where} ({first_line(error)}): needs a network connection, or a local folder"
        ) from error
    dense = any(name.endswith("ForSemanticSegmentation") for name in config.architectures or ())
    kind = transformers.AutoModelForSemanticSegmentation if dense else transformers.AutoModelForImageClassification
    try:
        module = kind.from_config(config) if options.random_weights else kind.from_pretrained(model)
    except Exception as error:  # of another kind, or without weights
        raise unavailable(model, error) from error
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(model).to_dict()
    except (OSError, ValueError):  # a model without one: every table says so
        processor = {}
    weights = f"random, seed {options.seed}" if options.random_weights else "pretrained"
    name = Path(model).name if Path(model).is_dir() else model
    found = make_eval_model(module, name, weights, options, options.random_weights, config.num_labels, dense)
    return replace(
        found,
        preparation=_from_processor(processor, config, dense),
        classes=[str(config.id2label[index]) for index in sorted(config.id2label)],
        assumed=not processor,
    )


def _from_processor(processor: dict[str, Any], config: Any, dense: bool = False) -> Preparation | ScenePreparation:
    """transformers' image processor in timm's terms; for segmentation, the size is that of the shortest side."""
    size, crop = processor.get("size") or {}, processor.get("crop_size") or {}
    side = size.get("shortest_edge") or size.get("height") or getattr(config, "image_size", None) or 224
    side = side if isinstance(side, int) else side[0]
    keep = float(processor.get("crop_pct") or 1.0)
    shown = (side, side)
    if processor.get("do_center_crop") and crop:
        shown = (crop["height"], crop["width"])
        keep = min(1.0, shown[0] / side)
    resample = processor.get("resample")
    found = Preparation.from_config(
        {
            "input_size": (3, *shown),
            "crop_pct": keep,
            "mean": processor.get("image_mean"),
            "std": processor.get("image_std"),
            "interpolation": Image.Resampling(3 if resample is None else int(resample)).name.lower(),
        }
    )
    if not dense:
        return found
    scale, multiple = (4 * min(shown), min(shown)), (_COARSEST, _COARSEST)
    return ScenePreparation(scale, multiple, "resize", found.mean, found.std, found.interpolation)


def from_onnx(model: str, options: EvalOptions) -> EvalModel:
    """An ONNX file, run by onnxruntime."""
    onnxruntime = import_optional("onnxruntime", "an .onnx file needs onnxruntime: pip install onnxruntime")
    only_float32(model, options)
    path = Path(model)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        session = onnxruntime.InferenceSession(str(path), providers=onnxruntime.get_available_providers())
    except Exception as error:  # onnxruntime's own exceptions are not public
        raise ValueError(f"{path} cannot be run by onnxruntime: {first_line(error)}") from error
    entry, answer = session.get_inputs()[0], session.get_outputs()[0]
    if len(entry.shape) != 4 or (isinstance(entry.shape[1], int) and entry.shape[1] != 3):
        raise ValueError(f"{path.name} takes {entry.shape}: needs images of shape [batch, 3, height, width]")
    batch, _, height, width = (side if isinstance(side, int) else None for side in entry.shape)
    size = (height or options.img_size or 224, width or options.img_size or 224)
    small = max(size) <= 64
    kind = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}.get(entry.type)
    if kind is None:
        raise ValueError(f"{path.name} takes {entry.type}: needs normalised images as float or float16")

    def forward(images: Tensor) -> Tensor:
        (logits,) = session.run([answer.name], {entry.name: images.to("cpu", kind).numpy()})
        return torch.from_numpy(logits)

    colours = (CIFAR_MEAN, CIFAR_STD) if small else (Preparation.mean, Preparation.std)
    classes = answer.shape[-1] if isinstance(answer.shape[-1], int) else None
    return EvalModel(
        path.name,
        forward,
        Preparation(size, 1.0 if small else 0.875, *colours),
        f"file {path.name}",
        classes=imagenet_names() if classes == 1000 else None,
        num_classes=classes,
        fingerprint=_onnx_fingerprint(path),
        batch_size=batch,
        assumed=True,
    )


def _onnx_fingerprint(path: Path) -> str:
    """Of an ONNX file, with the files beside it that hold its weights."""
    model = path.read_bytes()
    digest = hashlib.sha256(model)
    starts = [(match.end(), match[1][0]) for match in _EXTERNAL.finditer(model)]
    for name in sorted({model[start : start + length].decode(errors="replace") for start, length in starts}):
        if (path.parent / name).is_file():
            digest.update(bytes.fromhex(sha256_of(path.parent / name)))
    return digest.hexdigest()[:16]
