"""Noise in the files of published data sets: as much of them as their readers look for."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_IMAGES = 16  # of each split
_SIDE = 64  # of scenes, which are square: their frames are then the smallest that there are


def write_cifar(folder: Path, classes: int) -> None:
    """Images of CIFAR's size and number of classes; torchvision would refuse files with other checksums."""
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"] = random.integers(0, 256, (_IMAGES, 32, 32, 3), np.uint8)
        arrays[f"y_{split}"] = np.append(random.integers(0, classes, _IMAGES - 1), classes - 1)
    np.savez(folder / "cifar.npz", **arrays)


def write_image_folders(folder: Path, classes: int) -> None:
    """A small picture for each class, to learn from and to measure on."""
    random = np.random.default_rng(0)
    for number in range(classes):
        for split in ("train", "val"):
            _save(random.integers(0, 256, (40, 48, 3), np.uint8), folder / split / f"n{number:08d}" / "0.png")


# where each data set has its pictures and its label files, and the values of these that are classes
_SCENES = {
    "ade20k": ("images/{long}/ADE_{number}.jpg", "annotations/{long}/ADE_{number}.png", (1, 150)),
    "cityscapes": (
        "leftImg8bit/{split}/ulm/ulm_{number}_leftImg8bit.png",
        "gtFine/{split}/ulm/ulm_{number}_gtFine_labelTrainIds.png",
        (0, 18),
    ),
    "camvid": ("{split}/{number}.png", "{split}annot/{number}.png", (0, 10)),
}


def write_scenes(folder: Path, kind: str) -> None:
    """ADE20K, Cityscapes or CamVid, with training and validation, CamVid with a test as well."""
    random = np.random.default_rng(0)
    picture, mask, (first, last) = _SCENES[kind]
    for split, long in (("train", "training"), ("val", "validation"), ("test", "testing")):
        if split == "test" and kind != "camvid":  # the labels of the others' are not published
            continue
        for number in range(_IMAGES):
            names = {"split": split, "long": long, "number": f"{number:06d}"}
            _save(random.integers(0, 256, (_SIDE, _SIDE, 3), np.uint8), folder / picture.format(**names))
            _save(random.integers(first, last + 1, (_SIDE, _SIDE), np.uint8), folder / mask.format(**names))


def _save(pixels: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
