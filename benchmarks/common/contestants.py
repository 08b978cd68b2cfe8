"""The networks that are compared: timm's (CvT: transformers'), ours with fixed grids, ours adaptive."""

from typing import NamedTuple

from torch import Tensor, nn

import trueshift as ts  # before timm, which needs torchvision to be importable

import timm  # isort: skip

REFERENCE, FIXED, ADAPTIVE = "reference", "ours, fixed", "ours, adaptive"


class Family(NamedTuple):
    """One of the paper's four networks."""

    name: str
    size: int


FAMILIES = {
    "swin": Family("swin_tiny_patch4_window7_224", 224),
    "swinv2": Family("swinv2_tiny_window8_256", 256),
    "cvt": Family("cvt_13", 224),
    "mvitv2": Family("mvitv2_tiny", 224),
}


class CvtReference(nn.Module):
    """CvT-13 of transformers, giving logits alone."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import CvtConfig, CvtForImageClassification

        self.model = CvtForImageClassification(CvtConfig(num_labels=1000))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def contestant(family: str, label: str, size: int | None = None) -> nn.Module:
    """One of those that are compared, by its label, with random weights."""
    name, own_size = FAMILIES[family]
    size = size or own_size
    if label == REFERENCE:  # a CvT takes images of any size
        return CvtReference() if family == "cvt" else timm.create_model(name, img_size=size)
    return ts.create_model(f"{'a_' * (label == ADAPTIVE)}{name}", img_size=size)
