"""The model under examination: something that turns normalised images into logits, and its twins."""

from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from timm.data import ImageNetInfo
from torch import Tensor, nn

from ..canonical import canonicalize
from ..data import Preparation
from ..models import adapt
from .measure import Forward
from .stages import StageMaps, stage_maps

PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True)
class Subject:
    """A model to measure.

    Args:
        name: as tables show it.
        forward: normalised images ``[B, 3, H, W]`` to logits ``[B, classes]``.
        preparation: how it wants its pictures.
        weights: where its weights come from, in words.
        classes: names of what it answers, if known.
        num_classes: how many answers it has, if known.
        module: the network itself, where there is one.
        maps: the feature maps of its stages, where they can be had.
        batch_size: the only one it takes, if there is only one.
        random: whether its weights were never trained.
        assumed: whether it does not say how it wants its pictures, so that the usual values stand in.
    """

    name: str
    forward: Forward
    preparation: Preparation
    weights: str
    classes: list[str] | None = None
    num_classes: int | None = None
    module: nn.Module | None = None
    maps: StageMaps | None = None
    batch_size: int | None = None
    random: bool = False
    assumed: bool = False


@dataclass(frozen=True)
class Request:
    """What is asked for beside the model's name.

    Args:
        random_weights: measure the initialisation, where weights cannot be had.
        architecture: name of the network that a checkpoint belongs to.
        img_size: height and width, where the model does not say or another is wanted.
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


def subject_of(
    module: nn.Module, name: str, weights: str, request: Request | None = None, random: bool = False
) -> Subject:
    """A network as a subject: timm's, ours, transformers', or any other that gives logits."""
    request = request or Request()
    module = module.to(request.device).eval()
    config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None) or {}
    preparation = Preparation.from_config(config if isinstance(config, dict) else config.to_dict())
    num_classes = getattr(module, "num_classes", None)
    names = list(config.get("label_names") or []) if isinstance(config, dict) else []
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


def _logits_of(module: nn.Module, request: Request) -> Forward:
    kind = torch.device(request.device).type
    precise = nullcontext() if request.precision == "float32" else torch.autocast(kind, torch.bfloat16)

    def forward(images: Tensor) -> Tensor:
        with precise:
            answer = module(images)
        return getattr(answer, "logits", answer)

    return forward


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
    return _beside(subject, canonicalize(_network_of(subject)), "canonical", request)


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
    )
