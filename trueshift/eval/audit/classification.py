"""Details of a classifier: its worst images, the answer at every shift of a plane, the change of tokens by stage."""

from typing import Any

import numpy as np

from ...data import read_ahead
from ..metrics.aggregate import agreement, compared, model_label
from ..models.feature_maps import token_errors
from ..options import AuditOptions
from ..protocols.registry import ShiftProtocol
from ..protocols.shifts import Neighbourhood
from ..runner.classify import measure
from ..runner.records import Record
from ..runner.tasks import Task, class_numbers
from .findings import Findings


class ClassifierFindings(Findings):
    """What an audit finds about a classifier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.numbers = class_numbers(self.task.model, self.task.source)
        self.by_class: dict[int, np.ndarray] = {}  # images, agreement, right
        self.details = {"planes": [], "tokens": []}

    def agreement(self, record: Record) -> float:
        """How far the answers to one image agree; it counts for its class, too."""
        answers = record.answers[self.protocol.name]
        agreed = agreement(answers, self.protocol)
        if record.label is not None:
            right = answers.labels[0] == model_label(record.label, self.numbers)
            row = self.by_class.setdefault(record.label, np.zeros(3))
            row += (1, agreed, right)
        return agreed

    def worst_entry(self, record: Record) -> dict[str, Any]:
        """The two most frequent answers, and shifts that give them."""
        answers, views = record.answers[self.protocol.name], compared(self.protocol)
        seen, shifts = answers.labels[views], answers.shifts[views]
        labels, counts = np.unique(seen, return_counts=True)
        frequent = labels[np.argsort(-counts, kind="stable")[:2]]
        return {
            "label": record.label,
            "largest_logit_change": float(answers.change.max()),
            "answers": [{"label": int(label), "shift": shifts[seen == label][0].tolist()} for label in frequent],
            "different_answers": len(labels),
        }

    def look_closer(self, index: int, everyone: list[Any]) -> None:
        """The plane of answers and the change of tokens for one image."""
        assert isinstance(self.task.options, AuditOptions)
        if self.task.options.plane:
            self.details["planes"].append(plane_of_answers(self.task, index, self.task.options.plane))
        if self.task.model.maps is not None:
            self.details["tokens"].append(changes_of_tokens(self.task, index))

    def to_dict(self) -> dict[str, Any]:
        """The findings as plain data, with one row per class of the data that occurs."""
        rows = [
            {
                "label": label,
                "images": int(images),
                "consistency": agreed / images,
                "top1": right / images if self.task.labelled else None,
            }
            for label, (images, agreed, right) in sorted(self.by_class.items())
        ]
        return {**super().to_dict(), "by_class": rows}


def plane_of_answers(task: Task, index: int, side: int) -> dict[str, Any]:
    """The answer under every shift of a square around zero, one pixel apart."""
    protocol = ShiftProtocol("plane", "plane of shifts", Neighbourhood(side=side))
    forward, preparation = task.model.forward, task.model.preparation
    rows, columns = protocol.motion.steps(preparation.size)
    images = read_ahead(task.source, [index], preparation)
    how = ({"plane": None}, 0, task.batch_size, task.options.device)
    (record,) = measure(forward, images, [protocol], preparation, *how)
    assert isinstance(record, Record)
    answers = record.answers["plane"]
    labels = answers.labels[1:].reshape(len(rows), len(columns))
    return {
        "index": index,
        "name": record.name,
        "label": record.label,
        "rows": [rows.start, rows.stop],
        "columns": [columns.start, columns.stop],
        "labels": labels.tolist(),
        "largest_logit_change": float(answers.change.max()),
        "bit_exact": float(answers.exact[1:].mean()),
        "different_answers": len(np.unique(labels)),
    }


def changes_of_tokens(task: Task, index: int) -> dict[str, Any]:
    """How each stage's tokens change under a shift by one row and one column."""
    model, sample = task.model, task.source[index]
    assert model.maps is not None
    canvas = model.preparation.canvas(sample.image).to(task.options.device)
    stages = [
        {"error": np.round(stage.error, 6).tolist(), "scale": stage.scale, "largest": stage.largest}
        for stage in token_errors(model.maps, model.preparation.normalise(canvas))
    ]
    return {"index": index, "name": sample.name, "shift": [1, 1], "stages": stages}
