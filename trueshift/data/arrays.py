"""Small images of one size, all in memory: the sample in the package, CIFAR, arrays and mosaics."""

import csv
import io
import zipfile
import zlib
from math import isqrt
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

from .images import natural_order
from .source import Sample, check_split

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SAMPLE_FOLDER = Path(__file__).parent / "sample_images"
_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, TypeError, OSError)


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
        pixels = _tiles(np.asarray(Image.open(SAMPLE_FOLDER / "cifar10_test_400.png").convert("RGB")), 32)
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
        check_split(split)
        found = _find_cifar(Path(path))
        if found is None:
            raise FileNotFoundError(f"{path} has no CIFAR files: needs {CIFAR10.base_folder} or {CIFAR100.base_folder}")
        kind, root = found
        try:
            data = kind(root, train=split == "train")
        except RuntimeError as error:  # a file is missing, or has another checksum
            raise ValueError(f"{root / kind.base_folder} does not hold the published files: copy them again") from error
        title = "CIFAR-100" if kind is CIFAR100 else "CIFAR-10"
        super().__init__(f"{title} {split}", split, data.data, np.array(data.targets, np.int64), list(data.classes))

    @staticmethod
    def are_in(path: Path) -> bool:
        """Whether a folder holds CIFAR files."""
        return _find_cifar(path) is not None


def _find_cifar(path: Path) -> tuple[type[CIFAR10], Path] | None:
    path = path.resolve()
    for kind in (CIFAR10, CIFAR100):
        root = path.parent if path.name == kind.base_folder else path
        if (root / kind.base_folder).is_dir():
            return kind, root
    return None


class CompactArchive(ImageArrays):
    """Images from an npz with ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or from mosaics in zips.

    A zip holds mosaics ``NAME.webp`` or ``NAME.png`` of square tiles, row by row; ``NAME.labels``, one byte for each
    tile; and ``classes.txt``. Mosaics come in natural order; those called ``test...`` are for testing.

    Args:
        path: an ``.npz``, a ``.zip``, or a folder of either.
        split: ``"test"`` or ``"train"``.
    """

    def __init__(self, path: str | Path, split: str = "test") -> None:
        check_split(split)
        path = Path(path)
        files = _archives(path)
        if not files:
            raise FileNotFoundError(f"{path} is no archive: needs an .npz, a .zip, or a folder of them")
        read = _read_npz if files[0].suffix.lower() == ".npz" else _read_mosaics
        super().__init__(f"{path.resolve().stem} {split}", split, *read(files, split))

    @staticmethod
    def are_in(path: Path) -> bool:
        """Whether a path leads to an archive, or to a folder of them."""
        return bool(_archives(path))


def _archives(path: Path) -> list[Path]:
    files = sorted(path.iterdir(), key=lambda file: natural_order(file.name)) if path.is_dir() else [path]
    files = [file for file in files if file.is_file() and not file.name.startswith(".")]
    zips = [file for file in files if file.suffix.lower() == ".zip"]
    return zips or [file for file in files if file.suffix.lower() == ".npz"][:1]


def _read_npz(files: list[Path], split: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    path, wanted = files[0], (f"x_{split}", f"y_{split}")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:  # numpy leaves a damaged file open
            found = {name: arrays[name] for name in {*wanted, "y_train", "y_test"}.intersection(arrays)}
    except _DAMAGES as error:
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
    # of both splits, so that their classes are the same
    highest = max(int(each.max(initial=0)) for name, each in found.items() if name.startswith("y_"))
    return pixels, labels.astype(np.int64), [str(label) for label in range(highest + 1)]


def _read_mosaics(files: list[Path], split: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    members: dict[str, bytes] = {}
    for file in files:
        try:
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    if name == "classes.txt" or PurePosixPath(name).name.startswith("test") == (split == "test"):
                        members[name] = archive.read(name)
        except _DAMAGES as error:
            raise ValueError(f"{file} cannot be read as a zip of mosaics ({error}): copy it again") from error
    folder = files[0].parent
    mosaics = [name for name in sorted(members, key=natural_order) if name.endswith((".webp", ".png"))]
    if not mosaics or "classes.txt" not in members:
        raise ValueError(f"{folder} has no {split} mosaics: needs NAME.webp, NAME.labels and classes.txt in its zips")
    listed = members["classes.txt"].decode("utf-8-sig").strip()
    names = [line.strip() for line in listed.splitlines()] if "\n" in listed else listed.split()
    pixels, labels = [], []
    for name in mosaics:
        numbers = np.frombuffer(members.get(str(PurePosixPath(name).with_suffix(".labels")), b""), np.uint8)
        try:
            image = np.asarray(Image.open(io.BytesIO(members[name])).convert("RGB"))
            side = isqrt(image.shape[0] * image.shape[1] // len(numbers))
            pixels.append(_tiles(image, side))
            if len(pixels[-1]) != len(numbers):
                raise ValueError(f"it has {len(pixels[-1])} tiles")
        except (*_DAMAGES, ZeroDivisionError, SyntaxError) as error:
            raise ValueError(
                f"{folder} has {name} and {len(numbers)} labels ({error}): needs a mosaic of as many square tiles"
            ) from error
        labels.append(numbers.astype(np.int64))
    found = np.concatenate(labels)
    if found.max() >= len(names):
        raise ValueError(f"{folder} has labels up to {found.max()}: needs 0 to {len(names) - 1}, as in classes.txt")
    return np.concatenate(pixels), found, names


def _tiles(mosaic: np.ndarray, side: int) -> np.ndarray:
    """Square tiles of a mosaic, row by row."""
    rows, columns = mosaic.shape[0] // side, mosaic.shape[1] // side
    return mosaic.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
