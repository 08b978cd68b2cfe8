"""The model under examination: something that turns normalised images into logits, and its twins."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import torch
from timm.data import ImageNetInfo
from torch import Tensor, nn

from ...canonical import canonicalize
from ...data import Preparation
from ...data.transforms import ScenePreparation
from ...ops.geometry.shift import Pair
from ...tasks import adapt
from ...tasks.inference import segment_whole
from ...utils.checks import check_at_least, check_seed
from .dense import PixelLogits, is_segmenter, logits_in, size_multiple_of
from .feature_maps import StageMaps, stage_maps

PRECISIONS = ("float32", "bf16")
Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Subject:
    """A model to measure.

    Args:
        name: as tables show it.
        forward: normalised images ``[B, 3, H, W]`` to logits ``[B, classes]``; if dense, ``[B, classes, H, W]``.
        preparation: how it wants its pictures.
        weights: where its weights come from, in words.
        classes: names of what it answers, if known.
        num_classes: how many answers it has, if known.
        module: the network itself, where there is one.
        fingerprint: what tells it from any other, where there is no network to look at.
        maps: the feature maps of its stages, where they can be had.
        batch_size: the only one it takes, if there is only one.
        random: whether its weights were never trained.
        assumed: whether it does not say how it wants its pictures, so that the usual values stand in.
        dense: whether it tells a label for each pixel.
        scenes: how it wants its pictures, if it is dense.
    """

    name: str
    forward: Forward
    preparation: Preparation
    weights: str
    classes: list[str] | None = None
    num_classes: int | None = None
    module: nn.Module | None = None
    fingerprint: str | None = None
    maps: StageMaps | None = None
    batch_size: int | None = None
    random: bool = False
    assumed: bool = False
    dense: bool = False
    scenes: ScenePreparation | None = None


@dataclass(frozen=True)
class Request:
    """What is asked for beside the model's name.

    Args:
        random_weights: measure the initialisation, where weights cannot be had.
        architecture: name of the network that a checkpoint belongs to.
        img_size: height and width, where the model does not say or another is wanted; for segmentation the shortest
            side.
        crop_pct: how much of the resized picture is kept, where the model does not say or another is wanted.
        mean: of each colour, where the model does not say.
        std: of each colour, where the model does not say.
    """

    random_weights: bool = False
    architecture: str | None = None
    img_size: int | None = None
    crop_pct: float | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r}: needs one of {', '.join(PRECISIONS)}")
        check_at_least("img_size", self.img_size, 1)
        check_seed(self.seed)


def subject_of(
    module: nn.Module,
    name: str,
    weights: str,
    request: Request | None = None,
    random: bool = False,
    num_classes: int | None = None,
) -> Subject:
    """A network as a subject: timm's, ours, transformers', or any other that gives logits.

    Args:
        num_classes: where the network itself does not say.
    """
    request = request or Request()
    module = module.to(request.device).eval()
    if is_segmenter(module):
        return dense_subject_of(module, name, weights, request, random)
    config = _config_of(module)
    preparation = Preparation.from_config(config)
    num_classes = getattr(module, "num_classes", None) or num_classes
    names = _names_in(config, num_classes)
    if num_classes == 1000 and not names:
        names = imagenet_names()
    return Subject(
        name,
        _logits_of(module, request),
        preparation,
        weights,
        classes=names or None,
        num_classes=num_classes,
        module=module,
        maps=stage_maps(module),
        random=random,
        assumed=not config,
    )


def dense_subject_of(
    module: nn.Module,
    name: str,
    weights: str,
    request: Request | None = None,
    random: bool = False,
    num_classes: int | None = None,
) -> Subject:
    """A network as a subject that tells a label for each pixel.

    Args:
        num_classes: where the network itself does not say.
    """
    request = request or Request()
    module = module.to(request.device).eval()
    config, multiple = _config_of(module), size_multiple_of(module)
    num_classes = getattr(module, "num_classes", None) or num_classes
    return Subject(
        name,
        pixel_forward(PixelLogits(module, multiple), request),
        Preparation.from_config(config),
        weights,
        classes=_names_in(config, num_classes) or None,
        num_classes=num_classes,
        module=module,
        random=random,
        assumed=not config.get("scene"),
        dense=True,
        scenes=_scenes_in(config, multiple),
    )


def _config_of(module: nn.Module) -> dict[str, Any]:
    config: Any = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    return config if isinstance(config, dict) else config.to_dict()


def _names_in(config: dict[str, Any], num_classes: int | None) -> list[str]:
    """Names of the classes; none where they are those of another classifier, which the network had before."""
    names = list(config.get("label_names") or [])
    return names if num_classes in (None, len(names)) else []


def _scenes_in(config: dict[str, Any], multiple: Pair) -> ScenePreparation:
    """How a segmentation network wants its pictures: as it says, at sizes that it takes."""
    colours = {key: tuple(config[key]) for key in ("mean", "std") if config.get(key)}
    said = ScenePreparation.from_dict({**colours, **(config.get("scene") or {})})
    rows, columns = (lcm(mine, needed) for mine, needed in zip(said.multiple, multiple, strict=True))
    return replace(said, multiple=(rows, columns))


def pixel_forward(model: PixelLogits, request: Request) -> Forward:
    """Images of any size to logits of their pixels, in the precision asked for."""
    return _precisely(lambda images: segment_whole(model, images), request)


def _logits_of(module: nn.Module, request: Request) -> Forward:
    return _precisely(lambda images: logits_in(module(images)), request)


def _precisely(forward: Forward, request: Request) -> Forward:
    kind = torch.device(request.device).type
    precise = nullcontext() if request.precision == "float32" else torch.autocast(kind, torch.bfloat16)

    def in_precision(images: Tensor) -> Tensor:
        with precise:
            return forward(images)

    return in_precision


def imagenet_names() -> list[str]:
    """A short name for each of ImageNet's 1000 classes."""
    info = ImageNetInfo()
    return [info.index_to_description(index).split(",")[0] for index in range(1000)]


def adapted_twin(subject: Subject, request: Request | None = None) -> Subject:
    """The shift-equivariant twin of a subject, with its weights."""
    try:
        twin = adapt(_network_of(subject))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{error}. --against canonical wraps any model instead") from error
    return _beside(subject, twin, "adapted", request)


def canonical_twin(subject: Subject, request: Request | None = None) -> Subject:
    """The same network, shown each image in a frame that does not move."""
    network = _network_of(subject)
    if not subject.dense:
        return _beside(subject, canonicalize(network), "canonical", request)
    multiple = size_multiple_of(network)
    canonical = canonicalize(PixelLogits(network, multiple), dense=True)
    twin = _beside(subject, canonical, "canonical", request)
    # padded before it is rolled: a frame found on fewer pixels would not be the network's
    return replace(twin, forward=pixel_forward(PixelLogits(canonical, multiple), request or Request()))


def _network_of(subject: Subject) -> nn.Module:
    if subject.module is None:
        raise ValueError(f"{subject.name} has no twin: needs a network in torch, not a file or a function")
    return subject.module


def _beside(subject: Subject, module: nn.Module, how: str, request: Request | None) -> Subject:
    twin = subject_of(module, f"{subject.name}, {how}", subject.weights, request, subject.random)
    return replace(
        twin,
        preparation=subject.preparation,
        classes=subject.classes,
        num_classes=subject.num_classes,
        assumed=subject.assumed,
        scenes=subject.scenes,
    )
