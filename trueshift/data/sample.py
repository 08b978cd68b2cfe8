"""The real images that come with the package."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from .cifar import CIFAR10_CLASSES
from .source import Sample

FOLDER = Path(__file__).parent / "sample_images"
_SIDE = 32


class EmbeddedSample:
    """400 test images of CIFAR-10, 40 of each class; source and licence are in ``sample_images/README.md``."""

    title = "400 CIFAR-10 test images"

    def __init__(self) -> None:
        self.classes: list[str] | None = list(CIFAR10_CLASSES)
        with (FOLDER / "cifar10_test_400.csv").open() as file:
            rows = list(csv.DictReader(file))
        self.indices = [int(row["index"]) for row in rows]
        self.labels = np.array([int(row["label"]) for row in rows], np.int64)
        mosaic = np.asarray(Image.open(FOLDER / "cifar10_test_400.png").convert("RGB"))
        tiles = mosaic.reshape(mosaic.shape[0] // _SIDE, _SIDE, mosaic.shape[1] // _SIDE, _SIDE, 3)
        self.pixels = tiles.transpose(0, 2, 1, 3, 4).reshape(-1, _SIDE, _SIDE, 3)

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """The class and the index in CIFAR-10's test set."""
        return f"{CIFAR10_CLASSES[self.labels[index]]} {self.indices[index]}"

    def __getitem__(self, index: int) -> Sample:
        return Sample(Image.fromarray(self.pixels[index]), self.name(index), int(self.labels[index]))
