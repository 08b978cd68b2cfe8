"""What an audit finds about a classifier: worst images, the answer at every shift of a plane, changes of tokens."""

from typing import Any

import numpy as np

from ...data import read_ahead
from ..metrics.aggregate import agreement, compared, model_label
from ..models.feature_maps import token_errors
from ..protocols.registry import ShiftProtocol
from ..protocols.shifts import Neighbourhood
from ..runner.classify import measure
from ..runner.evaluate import model_facts
from ..runner.records import Record
from ..runner.tasks import Task, class_numbers


class ClassifierFindings:
    """What is known about one model so far; see :class:`~.segmentation.SegmenterFindings` for labels of pixels."""

    def __init__(self, task: Task) -> None:
        self.task, self.protocol = task, task.protocols[0]
        self.tallies = [task.tally(protocol) for protocol in task.protocols]
        self.consistency: dict[int, float] = {}  # of each image, under the first protocol
        self.worst: list[dict[str, Any]] = []
        self.planes: list[dict[str, Any]] = []
        self.tokens: list[dict[str, Any]] = []
        self.by_class: dict[int, np.ndarray] = {}  # images, agreement, right
        self.numbers = class_numbers(task.model, task.source)

    def count(self, record: Record, worst: int) -> None:
        """Add one image; keep the ``worst`` least consistent ones."""
        for tally in self.tallies:
            tally.add(record)
        agreed = self.consistency[record.index] = self.agreement(record)
        if agreed == 1:
            return
        entry = {"index": record.index, "name": record.name, "consistency": agreed}
        self.worst.append({**entry, **self.worst_entry(record)})
        self.worst.sort(key=lambda entry: (entry["consistency"], -entry["largest_logit_change"], entry["index"]))
        del self.worst[worst:]

    def agreement(self, record: Record) -> float:
        """How far the answers to one image agree, 0 to 1; it counts for its class, too."""
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

    def look_closer(self, index: int, plane: int, everyone: list[Any]) -> None:
        """Add details of one image, ``plane`` shifts along a side; ``everyone`` are the findings about all models."""
        if plane:
            self.planes.append(self._answers_around(index, plane))
        if self.task.model.maps is not None:
            model, sample = self.task.model, self.task.source[index]
            canvas = model.preparation.canvas(sample.image).to(self.task.options.device)
            stages = [
                {"error": np.round(stage.error, 6).tolist(), "scale": stage.scale, "largest": stage.largest}
                for stage in token_errors(self.task.model.maps, model.preparation.normalise(canvas))
            ]
            self.tokens.append({"index": index, "name": sample.name, "shift": [1, 1], "stages": stages})

    def _answers_around(self, index: int, side: int) -> dict[str, Any]:
        """The answer under every shift of a square around zero, one pixel apart."""
        protocol = ShiftProtocol("plane", "plane of shifts", Neighbourhood(side=side))
        forward, preparation = self.task.model.forward, self.task.model.preparation
        rows, columns = protocol.motion.steps(preparation.size)
        images = read_ahead(self.task.source, [index], preparation)
        how = ({"plane": None}, 0, self.task.batch_size, self.task.options.device)
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

    def details(self) -> dict[str, Any]:
        """Those of a few images, by kind, and one row per class of the data that occurs."""
        rows = [
            {
                "label": label,
                "images": int(images),
                "consistency": agreed / images,
                "top1": right / images if self.task.labelled else None,
            }
            for label, (images, agreed, right) in sorted(self.by_class.items())
        ]
        return {"planes": self.planes, "tokens": self.tokens, "by_class": rows}

    def to_dict(self) -> dict[str, Any]:
        """The findings as plain data."""
        task = self.task
        return {
            **model_facts(task.model),
            "classes": task.model.classes or (task.source.classes if task.labelled else None),
            "labelled": task.labelled,
            "measured": {tally.protocol.name: tally.summary() for tally in self.tallies},
            "consistency_of_images": [[index, agreed] for index, agreed in self.consistency.items()],
            "worst_images": self.worst,
            **self.details(),
        }
