"""The networks that are compared: timm's (CvT: transformers'), ours with fixed grids, ours adaptive; others adapted."""

from typing import NamedTuple

from torch import Tensor, nn

import trueshift as ts  # before timm, which needs torchvision to be importable

import timm  # isort: skip
import torchvision  # isort: skip

REFERENCE, FIXED, ADAPTIVE = "reference", "ours, fixed", "ours, adaptive"


class Family(NamedTuple):
    """A network by its name, the height and width of its images, how tables call it, and how recipes do."""

    name: str
    size: int
    title: str = ""
    short: str = ""


FAMILIES = {
    "swin": Family("swin_tiny_patch4_window7_224", 224, "Swin-T", "swin_tiny"),
    "swinv2": Family("swinv2_tiny_window8_256", 256, "SwinV2-T", "swinv2_tiny"),
    "cvt": Family("cvt_13", 224, "CvT-13", "cvt_13"),
    "mvitv2": Family("mvitv2_tiny", 224, "MViTv2-T", "mvitv2_tiny"),
}
KEPT = {  # networks of others that keep their class, as they are and adapted
    "vit": Family("vit_small_patch16_224", 224),
    "dinov2": Family("vit_small_patch14_dinov2", 224),
    "torchvision_swin": Family("torchvision's swin_t", 224),
    "transformers_swin": Family("transformers' Swin-T", 224),
}
OF_TRANSFORMERS = {"cvt": "cvt", "transformers_swin": "swin"}  # CvT takes images of any size


class Logits(nn.Module):
    """A network of transformers, giving logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def contestant(family: str, label: str, size: int | None = None) -> nn.Module:
    """One of those that are compared, by its label, with random weights."""
    name, own_size, *_ = (FAMILIES | KEPT)[family]
    size = size or own_size
    if label != REFERENCE and family in FAMILIES:
        return ts.create_model(f"{'a_' * (label == ADAPTIVE)}{name}", img_size=size)
    if kind := OF_TRANSFORMERS.get(family):
        from transformers import AutoConfig, AutoModelForImageClassification

        config = AutoConfig.for_model(kind, num_labels=1000, image_size=size)
        made = AutoModelForImageClassification.from_config(config)
    elif family == "torchvision_swin":
        made = torchvision.models.swin_t()
    else:
        made = timm.create_model(name, img_size=size, num_classes=1000)
    made = ts.adapt(made) if label == ADAPTIVE else made
    return Logits(made) if family in OF_TRANSFORMERS else made
