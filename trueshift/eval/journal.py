"""Answers on disk: written as they come, read when the same question is asked again."""

import json
import os
from pathlib import Path
from typing import Any, TextIO

from .records import ImageRecord, SceneRecord

Record = ImageRecord | SceneRecord


class Journal:
    """Answers on disk, a line for each image, written as they come.

    Every process writes a file of its own and reads all of them. A line that a killed process left unfinished is
    dropped. Pictures that could not be read have no line: the next run tries them again.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], rank: int, world: int) -> None:
        self.folder, self.identity = folder / "answers", identity
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"process-{rank}-of-{world}.jsonl"

    def read(self) -> dict[int, Record]:
        """All answers of earlier runs, by the index of the image; refused if they are to another question."""
        known: dict[int, Record] = {}
        for path in sorted(self.folder.glob("process-*.jsonl")):
            lines = _whole_lines(path)
            if lines:
                self._compare(json.loads(lines[0]), path)
            known.update((record.index, record) for record in map(_from_line, lines[1:]))
        return known

    def _compare(self, other: dict[str, Any], path: Path) -> None:
        different = [key for key in self.identity if other.get(key) != self.identity[key]]
        if different:
            told = "; ".join(f"{key} was {other.get(key)}, is {self.identity[key]}" for key in different)
            raise ValueError(f"{path.parent} holds answers to another question ({told}): needs another --output")

    def open(self) -> TextIO:
        """The file of this process, behind its last whole line."""
        lines = _whole_lines(self.path) if self.path.exists() else []
        whole = sum(len(line.encode()) + 1 for line in lines)
        file = self.path.open("r+" if self.path.exists() else "w", encoding="utf-8")
        file.truncate(whole)
        file.seek(0, os.SEEK_END)
        if not lines:
            file.write(json.dumps(self.identity) + "\n")
            file.flush()
        return file

    def note(self, file: TextIO, record: Record) -> None:
        """Add one image."""
        file.write(json.dumps(record.to_plain()) + "\n")
        file.flush()


def _whole_lines(path: Path) -> list[str]:
    *whole, _ = path.read_text(encoding="utf-8").split("\n")
    return whole


def _from_line(line: str) -> Record:
    read = json.loads(line)
    return (SceneRecord if "pixels" in read else ImageRecord).from_plain(read)
