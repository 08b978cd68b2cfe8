"""What is minimised: cross-entropy, with smoothed or mixed labels if asked for."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from timm.data import Mixup
from torch import Tensor

from .config import AugmentConfig


class Objective:
    """Mixes a batch, and compares the network's answers with its labels."""

    def __init__(self, augment: AugmentConfig, num_classes: int) -> None:
        self.smoothing = augment.label_smoothing
        self.mix: Mixup | None = None
        if augment.mixup or augment.cutmix:
            self.mix = Mixup(
                mixup_alpha=augment.mixup,
                cutmix_alpha=augment.cutmix,
                prob=augment.mix_probability,
                switch_prob=augment.switch_probability,
                label_smoothing=augment.label_smoothing,
                num_classes=num_classes,
            )

    def mixed(
        self, images: Float[Tensor, "B C H W"], labels: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B C H W"], Tensor]:
        """Pairs of images blended into each other, and how much of each class they then hold."""
        if self.mix is None:
            return images, labels
        return self.mix(images.clone(), labels)  # timm's writes into what it is given, which may be mixed again

    def loss(self, logits: Float[Tensor, "B classes"], targets: Tensor) -> Float[Tensor, ""]:
        """The mean over a batch."""
        smoothing = 0.0 if targets.is_floating_point() else self.smoothing  # mixing has smoothed already
        return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)
