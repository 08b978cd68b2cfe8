"""What an audit collects about one model, whatever its task."""

from dataclasses import dataclass, field
from typing import Any

from ..runner.evaluate import model_facts
from ..runner.records import Record
from ..runner.tasks import Task


@dataclass
class Findings:
    """What is known about one model so far; subclasses add the details of their task."""

    task: Task
    consistency: dict[int, float] = field(default_factory=dict)  # of each image, under the first protocol
    worst: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, list[Any]] = field(default_factory=dict)  # of a few images, by kind

    def __post_init__(self) -> None:
        self.protocol = self.task.protocols[0]
        self.tallies = [self.task.tally(protocol) for protocol in self.task.protocols]

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
        """How far the answers to one image agree, 0 to 1."""
        raise NotImplementedError

    def worst_entry(self, record: Record) -> dict[str, Any]:
        """What is shown of one of the least consistent images."""
        raise NotImplementedError

    def look_closer(self, index: int, everyone: list[Any]) -> None:
        """Add details of one image; ``everyone`` are the findings about all models."""
        raise NotImplementedError

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
            **self.details,
        }
