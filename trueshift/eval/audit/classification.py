"""How often does a classifier change its answer when the picture moves? Everything its report shows, as data."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...data import Preparation, Prepared, Sample, Source, Unreadable, read_ahead
from ..metrics.aggregate import ClassTally, Tally, agreement, compared, is_answered
from ..models.eval_model import Subject
from ..protocols.registry import Protocol, find_protocols
from ..runner.records import ImageRecord
from ..runner.scales import canvas_groups, measure_groups
from ..runner.settings import AuditSettings, Progress, on_gpu
from ..runner.tasks import check_protocols, class_numbers, classes_agree
from ..runner.view_batches import margin_of
from .examples import choose_examples
from .shift_plane import changes_of_tokens, plane_of_answers

CIRCULAR = "circular"


@dataclass
class _Findings:
    """What has been found out about one model so far."""

    subject: Subject
    tallies: list[Tally]
    classes: ClassTally
    consistency: dict[int, float] = field(default_factory=dict)  # of each image
    worst: list[dict[str, Any]] = field(default_factory=list)
    planes: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)


def usual_protocols(source: Source, size: tuple[int, int]) -> list[Protocol]:
    """Circular and standard shifts and magnitudes; small pictures move against zeros, others under a crop."""
    (cropped,) = find_protocols(["imagenet-standard"])
    needed = max(size) + 2 * max(cropped.motion.margin(size))
    small = any(min(picture.image.size) < needed for picture in _first_pictures(source))
    return find_protocols([CIRCULAR, "cifar-standard" if small else cropped.name, "magnitude"])


def _first_pictures(source: Source, count: int = 8) -> Iterator[Sample]:
    for index in range(min(len(source), count)):
        with suppress(Exception):  # it is counted and reported when it is measured
            yield source[index]


def shifts_of(protocols: list[Protocol], shifts: int) -> dict[str, int | None]:
    """How many shifts each protocol gets: those of the magnitude curve share one portion."""
    several = sum(protocol.against_unshifted for protocol in protocols)
    return {
        protocol.name: (max(1, shifts // several) if protocol.against_unshifted else shifts) if shifts else None
        for protocol in protocols
    }


class PictureAudit:
    """Measures classifiers on the same pictures and shifts, as far as it gets.

    Args:
        skipped: to which pictures are added that could not be measured.
    """

    task = "classification"

    def __init__(
        self,
        subjects: list[Subject],
        source: Source,
        protocols: list[Protocol],
        settings: AuditSettings,
        skipped: list[dict[str, str]],
    ) -> None:
        for subject in subjects:
            check_protocols(subject, protocols)
        self.source, self.protocols, self.settings, self.skipped = source, protocols, settings, skipped
        self.size = subjects[0].preparation.size
        self.findings = [self._start(subject) for subject in subjects]

    def _start(self, subject: Subject) -> _Findings:
        labelled, numbers = classes_agree(subject, self.source), class_numbers(subject, self.source)
        tallies = [Tally(protocol, labelled, numbers) for protocol in self.protocols]
        return _Findings(subject, tallies, ClassTally(self.protocols[0], labelled, numbers))

    @property
    def images(self) -> int:
        """How many were measured."""
        return self.findings[0].tallies[0].images

    def describe(self, protocol: Protocol) -> str:
        """A protocol in words."""
        return protocol.describe(self.size)

    def measure(self, indices: list[int], progress: Progress) -> None:
        """All models side by side, an image at a time, so that an interrupt finds them equally far."""
        for done, records in enumerate(zip(*self._streams(indices), strict=True)):
            problem = _problem(records)
            if problem:
                self.skipped.append({"name": records[0].name, "reason": problem})
            else:
                for finding, record in zip(self.findings, records, strict=True):
                    if isinstance(record, ImageRecord):
                        self._count(finding, record)
            progress("shifting images", done + 1, len(indices))

    def _streams(self, indices: list[int]) -> list[Iterator[ImageRecord | Unreadable]]:
        """The records of each model. Models that want their pictures alike share one reading of them."""

        def read(preparation: Preparation, group: list[Protocol]) -> Iterator[Prepared | Unreadable]:
            margin = margin_of(group, preparation.size)
            return read_ahead(self.source, indices, preparation, margin, for_gpu=on_gpu(self.settings.device))

        first = self.findings[0].subject.preparation
        alike = [finding.subject.preparation == first for finding in self.findings]
        shared = zip(
            *(itertools.tee(read(first, group), sum(alike)) for group in canvas_groups(self.protocols, first)),
            strict=True,
        )
        streams = []
        for finding, same in zip(self.findings, alike, strict=True):
            subject = finding.subject
            groups = canvas_groups(self.protocols, subject.preparation)
            pictures = next(shared) if same else [read(subject.preparation, group) for group in groups]
            streams.append(
                measure_groups(
                    subject.forward,
                    pictures,
                    groups,
                    subject.preparation,
                    shifts_of(self.protocols, self.settings.shifts),
                    self.settings.seed,
                    subject.batch_size or self.settings.batch_size,
                    self.settings.device,
                )
            )
        return streams

    def _count(self, finding: _Findings, record: ImageRecord) -> None:
        for tally in finding.tallies:
            tally.add(record)
        finding.classes.add(record)
        protocol = finding.tallies[0].protocol
        answers = record.answers[protocol.name]
        agreed = agreement(answers, protocol)
        finding.consistency[record.index] = agreed
        if agreed == 1:
            return
        views = compared(protocol)
        labels, counts = np.unique(answers.labels[views], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        usual, other = labels[order[0]], labels[order[1]]
        finding.worst.append(
            {
                "index": record.index,
                "name": record.name,
                "label": record.label,
                "consistency": agreed,
                "largest_logit_change": float(answers.change.max()),
                "answers": [
                    {"label": int(label), "shift": answers.shifts[views][answers.labels[views] == label][0].tolist()}
                    for label in (usual, other)
                ],
                "different_answers": len(labels),
            }
        )
        finding.worst.sort(key=lambda entry: (entry["consistency"], -entry["largest_logit_change"], entry["index"]))
        del finding.worst[self.settings.worst :]

    def look_closer(self, progress: Progress) -> None:
        """Answers over the plane of shifts and changes of tokens, for a few images."""
        settings, source = self.settings, self.source
        examples = choose_examples(self.findings[0].consistency, settings.examples)
        work = [(index, finding) for index in examples for finding in self.findings]
        for done, (index, finding) in enumerate(work):
            if settings.plane:
                batch_size = finding.subject.batch_size or settings.batch_size
                finding.planes.append(
                    plane_of_answers(finding.subject, source, index, settings.plane, batch_size, settings.device)
                )
            if finding.subject.maps is not None:
                finding.tokens.append(changes_of_tokens(finding.subject, source, index, settings.device))
            progress("looking at examples", done + 1, len(work))

    def conclude(self) -> list[dict[str, Any]]:
        """What is known of each model."""
        return [self._conclude(finding) for finding in self.findings]

    def _conclude(self, finding: _Findings) -> dict[str, Any]:
        subject = finding.subject
        return {
            "name": subject.name,
            "weights": subject.weights,
            "random": subject.random,
            "assumed": subject.assumed,
            "num_classes": subject.num_classes,
            "classes": subject.classes or (self.source.classes if finding.classes.labelled else None),
            "labelled": finding.classes.labelled,
            "preparation": asdict(subject.preparation),
            "measured": {tally.protocol.name: tally.summary() for tally in finding.tallies},
            "by_class": finding.classes.summary(),
            "consistency_of_images": [[index, agreed] for index, agreed in finding.consistency.items()],
            "worst_images": finding.worst,
            "planes": finding.planes,
            "tokens": finding.tokens,
        }


def _problem(records: tuple[ImageRecord | Unreadable, ...]) -> str | None:
    for record in records:
        if isinstance(record, Unreadable):
            return record.reason
        if not is_answered(record):
            return "the model's logits are not numbers (NaN)"
    return None
