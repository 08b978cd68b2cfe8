"""Tar shards named as WebDataset names them, each picture a seek away."""

import io
import json
import os
import re
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path

import numpy as np

from ..utils.files import write_whole
from .images import EXTENSIONS, decoded
from .packed import Shard, class_names, find_shards, numbered_classes, shards_of
from .source import Sample

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_MOST_CLASSES = 10**6  # a label beyond is damage, and names for so many would fill the memory
_FORMAT = 1  # of the stored index


class TarShards:
    """Pictures in uncompressed tar files: ``KEY.jpg`` with its class in ``KEY.cls`` or ``KEY.json``.

    The headers are read once; what they say is kept in ``$TRUESHIFT_CACHE`` or ``~/.cache/trueshift``. From then on
    each picture is read by itself, in any order.

    Args:
        path: the folder with the shards. ``classes.txt`` in it names the classes, one per line.
        split: ``"test"`` or ``"train"``: the word has to stand in a shard's name, or be that of a folder inside
            ``path``; ``val`` and ``validation`` pass for ``test`` where that is not there.
    """

    def __init__(self, path: str | Path, split: str = "test") -> None:
        folder = Path(path)
        for ending in _COMPRESSED:
            if packed := find_shards(folder, ending):
                raise ValueError(f"{packed[0]} is compressed, so that no picture in it can be sought: unpack it first")
        word, files = next(iter(shards_of(folder, ".tar", split).items()))
        self.title = f"{folder.resolve().name} {word}"
        self.split = split
        self.shards = [Shard.now(file) for file in files]
        self._names = [file.relative_to(folder).as_posix() for file in files]
        self._index = _stored_index(self.shards)
        self.labels = self._index.label  # -1 where there is none
        if not len(self.labels):
            raise ValueError(f"{folder} has no images in its shards: needs names ending in {', '.join(EXTENSIONS)}")
        self.classes: list[str] | None = _classes(folder, self.labels)

    @staticmethod
    def are_in(path: Path) -> bool:
        """Whether a folder holds tar files; with compressed ones it does, and opening it tells what to do."""
        return any(find_shards(path, ending) for ending in (".tar", *_COMPRESSED))

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """The shard, and the name inside it."""
        return f"{self._names[self._index.shard[index]]}/{self._index.name[index].decode()}"

    def __getitem__(self, index: int) -> Sample:
        where, name = self._index, self.name(index)
        data = self.shards[where.shard[index]].read(int(where.offset[index]), int(where.size[index]))
        label = int(self.labels[index])
        return Sample(decoded(data, name), name, label if label >= 0 else None)


@dataclass(frozen=True)
class _Index:
    """One row for each picture."""

    shard: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    label: np.ndarray
    name: np.ndarray  # as bytes: a list of strings would be copied, object by object, into every worker

    def packed(self) -> bytes:
        file = io.BytesIO()
        np.savez_compressed(file, **vars(self))
        return file.getvalue()

    @classmethod
    def unpacked(cls, data: bytes) -> "_Index":
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(**arrays)

    @classmethod
    def joined(cls, parts: Sequence["_Index"]) -> "_Index":
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))


def _stored_index(shards: Sequence[Shard]) -> _Index:
    with suppress(Exception):  # not there, not readable or damaged in any way: it can be made again
        return _Index.unpacked(_cache_file(shards).read_bytes())
    index = _Index.joined([_read_headers(number, shard.path) for number, shard in enumerate(shards)])
    with suppress(OSError, RuntimeError):  # a full disk, a user without a home: costs time, nothing else
        file = _cache_file(shards)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, index.packed())
    return index


def _cache_file(shards: Sequence[Shard]) -> Path:
    root = Path(os.environ.get("TRUESHIFT_CACHE") or "~/.cache/trueshift").expanduser()
    known = json.dumps([_FORMAT, *((str(shard.path.resolve()), shard.size, shard.changed) for shard in shards)])
    return root / "shards" / f"{sha256(known.encode()).hexdigest()}.npz"


def _read_headers(number: int, path: Path) -> _Index:
    images: dict[str, tuple[int, int, str]] = {}
    labels: dict[str, dict[str, int]] = {"json": {}, "cls": {}}
    try:
        with tarfile.open(path, "r:", encoding="utf-8", errors="backslashreplace") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
                # as WebDataset has it: the key ends at the first dot behind the last slash
                parts = re.fullmatch(r"((?:.*/)?[^./]+)\.([^/]+)", member.name)
                if parts is None or not member.isfile():
                    continue
                key, ending = parts[1], parts[2].lower()
                if f".{ending}" in EXTENSIONS:
                    if key in images:
                        raise ValueError(f"{path} has {images[key][2]} and {member.name}: needs one image for each key")
                    images[key] = member.offset_data, member.size, member.name
                elif ending in labels and (content := archive.extractfile(member)):
                    labels[ending][key] = _label(content.read(), ending, f"{path}/{member.name}")
            _check_end(archive)
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path} is not a whole, uncompressed tar file ({error}): copy it again") from error
    if alone := labels["cls"].keys() - images.keys():
        raise ValueError(f"{path} has {min(alone)}.cls and no image of that key: needs one of {', '.join(EXTENSIONS)}")
    known = labels["json"] | labels["cls"]
    return _Index(
        np.full(len(images), number, np.int64),
        np.array([offset for offset, _, _ in images.values()], np.int64),
        np.array([size for _, size, _ in images.values()], np.int64),
        np.array([known.get(key, -1) for key in images], np.int64),
        np.array([name.encode() for _, _, name in images.values()], np.bytes_),
    )


def _check_end(archive: tarfile.TarFile) -> None:
    """Refuse all but a block of zeros behind the last member: tarfile takes a damaged header for the end as well."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"its end is missing at byte {archive.offset}")


def _label(data: bytes, ending: str, where: str) -> int:
    label: object = None
    with suppress(ValueError, AttributeError):  # told below
        if ending == "cls":
            label = int(data.decode("ascii"))
        else:
            said = json.loads(data)
            label = said.get("label", said.get("cls", -1))
    if type(label) is not int or not -1 <= label < _MOST_CLASSES:
        wanted = {"cls": "3", "json": '{"label": 3}'}[ending]
        raise ValueError(f"{where} holds {data[:40]!r}: needs the number of a class, as in {wanted}")
    return label


def _classes(folder: Path, labels: np.ndarray) -> list[str] | None:
    file = folder / "classes.txt"
    if not file.is_file():
        return numbered_classes(labels)
    names = class_names(file.read_text("utf-8-sig"))
    if labels.max() >= len(names):
        raise ValueError(f"{folder} has labels up to {labels.max()}: needs 0 to {len(names) - 1}, as in {file.name}")
    return names
