"""Small images packed without loss: mosaics in zip files, or arrays in an npz file."""

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isqrt
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image

from ..utils.files import write_whole
from .images import decoded
from .packed import check_split, class_names, natural_order
from .source import Sample, Source

_MOST_TILES = 10_000  # of a mosaic that we write
_LONGEST_SIDE = 16_383  # of a WebP
_MOST_PIXELS = 2**26  # Pillow suspects larger images of being an attack


class CompactArchive:
    """Small square images of one size, all of them in memory.

    A zip holds mosaics ``NAME.webp`` or ``NAME.png`` of square tiles, row by row; ``NAME.labels``, one byte for each
    tile, or two with the lower one first; and ``classes.txt``, one name per line, or words in a single line. Mosaics
    come in their natural order; those called ``test...`` or ``val...`` are for testing. An npz holds ``x_train``,
    ``y_train``, ``x_test`` and ``y_test``.

    Args:
        path: a ``.zip``, a folder of them that are read together, or an ``.npz``.
        split: ``"test"`` or ``"train"``.
    """

    def __init__(self, path: str | Path, split: str = "test") -> None:
        check_split(split)
        path = Path(path)
        self.title = f"{path.resolve().stem} {split}"
        self.split = split
        read = _read_arrays if path.suffix.lower() == ".npz" else _read_mosaics
        self.pixels, self.labels, names = read(path, split)
        self.classes: list[str] | None = names

    @staticmethod
    def are_in(path: Path) -> bool:
        """Whether a path leads to an archive, or to a folder of zips."""
        return bool(_zips(path)) or (path.suffix.lower() == ".npz" and path.is_file())

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """The split and the index in it."""
        return f"{self.split} {index}"

    def __getitem__(self, index: int) -> Sample:
        return Sample(Image.fromarray(self.pixels[index]), self.name(index), int(self.labels[index]))


def write_archive(path: str | Path, splits: Mapping[str, Source]) -> Path:
    """Pack pictures so that :class:`CompactArchive` gives them back bit by bit, with their labels and classes.

    Args:
        path: the ``.zip`` to write; what was there is replaced once the new one is whole.
        splits: pictures for ``"train"``, ``"test"`` or both: square, of one size, labelled, and of the same classes.
    """
    path = Path(path)
    if path.suffix.lower() != ".zip" or not splits:
        raise ValueError(f"{len(splits)} splits to {path}: needs at least one, and a name ending in .zip")
    classes = _shared_classes(splits)
    side = next(iter(splits.values()))[0].image.width
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        _add(archive, "classes.txt", "".join(f"{name}\n" for name in classes).encode())
        for split, source in splits.items():
            start = 0
            for number, (rows, columns) in enumerate(_grids(len(source), side), 1):
                indices = range(start, start + rows * columns)
                pixels, labels = _stacked(source, indices, side, len(classes))
                mosaic = pixels.reshape(rows, columns, side, side, 3).swapaxes(1, 2).reshape(rows * side, -1, 3)
                image = io.BytesIO()
                Image.fromarray(mosaic).save(image, "WEBP", lossless=True)
                _add(archive, f"{split}_{number}.webp", image.getvalue())
                _add(archive, f"{split}_{number}.labels", labels.tobytes())
                start = indices.stop
    return write_whole(path, content.getvalue())


# reading


class _Mosaic(NamedTuple):
    """Where a mosaic and its labels lie."""

    archive: Path
    image: str
    labels: str


_Read = tuple[np.ndarray, np.ndarray, list[str]]


def _zips(path: Path) -> list[Path]:
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix.lower() == ".zip" and not file.name.startswith(".")]
        return sorted(files, key=lambda file: natural_order(file.name))
    return [path] if path.suffix.lower() == ".zip" and path.is_file() else []


def _read_mosaics(path: Path, split: str) -> _Read:
    zips = _zips(path)
    if not zips:
        raise FileNotFoundError(f"{path} is no archive: needs a .zip, a folder of them, or an .npz")
    mosaics: dict[str, _Mosaic] = {}
    names: list[str] | None = None
    for file in zips:
        found, said = _contents(file)
        for name, mosaic in found.items():
            if name in mosaics:
                raise ValueError(f"{mosaics[name].archive} and {file} both have {name}: needs each once")
            mosaics[name] = mosaic
        if None not in (names, said) and names != said:
            raise ValueError(f"{file} has other classes than {zips[0]}: needs the same classes.txt in both")
        names = names or said
    if names is None:
        raise ValueError(f"{path} has no classes.txt: needs one, with a name per line")
    wanted = [name for name in sorted(mosaics, key=natural_order) if _split_of(name) == split]
    if not wanted:
        raise ValueError(
            f"{path} has no {split} mosaics: needs names starting with test or val for test, others for train"
        )
    parts = [_tiles(mosaics[name]) for name in wanted]
    sides = {pixels.shape[1] for pixels, _ in parts}
    if len(sides) > 1:
        raise ValueError(f"{path} has tiles of {', '.join(map(str, sorted(sides)))} pixels: needs one size")
    labels = np.concatenate([labels for _, labels in parts])
    if labels.max() >= len(names):
        raise ValueError(f"{path} has labels up to {labels.max()}: needs 0 to {len(names) - 1}, as in classes.txt")
    return np.concatenate([pixels for pixels, _ in parts]), labels, names


def _split_of(name: str) -> str:
    return "test" if PurePosixPath(name).name.startswith(("test", "val")) else "train"


