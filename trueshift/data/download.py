"""Fetch the data sets that anyone may fetch."""

import errno
import hashlib
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ..utils.files import writable_folder

Report = Callable[[int, int], None]
_PIECE = 2**18
_PATIENCE = 30.0  # seconds without a byte


@dataclass(frozen=True)
class Remote:
    """A data set in one compressed tar file.

    Args:
        folder: what it unpacks to.
        files: what has to be in there.
    """

    url: str
    md5: str
    folder: str
    files: tuple[str, ...]


SOURCES: Mapping[str, Remote] = {
    "cifar10": Remote(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    ),
    "cifar100": Remote(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
        ("train", "test", "meta"),
    ),
}
_BY_AGREEMENT = {
    "imagenet": "agree to its terms at https://image-net.org, and lay it out as train/CLASS/*.JPEG and "
    "val/CLASS/*.JPEG, or as .tar or .parquet shards",
    "ade20k": "agree to its terms at https://ade20k.csail.mit.edu, and lay it out as images/training/*.jpg with "
    "annotations/training/*.png, and the same for validation",
}


def download(
    name: str, folder: str | Path, report: Report | None = None, sources: Mapping[str, Remote] = SOURCES
) -> Path:
    """Fetch a data set and unpack it, unless it is there already; the folder with its files comes back.

    It goes on where an interrupted download stopped. For one process at a time.

    Args:
        name: ``"cifar10"`` or ``"cifar100"``.
        folder: where to put it.
        report: is told how many bytes are there, and of how many, which is 0 where the server does not say.
        sources: what each name stands for.
    """
    if name in _BY_AGREEMENT:
        raise ValueError(f"{name} is not to be fetched by a program: {_BY_AGREEMENT[name]}")
    if name not in sources:
        raise ValueError(f"data set {name!r}: needs one of {', '.join(sources)}")
    remote, folder = sources[name], Path(folder)
    target = folder / remote.folder
    missing = [file for file in remote.files if not (target / file).is_file()]
    if not missing:
        return target
    if target.exists():
        raise FileExistsError(f"{target} has no {', '.join(missing)}: remove the folder, and it is fetched anew")
    archive = writable_folder(folder) / remote.url.rsplit("/", 1)[-1]
    if archive.is_file():  # put there by hand, and not ours to remove
        if (found := _md5(archive)) != remote.md5:
            raise ValueError(f"{archive} has the MD5 {found}: needs {remote.md5}, copy it again")
        _unpack(archive, remote, folder)
        return target
    part = archive.with_name(f"{archive.name}.part")
    # a whole one is there if only the unpacking failed
    if not (part.is_file() and _md5(part) == remote.md5):
        _fetch(remote.url, part, report)
        if (found := _md5(part)) != remote.md5:
            part.unlink()
            raise ValueError(f"{remote.url} gave a file with the MD5 {found}: needs {remote.md5}; removed, try again")
    _unpack(part, remote, folder)
    part.unlink()
    return target


def _fetch(url: str, part: Path, report: Report | None) -> None:
    """The rest of a file, or all of it from a server that gives no parts."""
    done = part.stat().st_size if part.exists() else 0
    with _over_the_network(url, part):
        answer = _asked(url, done)
    with answer:
        if not (answer.headers.get("Content-Range") or "").startswith(f"bytes {done}-"):
            done = 0
        length = int(answer.headers.get("Content-Length") or 0)
        total = done + length if length else 0
        # without a buffer, whose content a full disk would refuse only when the file is closed
        with part.open("ab" if done else "wb", buffering=0) as file:
            while True:
                with _over_the_network(url, part):
                    piece = answer.read(_PIECE)
                    if not piece and done < total:
                        raise ConnectionError(f"it ended after {done} of {total} bytes")
                if not piece:
                    return
                with _on_disk(part):
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[file.write(rest) :]
                done += len(piece)
                if report is not None:
                    report(done, total)


def _asked(url: str, start: int) -> Any:
    try:
        return urlopen(Request(url, headers={"Range": f"bytes={start}-"} if start else {}), timeout=_PATIENCE)
    except HTTPError as error:
        error.close()
        if start and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # what is there is longer than the file
            return _asked(url, 0)
        raise


def _unpack(archive: Path, remote: Remote, folder: Path) -> None:
    draft = Path(tempfile.mkdtemp(dir=folder, prefix=f".{remote.folder}-"))
    try:
        with _on_disk(archive), tarfile.open(archive) as packed:
            _write_files(packed, draft, archive)
        if missing := [file for file in remote.files if not (draft / remote.folder / file).is_file()]:
            raise ValueError(f"{archive} has no {remote.folder}/{missing[0]}: needs all of {', '.join(remote.files)}")
        os.rename(draft / remote.folder, folder / remote.folder)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive} is not a whole compressed tar file ({error}): remove it and try again") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_files(packed: tarfile.TarFile, folder: Path, archive: Path) -> None:
    """The plain files in an archive, none outside of the folder; tarfile's own filter is not in every Python 3.11."""
    for member in packed:
        path = PurePosixPath(normpath(member.name))
        if path.is_absolute() or path.parts[0] == "..":
            raise ValueError(f"{archive} would write where it must not ({path}): needs paths inside its folder")
        content = packed.extractfile(member) if member.isfile() else None
        if content is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with content, (folder / path).open("wb") as file:
                shutil.copyfileobj(content, file)


def _md5(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextmanager
def _over_the_network(url: str, part: Path) -> Iterator[None]:
    try:
        yield
    except (HTTPException, OSError) as error:
        raise OSError(
            f"{url} cannot be fetched ({error}): try again, which goes on from what is there, "
            f"or put the file at {part.with_suffix('')} by hand"
        ) from error


@contextmanager
def _on_disk(part: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = f"the disk is full: make room in {part.parent} and try again; what was fetched is kept in {part.name}"
        raise OSError(error.errno, text) from error
