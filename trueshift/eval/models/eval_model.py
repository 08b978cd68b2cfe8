"""The model under evaluation: a function from normalised images to logits, what is known of it, and its twins."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.data import ImageNetInfo
from torch import Tensor, nn

from ...canonical import Canonicalize, canonicalize
from ...data import Preparation
from ...data.transforms import ScenePreparation
from ...motion import steady
from ...ops.geometry.shift import Pair, pair
from ...tasks import UperNet, adapt
from ...tasks.inference import segment_whole
from ..options import EvalOptions
from .feature_maps import StageMaps, stage_maps

Forward = Callable[[Tensor], Tensor]
_TRIED = (64, 224)  # sides of the blank images that are tried


@dataclass(frozen=True)
class EvalModel:
    """A model to evaluate."""

    name: str  # as tables show it
    forward: Forward  # normalised images [B, 3, H, W] to logits [B, classes], or if dense [B, classes, H, W]
    preparation: Any  # of its images: a ScenePreparation if dense, a Preparation otherwise
    weights: str  # where they come from, in words
    classes: list[str] | None = None  # their names, if known
    num_classes: int | None = None
    module: nn.Module | None = None  # the network itself, where there is one
    fingerprint: str | None = None  # identifies a model without a network to look at
    maps: StageMaps | None = None  # the feature maps of its stages, where available
    batch_size: int | None = None  # the only one it takes, if there is only one
    random: bool = False  # its weights were never trained
    assumed: bool = False  # it does not say how images are prepared, so the usual values stand in
    dense: bool = False  # it gives a label for each pixel


class PixelLogits(nn.Module):
    """A network's logits, wherever it puts them, brought to the size of its input.

    Shift law: as the network's own where it answers at the size of its input; interpolation knows where the frame is.

    Args:
        model: gives ``[B, classes, h, w]``, or an object or mapping that has them as ``logits`` (transformers) or
            ``out`` (torchvision).
        size_multiple: of rows and columns, that it needs.
    """

    def __init__(self, model: Callable[[Tensor], Any], size_multiple: Pair = (1, 1)) -> None:
        super().__init__()
        self.model = model
        self.size_multiple = size_multiple

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes H W"]:
        """Logits of every pixel; smaller maps are interpolated bilinearly, in float32."""
        logits = logits_in(self.model(images))
        if logits.dim() == 4 and logits.shape[2:] != images.shape[2:]:
            logits = F.interpolate(logits.float(), images.shape[2:], mode="bilinear", align_corners=False)
        return logits


def logits_in(answer: Any) -> Any:
    """The logits of an answer, in whatever it wraps them."""
    if isinstance(answer, Mapping):
        return answer.get("logits", answer.get("out", answer))
    return getattr(answer, "logits", answer)


def size_multiple_of(model: Any) -> Pair:
    """Of what the sides of an image must be multiples, where a model says."""
    return pair(getattr(model, "size_multiple", 1))


def is_segmenter(module: nn.Module) -> bool:
    """Whether a network is known to give a label for each pixel, without trying it."""
    if isinstance(module, Canonicalize):
        return bool(module.dense)
    return isinstance(module, UperNet) or getattr(module, "dense", False) is True


def answer_to_blank(model: Any, device: torch.device | str, side: int | None = None) -> Tensor | None:
    """A model's logits for a blank image of this side, or of usual ones; None if it takes none of those tried."""
    sizes = [tuple(-(-tried // each) * each for each in size_multiple_of(model)) for tried in _TRIED]
    for size in [(side, side)] if side else sizes:
        # it may need another size; any other fault shows when it is measured
        with suppress(Exception), torch.inference_mode():
            answer = logits_in(model(torch.zeros(1, 3, *size, device=device)))
            return answer if isinstance(answer, Tensor) else None
    return None


def make_eval_model(
    module: nn.Module,
    name: str,
    weights: str,
    options: EvalOptions | None = None,
    random: bool = False,
    num_classes: int | None = None,
    dense: bool | None = None,
) -> EvalModel:
    """Wrap a network: timm's, ours, transformers', or any other that gives logits.

    Args:
        num_classes: where the network itself does not say.
        dense: whether it gives a label for each pixel, where the network itself does not say.
    """
    options = options or EvalOptions()
    module = module.to(options.device).eval()
    dense = is_segmenter(module) if dense is None else dense
    config: Any = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    config = config if isinstance(config, dict) else config.to_dict()
    num_classes = getattr(module, "num_classes", None) or num_classes
    # names of another number of classes belong to a classifier that the network had before
    names = list(config.get("label_names") or [])
    names = names if num_classes in (None, len(names)) else []
    preparation: Any
    if dense:
        forward = pixel_forward(PixelLogits(module, size_multiple_of(module)), options)
        preparation = _scene_preparation(config, size_multiple_of(module))
    else:
        forward = in_precision(lambda images: logits_in(module(images)), options)
        preparation = Preparation.from_config(config)
    return EvalModel(
        name,
        forward,
        preparation,
        weights,
        classes=names or (imagenet_names() if num_classes == 1000 and not dense else None),
        num_classes=num_classes,
        module=module,
        maps=None if dense else stage_maps(module),
        random=random,
        assumed=not (config.get("scene") if dense else config),
        dense=dense,
    )


def _scene_preparation(config: dict[str, Any], multiple: Pair) -> ScenePreparation:
    """As the network's configuration says, at sizes that it takes."""
    colours = {key: tuple(config[key]) for key in ("mean", "std") if config.get(key)}
    given = ScenePreparation.from_dict({**colours, **(config.get("scene") or {})})
    rows, columns = (lcm(mine, needed) for mine, needed in zip(given.multiple, multiple, strict=True))
    return replace(given, multiple=(rows, columns))


def pixel_forward(model: PixelLogits, options: EvalOptions) -> Forward:
    """Images of any size to logits of their pixels, in the precision asked for."""
    return in_precision(lambda images: segment_whole(model, images), options)


def in_precision(forward: Forward, options: EvalOptions) -> Forward:
    """A network in the precision asked for."""
    kind = torch.device(options.device).type
    precision = nullcontext() if options.precision == "float32" else torch.autocast(kind, torch.bfloat16)

    def run(images: Tensor) -> Tensor:
        with precision:
            return forward(images)

    return run


def imagenet_names() -> list[str]:
    """A short name for each of ImageNet's 1000 classes."""
    info = ImageNetInfo()
    return [info.index_to_description(index).split(",")[0] for index in range(1000)]


def adapted_twin(model: EvalModel, options: EvalOptions | None = None) -> EvalModel:
    """The shift-equivariant twin of a model, with its weights."""
    try:
        twin = adapt(_network_of(model))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{error}. --against canonical wraps any model instead") from error
    return _beside(model, twin, "adapted", options)


def canonical_twin(model: EvalModel, options: EvalOptions | None = None) -> EvalModel:
    """The same network, shown each image in a frame that moves with its content."""
    network = _network_of(model)
    if not model.dense:
        return _beside(model, canonicalize(network), "canonical", options)
    multiple = size_multiple_of(network)
    canonical = canonicalize(PixelLogits(network, multiple), dense=True)
    twin = _beside(model, canonical, "canonical", options)
    # padded before it is rolled: a frame found on fewer pixels would not be the network's
    return replace(twin, forward=pixel_forward(PixelLogits(canonical, multiple), options or EvalOptions()))


def steady_twin(model: EvalModel, options: EvalOptions | None = None) -> EvalModel:
    """The same network on a crop that its content chooses, of all that ``crop_pct`` would cut away.

    Where it cuts nothing away, images are enlarged by a quarter.
    """
    if model.dense:
        raise ValueError(f"{model.name} gives a label for each pixel: needs a model of one answer per image for steady")
    size, kept = model.preparation.size, model.preparation.crop_pct
    view = tuple(int(length / kept) if kept < 1 else length + length // 4 for length in size)
    twin = _beside(model, steady(_network_of(model), size), "steady", options)
    return replace(twin, preparation=replace(model.preparation, size=view, crop_pct=1.0))


def _network_of(model: EvalModel) -> nn.Module:
    if model.module is None:
        raise ValueError(f"{model.name} has no twin: needs a network in torch, not a file or a function")
    return model.module


def _beside(model: EvalModel, module: nn.Module, how: str, options: EvalOptions | None) -> EvalModel:
    twin = make_eval_model(module, f"{model.name}, {how}", model.weights, options, model.random)
    kept = {key: getattr(model, key) for key in ("preparation", "classes", "num_classes", "assumed")}
    return replace(twin, **kept)
