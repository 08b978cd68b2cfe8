"""CIFAR-10 and CIFAR-100 from their own files, python or binary version."""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from .source import Sample

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PIXELS = 3 * 32 * 32
_Taken = TypeVar("_Taken")


@dataclass(frozen=True)
class _Layout:
    """One published version of the files."""

    title: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    classes: int
    label_bytes: int  # in front of each image of the binary version; the last of them is the class
    label_key: str = ""  # of the python version

    @property
    def binary(self) -> bool:
        return not self.label_key


_LAYOUTS = (
    _Layout("CIFAR-10", tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",), 10, 1),
    _Layout("CIFAR-10", tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",), 10, 0, "labels"),
    _Layout("CIFAR-100", ("train.bin",), ("test.bin",), 100, 2),
    _Layout("CIFAR-100", ("train",), ("test",), 100, 0, "fine_labels"),
)
_USUAL_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar-100-binary", "cifar-100-python")


class CifarFiles:
    """CIFAR images in their original order.

    Args:
        path: the folder with the batch files, or the one above it.
        split: ``"test"`` or ``"train"``.
    """

    def __init__(self, path: str | Path, split: str = "test") -> None:
        if split not in ("test", "train"):
            raise ValueError(f"split {split!r}: needs 'test' or 'train'")
        found = _find(Path(path))
        if found is None:
            raise FileNotFoundError(f"{path} has no CIFAR files: needs {_LAYOUTS[0].test[0]} or {_LAYOUTS[1].test[0]}")
        folder, layout = found
        self.title = f"{layout.title} {split}"
        self.split = split
        read = _read_binary if layout.binary else _read_pickle
        batches = [read(folder / file, layout) for file in getattr(layout, split)]
        self.pixels = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        self.labels = np.concatenate([labels for _, labels in batches])
        self.classes: list[str] | None = _class_names(folder, layout)

    @staticmethod
    def are_in(path: Path) -> bool:
        """Whether a folder holds CIFAR files."""
        return _find(path) is not None

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """The split and the index in it."""
        return f"{self.split} {index}"

    def __getitem__(self, index: int) -> Sample:
        image = Image.fromarray(np.ascontiguousarray(self.pixels[index]))
        return Sample(image, self.name(index), int(self.labels[index]))


def _find(path: Path) -> tuple[Path, _Layout] | None:
    for folder in (path / inside for inside in _USUAL_FOLDERS):
        for layout in _LAYOUTS:
            # "test" alone may be a folder of images
            if all((folder / file).is_file() for file in layout.test):
                return folder, layout
    return None


def _read_binary(file: Path, layout: _Layout) -> tuple[np.ndarray, np.ndarray]:
    data = _bytes_of(file)
    row = layout.label_bytes + _PIXELS
    if not data or len(data) % row:
        raise ValueError(f"{file} has {len(data)} bytes: needs a multiple of {row}, {layout.title}'s binary version")
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    return rows[:, layout.label_bytes :], _checked(rows[:, layout.label_bytes - 1], file, layout)


def _read_pickle(file: Path, layout: _Layout) -> tuple[np.ndarray, np.ndarray]:
    def arrays(batch: Any) -> tuple[np.ndarray, np.ndarray]:
        pixels, labels = np.asarray(batch["data"], np.uint8), np.asarray(batch[layout.label_key])
        if not len(labels):
            raise ValueError("it holds no images")
        return pixels.reshape(len(labels), _PIXELS), labels

    pixels, labels = _unpickled(file, layout, arrays)
    return pixels, _checked(labels, file, layout)


def _unpickled(file: Path, layout: _Layout, take: Callable[[Any], _Taken]) -> _Taken:
    data = _bytes_of(file)
    try:
        return take(_ArraysOnly(io.BytesIO(data), encoding="latin1").load())
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"{file} is not a file of {layout.title}'s python version ({error}): copy it again") from error


def _bytes_of(file: Path) -> bytes:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: the files of this split are not complete")
    return file.read_bytes()


def _checked(labels: np.ndarray, file: Path, layout: _Layout) -> np.ndarray:
    if labels.min() < 0 or labels.max() >= layout.classes:
        raise ValueError(f"{file} has labels from {labels.min()} to {labels.max()}: needs 0 to {layout.classes - 1}")
    return labels.astype(np.int64)


class _ArraysOnly(pickle.Unpickler):
    """Reads arrays and plain containers; a pickle that would call anything else is refused."""

    _allowed = frozenset({"_reconstruct", "ndarray", "dtype", "scalar", "encode"})

    def find_class(self, module: str, name: str) -> Any:
        if name not in self._allowed or module.split(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which CIFAR files do not")
        return super().find_class(module, name)


def _class_names(folder: Path, layout: _Layout) -> list[str]:
    if layout.classes == 10:
        return list(CIFAR10_CLASSES)
    names: list[str] = []
    if (folder / "fine_label_names.txt").is_file():
        names = (folder / "fine_label_names.txt").read_text().split()
    elif (folder / "meta").is_file():
        names = _unpickled(folder / "meta", layout, lambda meta: list(meta["fine_label_names"]))
    return names if len(names) == layout.classes else [str(label) for label in range(layout.classes)]
