"""Segmentation models whose consistency is known, and small scenes in memory."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from trueshift.data.source import Sample
from trueshift.data.transforms import ScenePreparation
from trueshift.eval import EvalModel, EvalOptions
from trueshift.eval.models.dense import PixelLogits
from trueshift.eval.models.eval_model import pixel_forward

SMALL = ScenePreparation((64, 16), (8, 8), "resize", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


class ByPixel(nn.Module):
    """A 1 x 1 convolution: each pixel's own brightest colour, wherever it lies."""

    num_classes, size_multiple = 3, (8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(3, 3, 1, bias=False)
        nn.init.dirac_(self.mix.weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.mix(images)


class ByPlace(nn.Module):
    """The upper half is one class, the lower another, whatever is there."""

    num_classes, size_multiple = 3, (1, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits = torch.zeros(len(images), 3, *images.shape[2:])
        logits[:, 0, : images.shape[2] // 2] = logits[:, 1, images.shape[2] // 2 :] = 1
        return logits


class Scenes:
    """Scenes in memory; one that is an exception cannot be read."""

    title = "made up"

    def __init__(self, scenes, classes=("red", "green", "blue")):
        self.scenes = scenes
        self.classes = list(classes) if classes else None

    def __len__(self):
        return len(self.scenes)

    def name(self, index):
        return f"scene {index}"

    def __getitem__(self, index):
        image, mask = self.scenes[index]
        if isinstance(image, Exception):
            raise image
        return Sample(image, self.name(index), mask)


def noise(count=4, size=(16, 24), seed=0):
    """Pictures of one colour in each pixel, with masks that name it."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        mask = generator.integers(0, 3, size).astype(np.int32)
        made.append((Image.fromarray((255 * np.eye(3)[mask]).astype(np.uint8)), mask))
    return made


def segmenter(module, name="model", scenes=SMALL, precision="float32"):
    module = module.eval()
    return EvalModel(
        name,
        pixel_forward(PixelLogits(module, module.size_multiple), EvalOptions(precision=precision)),
        scenes,
        "made up",
        num_classes=module.num_classes,
        module=module,
        dense=True,
    )
