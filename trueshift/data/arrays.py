"""Small images of one size, all in memory: the sample in the package, CIFAR and arrays."""

import csv
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

from .source import Sample, split_names

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SAMPLE_FOLDER = Path(__file__).parent / "sample_images"
# what numpy raises for damaged files
DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, TypeError, OSError)


class ImageArrays:
    """Images and labels as arrays.

    Args:
        pixels: ``[N, S, S, 3]`` of uint8.
        labels: the class of each.
    """

    def __init__(self, title: str, split: str, pixels: np.ndarray, labels: np.ndarray, classes: list[str]) -> None:
        self.title, self.split, self.pixels, self.labels = title, split, pixels, labels
        self.classes: list[str] | None = classes

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """The split and the index in it."""
        return f"{self.split} {index}"

    def __getitem__(self, index: int) -> Sample:
        return Sample(Image.fromarray(self.pixels[index]), self.name(index), int(self.labels[index]))


class EmbeddedSample(ImageArrays):
    """400 test images of CIFAR-10, 40 of each class; source and licence are in ``sample_images/README.md``."""

    def __init__(self) -> None:
        with (SAMPLE_FOLDER / "cifar10_test_400.csv").open() as file:
            rows = list(csv.DictReader(file))
        self.indices = [int(row["index"]) for row in rows]
        labels = np.array([int(row["label"]) for row in rows], np.int64)
        mosaic = np.asarray(Image.open(SAMPLE_FOLDER / "cifar10_test_400.png").convert("RGB"))
        rows_of_tiles = mosaic.reshape(mosaic.shape[0] // 32, 32, -1, 32, 3)
        pixels = rows_of_tiles.swapaxes(1, 2).reshape(-1, 32, 32, 3)
        super().__init__("400 CIFAR-10 test images", "test", pixels, labels, list(CIFAR10_CLASSES))

    def name(self, index: int) -> str:
        """The class and the index in CIFAR-10's test set."""
        return f"{CIFAR10_CLASSES[self.labels[index]]} {self.indices[index]}"


class CifarFiles(ImageArrays):
    """CIFAR-10 or CIFAR-100 from the official files, python version, whose checksums torchvision verifies.

    Args:
        path: the folder with the batch files, or the one above it.
        split: ``"test"`` or ``"train"``.
    """

    def __init__(self, path: str | Path, split: str = "test") -> None:
        split = split_names(split)[0]
        found = find_cifar(Path(path))
        if found is None:
            raise FileNotFoundError(f"{path} has no CIFAR files: needs {CIFAR10.base_folder} or {CIFAR100.base_folder}")
        kind, root = found
        if split == "val":
            raise ValueError(f"{root / kind.base_folder} has no validation: needs split 'test', or 'train'")
        try:
            data = kind(root, train=split == "train")
        except RuntimeError as error:  # a file is missing, or has another checksum
            raise ValueError(f"{root / kind.base_folder} does not hold the published files: copy them again") from error
        title = "CIFAR-100" if kind is CIFAR100 else "CIFAR-10"
        super().__init__(f"{title} {split}", split, data.data, np.array(data.targets, np.int64), list(data.classes))


def find_cifar(path: Path) -> tuple[type[CIFAR10], Path] | None:
    """Which of both, and the folder above its files, given that or theirs."""
    path = path.resolve()
    for kind in (CIFAR10, CIFAR100):
        root = path.parent if path.name == kind.base_folder else path
        if (root / kind.base_folder).is_dir():
            return kind, root
    return None


class CompactArchive(ImageArrays):
    """Images from an npz with ``x_train``, ``y_train``, ``x_test`` and ``y_test``.

    Args:
        path: an ``.npz``, or a folder with one.
        split: ``"train"``, ``"val"`` or ``"test"``.
    """

    def __init__(self, path: str | Path, split: str = "test") -> None:
        names = split_names(split)
        path = Path(path)
        file = find_npz(path)
        if file is None:
            raise FileNotFoundError(f"{path} is no archive: needs an .npz, or a folder with one")
        split, pixels, labels, classes = _read_npz(file, names)
        super().__init__(f"{path.resolve().stem} {split}", split, pixels, labels, classes)


def find_npz(path: Path) -> Path | None:
    """An archive, or the first one in a folder."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = (file for file in files if file.is_file() and file.suffix.lower() == ".npz")
    return next((file for file in found if not file.name.startswith(".")), None)


def _read_npz(path: Path, names: Sequence[str]) -> tuple[str, np.ndarray, np.ndarray, list[str]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:  # numpy leaves a damaged file open
            split = next((name for name in names if f"x_{name}" in arrays), names[0])
            wanted = (f"x_{split}", f"y_{split}")
            found = {name: arrays[name] for name in arrays if name in wanted or name.startswith("y_")}
    except DAMAGES as error:
        raise ValueError(f"{path} is not a whole npz file of plain arrays ({error}): save it with np.savez") from error
    if missing := set(wanted) - found.keys():
        raise ValueError(f"{path} has no {', '.join(sorted(missing))}: needs {' and '.join(wanted)}")
    pixels, labels = found[wanted[0]], found[wanted[1]].reshape(-1)
    if pixels.ndim != 4 or pixels.shape[1] != pixels.shape[2] or pixels.shape[3] != 3 or pixels.dtype != np.uint8:
        raise ValueError(
            f"{path} has {wanted[0]} of shape {pixels.shape} and type {pixels.dtype}: needs [N, S, S, 3] of uint8"
        )
    if not len(labels) == len(pixels) > 0 or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"{path} has {len(labels)} labels of type {labels.dtype} for {len(pixels)} images: "
            "needs a whole number, 0 or more, for each"
        )
    # of all splits, so that their classes are the same
    highest = max(int(each.max(initial=0)) for name, each in found.items() if name.startswith("y_"))
    return split, pixels, labels.astype(np.int64), [str(label) for label in range(highest + 1)]
