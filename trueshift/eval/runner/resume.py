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
            try:
                question, answers = _read(path)
                asked = dict(json.loads(question)) if answers else self.identity
                records = [_from_line(line) for line in answers]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path} is damaged ({error}): needs another --output, or that file removed"
                ) from error
            self._compare(asked, path)
            known.update((record.index, record) for record in records)
        return known

    def _compare(self, other: dict[str, Any], path: Path) -> None:
        different = [key for key in self.identity if other.get(key) != self.identity[key]]
        if different:
            told = "; ".join(f"{key} was {other.get(key)}, is {self.identity[key]}" for key in different)
            raise ValueError(f"{path.parent} holds answers to another question ({told}): needs another --output")

    def open(self) -> TextIO:
        """The file of this process, behind its last whole line; begun anew where it has no answers."""
        question, answers = _read(self.path) if self.path.exists() else ("", [])
        if not answers:
            file = self.path.open("w", encoding="utf-8")
            file.write(json.dumps(self.identity) + "\n")
            file.flush()
            return file
        file = self.path.open("r+", encoding="utf-8")
        file.truncate(sum(len(line.encode()) + 1 for line in (question, *answers)))
        file.seek(0, os.SEEK_END)
        return file

    def note(self, file: TextIO, record: Record) -> None:
        """Add one image."""
        file.write(json.dumps(record.to_plain()) + "\n")
        file.flush()


def _read(path: Path) -> tuple[str, list[str]]:
    """The question and the answers, as far as their lines are whole."""
    question, *answers = path.read_text(encoding="utf-8").split("\n")
    return question, answers[:-1]


def _from_line(line: str) -> Record:
    read = json.loads(line)
    return (SceneRecord if "pixels" in read else ImageRecord).from_plain(read)
