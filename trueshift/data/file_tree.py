"""The files below a folder or in a zip, by their names: what reads one reads the other."""

import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath

from .packed import Shard, natural_order

_OPEN_ZIPS = 8


@dataclass(frozen=True)
class FileTree:
    """Names of files, with slashes, and their contents. Small enough to travel to other processes; nothing stays open.

    Args:
        path: the folder, or the zip.
        names: of all files, in their natural order, from ``inside`` on.
        inside: the folder in it that names start from, ending in a slash, or nothing.
        archive: the zip as it was when it was looked into; None for a folder.
    """

    path: Path
    names: tuple[str, ...]
    inside: str = ""
    archive: Shard | None = None

    @classmethod
    def at(cls, path: str | Path) -> "FileTree":
        """The files of a folder or a zip. Hidden ones, and the notes of file systems, are left out."""
        path = Path(path)
        if path.is_dir():
            names = [
                Path(folder, file).relative_to(path).as_posix()
                for folder, _, files in os.walk(path, followlinks=True)
                for file in files
            ]
            archive = None
        elif path.suffix.lower() == ".zip" and path.is_file():
            archive = Shard.now(path)
            names = [entry.filename for entry in _opened(archive, os.getpid()).infolist() if not entry.is_dir()]
        else:
            raise FileNotFoundError(f"{path} is not there: needs a folder or a .zip")
        seen = [name for name in names if not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))]
        return cls(path, tuple(sorted(seen, key=natural_order)), "", archive)

    def roots(self) -> Iterator["FileTree"]:
        """The tree itself, then what is in its only folder, and so on: archives often wrap all in one."""
        tree = self
        yield tree
        while True:
            tops = {name.partition("/")[0] for name in tree.names if "/" in name}
            if len(tops) != 1:
                return
            tree = tree.below(tops.pop())
            yield tree

    def below(self, folder: str) -> "FileTree":
        """The files in a folder, named from there on."""
        start = folder + "/"
        names = tuple(name.removeprefix(start) for name in self.names if name.startswith(start))
        return replace(self, names=names, inside=self.inside + start)

    def folders(self, inside: str = "") -> set[str]:
        """Names of the folders directly inside one, or at the top, that hold files."""
        start = f"{inside}/" if inside else ""
        return {
            name.removeprefix(start).partition("/")[0]
            for name in self.names
            if name.startswith(start) and "/" in name.removeprefix(start)
        }

    def where(self, name: str) -> str:
        """A file as an error message names it."""
        return str(self.path / PurePosixPath(self.inside + name))

    def read(self, name: str) -> bytes:
        """The content of a file."""
        if self.archive is None:
            return (self.path / (self.inside + name)).read_bytes()
        try:
            return _opened(self.archive, os.getpid()).read(self.inside + name)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            raise ValueError(f"{self.where(name)} cannot be read from its zip ({error}): copy it again") from error


# by process: a position in the file that a fork had inherited would move under both
@lru_cache(maxsize=_OPEN_ZIPS)
def _opened(archive: Shard, process: int) -> zipfile.ZipFile:
    archive.check()
    try:
        return zipfile.ZipFile(archive.path)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{archive.path} is not a whole zip ({error}): copy it again") from error