def _contents(file: Path) -> tuple[dict[str, _Mosaic], list[str] | None]:
    images: dict[str, str] = {}
    labels: dict[str, str] = {}
    names = None
    with _unzipped(file) as archive:
        for member in map(PurePosixPath, archive.namelist()):
            if member.name.startswith("."):  # notes of a file system's
                continue
            name, ending = str(member.with_suffix("")), member.suffix.lower()
            kind = {".labels": labels, ".webp": images, ".png": images}.get(ending)
            if member.name == "classes.txt":
                names = class_names(archive.read(str(member)).decode("utf-8-sig"))
            elif kind is not None:
                if name in kind:
                    raise ValueError(f"{file} has {kind[name]} and {member}: needs one for each name")
                kind[name] = str(member)
    if alone := sorted(images.keys() ^ labels.keys()):
        raise ValueError(f"{file} has only half of {alone[0]}: needs NAME.webp or NAME.png with NAME.labels")
    if not images:
        raise ValueError(f"{file} has no mosaics: needs NAME.webp or NAME.png with NAME.labels")
    return {name: _Mosaic(file, image, labels[name]) for name, image in images.items()}, names


def _tiles(mosaic: _Mosaic) -> tuple[np.ndarray, np.ndarray]:
    where = f"{mosaic.archive}/{mosaic.image}"
    with _unzipped(mosaic.archive) as archive:
        image, labels = decoded(archive.read(mosaic.image), where), archive.read(mosaic.labels)
    for kind in ("<u1", "<u2"):  # never both: one tile would be of twice the area of the other, and both sides whole
        count = len(labels) // np.dtype(kind).itemsize
        side = isqrt(image.width * image.height // max(count, 1))
        columns, rows = image.width // max(side, 1), image.height // max(side, 1)
        if rows * columns == count and (columns * side, rows * side) == image.size:
            tiles = np.asarray(image).reshape(rows, side, columns, side, 3).swapaxes(1, 2)
            return tiles.reshape(-1, side, side, 3), np.frombuffer(labels, kind, count).astype(np.int64)
    raise ValueError(
        f"{where} has {image.width} x {image.height} pixels for {len(labels)} bytes of labels: "
        "needs as many square tiles as labels, of one byte or two"
    )


@contextmanager
def _unzipped(file: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    # what zipfile and Pillow raise for damaged, encrypted or unknown content; our own words pass
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, SyntaxError, OSError) as error:
        raise ValueError(f"{file} cannot be read as a zip of mosaics ({error}): copy it again") from error


def _read_arrays(path: Path, split: str) -> _Read:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: needs an .npz with x_train, y_train, x_test, y_test")
    wanted = (f"x_{split}", f"y_{split}")
    try:
        # opened here: numpy leaves a damaged file open
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in {*wanted, "y_train", "y_test"}.intersection(arrays)}
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"{path} is not a whole npz file of plain arrays ({error}): save it with np.savez") from error
    if missing := set(wanted) - found.keys():
        raise ValueError(f"{path} has no {', '.join(sorted(missing))}: needs {' and '.join(wanted)}")
    pixels, labels = found[wanted[0]], found[wanted[1]].reshape(-1)
    if pixels.ndim != 4 or pixels.shape[1] != pixels.shape[2] or pixels.shape[3] != 3 or pixels.dtype != np.uint8:
        raise ValueError(
            f"{path} has {wanted[0]} of shape {pixels.shape} and type {pixels.dtype}: needs [N, S, S, 3] of uint8, "
            "grey images with their grey in all three colours"
        )
    if not len(labels) == len(pixels) > 0 or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise ValueError(
            f"{path} has {len(labels)} labels of type {labels.dtype} for {len(pixels)} images: "
            "needs a whole number, 0 or more, for each"
        )
    # of both splits, so that their classes are the same
    highest = max(int(each.max(initial=0)) for name, each in found.items() if name.startswith("y_"))
    return pixels, labels.astype(np.int64), [str(label) for label in range(highest + 1)]


# writing


def _shared_classes(splits: Mapping[str, Source]) -> list[str]:
    classes: list[str] | None = None
    for split, source in splits.items():
        check_split(split)
        if not len(source) or source.classes is None:
            raise ValueError(f"{source.title} has {len(source)} pictures and no classes: needs both")
        if classes not in (None, source.classes):
            raise ValueError(f"{source.title} has other classes than the split before: needs the same in all")
        classes = source.classes
    assert classes is not None
    if class_names("".join(f"{name}\n" for name in classes)) != classes or len(classes) > 2**16:
        raise ValueError(f"{len(classes)} classes as {classes[0]!r}: needs at most 65536, each name on one line")
    return classes


def _grids(count: int, side: int) -> Iterator[tuple[int, int]]:
    """Rows and columns of mosaics that hold so many tiles and not one more."""
    most = min(isqrt(_MOST_TILES), _LONGEST_SIDE // side, isqrt(_MOST_PIXELS) // side)
    if not most:
        raise ValueError(f"pictures of {side} pixels a side: needs at most {isqrt(_MOST_PIXELS)}")
    while count:
        columns = min(most, count)
        rows = min(most, count // columns)
        yield rows, columns
        count -= rows * columns


def _stacked(source: Source, indices: range, side: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.empty((len(indices), side, side, 3), np.uint8)
    labels = np.empty(len(indices), "<u1" if classes <= 2**8 else "<u2")
    for at, index in enumerate(indices):
        picture = source[index]
        if picture.image.size != (side, side):
            size = f"{picture.image.width} x {picture.image.height}"
            raise ValueError(f"{picture.name} has {size} pixels: needs {side} x {side}, as the first picture")
        if picture.target is None or not 0 <= picture.target < classes:
            raise ValueError(f"{picture.name} has the label {picture.target}: needs 0 to {classes - 1}")
        pixels[at], labels[at] = np.asarray(picture.image.convert("RGB")), picture.target
    return pixels, labels


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name), data)  # without the time of day: the same pictures give the same file
