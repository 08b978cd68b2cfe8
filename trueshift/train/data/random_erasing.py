"""Random erasing: a rectangle of a normalised image becomes noise. As timm's, but seeded by picture."""

import random
from collections.abc import Sequence
from math import exp, log, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

_AREA = (0.02, 1 / 3)
_ASPECT = (0.3, 1 / 0.3)
_TRIES = 10


def erase(images: Float[Tensor, "B C H W"], seeds: Sequence[int], probability: float) -> Float[Tensor, "B C H W"]:
    """Fill a rectangle of some images with normal noise, in place."""
    height, width = images.shape[-2:]
    generator = torch.Generator(images.device)
    for image, seed in zip(images, seeds, strict=True):
        chance = random.Random(seed)
        if chance.random() >= probability:
            continue
        rectangle = _rectangle(chance, height, width)
        if rectangle is not None:
            top, left, high, wide = rectangle
            generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
            image[:, top : top + high, left : left + wide].normal_(generator=generator)
    return images


def _rectangle(chance: random.Random, height: int, width: int) -> tuple[int, int, int, int] | None:
    """Top, left, height, width; None if none fitted."""
    for _ in range(_TRIES):
        area = chance.uniform(*_AREA) * height * width
        aspect = exp(chance.uniform(log(_ASPECT[0]), log(_ASPECT[1])))
        high, wide = round(sqrt(area * aspect)), round(sqrt(area / aspect))
        if 0 < high < height and 0 < wide < width:
            return chance.randint(0, height - high), chance.randint(0, width - wide), high, wide
    return None
