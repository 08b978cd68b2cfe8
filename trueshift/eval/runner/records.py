"""What a model answered to an image, and the journal that keeps answers on disk so that a run can resume."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np

from ...ops.geometry.shift import Pair
from ...utils.files import write_whole

SCHEMA = 2  # of the journal


class Answers:
    """The answers to one image under one protocol, to and from plain data."""

    first_shifted: ClassVar[int]  # index of the first shifted view
    shifts: np.ndarray  # [views, 2]
    change: np.ndarray  # [views], the largest change of a logit from the unshifted image
    exact: np.ndarray  # [views], whether all bits of the logits are the unshifted image's

    def to_plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {key: each.tolist() if isinstance(each, np.ndarray) else each for key, each in vars(self).items()}

    @classmethod
    def from_plain(cls, read: dict[str, Any]) -> Any:
        """The inverse of :meth:`to_plain`."""
        return cls(**{key: np.array(each) if isinstance(each, list) else each for key, each in read.items()})


@dataclass
class LabelAnswers(Answers):
    """A label for each view; the first view is the unshifted image."""

    first_shifted: ClassVar[int] = 1
    shifts: np.ndarray
    labels: np.ndarray  # [views]
    change: np.ndarray
    exact: np.ndarray


@dataclass
class PixelAnswers(Answers):
    """Labels of pixels under each shift, moved back and compared; the unshifted image is not among the views."""

    first_shifted: ClassVar[int] = 0
    size: Pair  # of the network's input
    shifts: np.ndarray
    agreement: float  # pixels with one label in two views, the mean over all pairs of them
    flipped: np.ndarray  # [views], visible pixels with another label than in the unshifted image
    change: np.ndarray
    exact: np.ndarray
    counts: np.ndarray | None = None  # [classes that occur, 4]: class, pixels right, in the mask, predicted

    @classmethod
    def from_plain(cls, read: dict[str, Any]) -> Any:
        """The inverse of :meth:`to_plain`."""
        counts = None if read["counts"] is None else np.array(read["counts"], np.int64).reshape(-1, 4)
        return super().from_plain({**read, "size": tuple(read["size"]), "counts": counts})


@dataclass
class Record:
    """All answers to one image, by protocol; ``label`` is its class, where it has one."""

    index: int
    name: str
    label: int | None = None
    answers: dict[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {**vars(self), "answers": {name: each.to_plain() for name, each in self.answers.items()}}

    @classmethod
    def from_plain(cls, read: dict[str, Any]) -> "Record":
        """The inverse of :meth:`to_plain`."""
        answers = {
            name: (PixelAnswers if "agreement" in each else LabelAnswers).from_plain(each)
            for name, each in read["answers"].items()
        }
        return cls(read["index"], read["name"], read["label"], answers)


class Journal:
    """Answers on disk, a line per image, written as they come.

    Every process writes its own file and reads all of them. A line that a killed process left unfinished is dropped.
    Images that could not be read have no line: the next run tries them again.
    """

    def __init__(self, folder: Path, identity: dict[str, Any], rank: int, world: int) -> None:
        self.folder, self.identity = folder / "answers", {"schema": SCHEMA, **identity}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"process-{rank}-of-{world}.jsonl"

    def read(self) -> dict[int, Record]:
        """All answers of earlier runs, by the index of the image; refused if they are to another question."""
        known: dict[int, Record] = {}
        for path in sorted(self.folder.glob("process-*.jsonl")):
            try:
                question, answers = _lines(path)
                refused = self._compare(dict(json.loads(question)), path) if answers else None
                records = [Record.from_plain(json.loads(line)) for line in answers if not refused]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{path} is damaged ({error}): needs another --output, or that file removed"
                ) from error
            if refused:
                raise ValueError(f"{refused}: needs another --output")
            known.update((record.index, record) for record in records)
        return known

    def _compare(self, other: dict[str, Any], path: Path) -> str | None:
        """Why the answers of a file cannot be taken, if they cannot."""
        if other.get("schema") != SCHEMA:
            return f"{path} was written by another version of trueshift"
        different = [key for key, mine in self.identity.items() if other.get(key) != mine]
        changes = "; ".join(f"{key} was {other.get(key)}, is {self.identity[key]}" for key in different)
        return f"{path.parent} holds answers to another question ({changes})" if different else None

    def open(self) -> TextIO:
        """The file of this process, without a line that is incomplete; started anew if it has no answers."""
        question, answers = _lines(self.path) if self.path.exists() else ("", [])
        kept = [question, *answers] if answers else [json.dumps(self.identity)]
        write_whole(self.path, "".join(f"{line}\n" for line in kept))
        return self.path.open("a", encoding="utf-8")

    def write(self, file: TextIO, values: dict[str, Any]) -> None:
        """Add a line: the question, or the answers to one image."""
        file.write(json.dumps(values) + "\n")
        file.flush()


def _lines(path: Path) -> tuple[str, list[str]]:
    """The question and the answers, as far as their lines are complete."""
    question, *answers = path.read_text(encoding="utf-8").split("\n")
    return question, answers[:-1]
