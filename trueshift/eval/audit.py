"""How often does a model change its answer when the picture moves? Everything a report shows, as plain data."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..data import ImageSource, Picture, Preparation, Prepared, Unreadable, read_ahead
from ..provenance import circumstances
from .closer import changes_of_tokens, plane_of_answers
from .measure import measure
from .protocols import Protocol, find_protocols
from .records import ImageRecord
from .settings import check_shifts, on_gpu
from .subject import Subject
from .tally import ClassTally, Tally, agreement, is_answered
from .views import margin_of

Progress = Callable[[str, int, int], None]  # what is being done, how far, of how many
SCHEMA = 1
CIRCULAR = "circular"


@dataclass(frozen=True)
class AuditSettings:
    """How much is measured.

    Args:
        limit: images at most; 0 for all.
        shifts: random shifts of each image and protocol, at least 2; 0 for every shift there is.
        examples: images whose answers are shown over the plane of shifts.
        plane: shifts along each side of that plane, one pixel apart.
        worst: images listed as the least consistent.
    """

    limit: int = 64
    shifts: int = 4
    examples: int = 4
    plane: int = 16
    worst: int = 8
    batch_size: int = 64
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_shifts(self.shifts)
        for name in ("limit", "examples", "plane", "worst"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: needs 0 or more")
        if self.batch_size < 1:
            raise ValueError(f"batch size {self.batch_size}: needs 1 or more")


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


def usual_protocols(source: ImageSource, size: tuple[int, int]) -> list[Protocol]:
    """Circular and standard shifts and magnitudes; small pictures move against zeros, others under a crop."""
    (cropped,) = find_protocols(["imagenet-standard"])
    needed = max(size) + 2 * max(cropped.motion.margin(size))
    small = any(min(picture.image.size) < needed for picture in _first_pictures(source))
    return find_protocols([CIRCULAR, "cifar-standard" if small else cropped.name, "magnitude"])


def _first_pictures(source: ImageSource, count: int = 8) -> Iterator[Picture]:
    for index in range(min(len(source), count)):
        with suppress(Exception):  # it is counted and reported when it is measured
            yield source[index]


def run_audit(
    subjects: list[Subject],
    source: ImageSource,
    settings: AuditSettings | None = None,
    protocols: list[Protocol] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure models on the same images and shifts.

    An interrupt (Ctrl-C) ends it early: what is known by then comes back, marked as partial.

    Returns:
        plain data, the content of ``audit.json``.
    """
    settings = settings or AuditSettings()
    progress = progress or (lambda what, done, total: None)
    protocols = protocols or usual_protocols(source, subjects[0].preparation.size)
    findings = [_start(subject, source, protocols) for subject in subjects]
    indices = _spread(len(source), settings.limit)
    skipped: list[dict[str, str]] = []
    examples: list[int] = []
    partial = False
    try:
        _measure_all(findings, source, indices, protocols, settings, skipped, progress)
        examples = _choose_examples(findings[0].consistency, settings.examples)
        _look_closer(findings, source, examples, settings, progress)
    except KeyboardInterrupt:
        partial = True
    measured = findings[0].tallies[0].images
    size = subjects[0].preparation.size
    return {
        "schema": SCHEMA,
        **circumstances(settings.seed),
        "partial": partial,
        "settings": {**asdict(settings), "shifts": settings.shifts or "all"},
        "data": {
            "title": source.title,
            "images": measured,
            "asked": len(indices),
            "skipped": skipped,
            "classes": source.classes,
        },
        "protocols": {
            protocol.name: {
                "title": protocol.title,
                "description": protocol.describe(size),
                "against_unshifted": protocol.against_unshifted,
            }
            for protocol in protocols
        },
        "models": [_conclude(finding, source) for finding in findings],
    }


def _start(subject: Subject, source: ImageSource, protocols: list[Protocol]) -> _Findings:
    # right and wrong can be told only where the model's classes are those of the data
    labelled = source.classes is not None and len(source.classes) == subject.num_classes
    return _Findings(subject, [Tally(protocol, labelled) for protocol in protocols], ClassTally(protocols[0], labelled))


def _spread(count: int, limit: int) -> list[int]:
    """At most ``limit`` indices, evenly spread: the first images of a folder may all be of one class."""
    if not limit or limit >= count:
        return list(range(count))
    return [index * count // limit for index in range(limit)]


def shifts_of(protocols: list[Protocol], shifts: int) -> dict[str, int | None]:
    """How many shifts each protocol gets: those of the magnitude curve share one portion."""
    several = sum(protocol.against_unshifted for protocol in protocols)
    return {
        protocol.name: (max(1, shifts // several) if protocol.against_unshifted else shifts) if shifts else None
        for protocol in protocols
    }


def _measure_all(
    findings: list[_Findings],
    source: ImageSource,
    indices: list[int],
    protocols: list[Protocol],
    settings: AuditSettings,
    skipped: list[dict[str, str]],
    progress: Progress,
) -> None:
    """All models side by side, an image at a time, so that an interrupt finds them equally far."""
    streams = _streams(findings, source, indices, protocols, settings)
    for done, records in enumerate(zip(*streams, strict=True)):
        problem = _problem(records)
        if problem:
            skipped.append({"name": records[0].name, "reason": problem})
        else:
            for finding, record in zip(findings, records, strict=True):
                if isinstance(record, ImageRecord):
                    _count(finding, record, settings.worst)
        progress("shifting images", done + 1, len(indices))


def _streams(
    findings: list[_Findings],
    source: ImageSource,
    indices: list[int],
    protocols: list[Protocol],
    settings: AuditSettings,
) -> list[Iterator[ImageRecord | Unreadable]]:
    """The records of each model. Models that want their pictures alike share one reading of them."""

    def read(preparation: Preparation) -> Iterator[Prepared | Unreadable]:
        margin = margin_of(protocols, preparation.size)
        return read_ahead(source, indices, preparation, margin, for_gpu=on_gpu(settings.device))

    first = findings[0].subject.preparation
    alike = [finding.subject.preparation == first for finding in findings]
    shared = iter(itertools.tee(read(first), sum(alike)))
    streams = []
    for finding, same in zip(findings, alike, strict=True):
        subject = finding.subject
        pictures = next(shared) if same else read(subject.preparation)
        streams.append(
            measure(
                subject.forward,
                pictures,
                protocols,
                subject.preparation,
                shifts_of(protocols, settings.shifts),
                settings.seed,
                subject.batch_size or settings.batch_size,
                settings.device,
            )
        )
    return streams


def _problem(records: tuple[ImageRecord | Unreadable, ...]) -> str | None:
    for record in records:
        if isinstance(record, Unreadable):
            return record.reason
        if not is_answered(record):
            return "the model's logits are not numbers (NaN)"
    return None


def _count(finding: _Findings, record: ImageRecord, keep: int) -> None:
    for tally in finding.tallies:
        tally.add(record)
    finding.classes.add(record)
    protocol = finding.tallies[0].protocol
    answers = record.answers[protocol.name]
    agreed = agreement(answers, protocol)
    finding.consistency[record.index] = agreed
    if agreed == 1:
        return
    labels, counts = np.unique(answers.labels[1:], return_counts=True)
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
                {"label": int(label), "shift": answers.shifts[1:][answers.labels[1:] == label][0].tolist()}
                for label in (usual, other)
            ],
            "different_answers": len(labels),
        }
    )
    finding.worst.sort(key=lambda entry: (entry["consistency"], -entry["largest_logit_change"], entry["index"]))
    del finding.worst[keep:]


def _choose_examples(consistency: dict[int, float], count: int) -> list[int]:
    """Half of them the least consistent images, half as they come."""
    worst = sorted(consistency, key=lambda index: (consistency[index], index))[: (count + 1) // 2]
    rest = [index for index in consistency if index not in worst]
    return worst + [rest[position] for position in _spread(len(rest), count - len(worst))][: count - len(worst)]


def _look_closer(
    findings: list[_Findings], source: ImageSource, examples: list[int], settings: AuditSettings, progress: Progress
) -> None:
    """Answers over the plane of shifts and changes of tokens, for a few images."""
    work = [(index, finding) for index in examples for finding in findings]
    for done, (index, finding) in enumerate(work):
        if settings.plane:
            batch_size = finding.subject.batch_size or settings.batch_size
            finding.planes.append(
                plane_of_answers(finding.subject, source, index, settings.plane, batch_size, settings.device)
            )
        if finding.subject.maps is not None:
            finding.tokens.append(changes_of_tokens(finding.subject, source, index, settings.device))
        progress("looking at examples", done + 1, len(work))


def _conclude(finding: _Findings, source: ImageSource) -> dict[str, Any]:
    subject = finding.subject
    return {
        "name": subject.name,
        "weights": subject.weights,
        "random": subject.random,
        "assumed": subject.assumed,
        "num_classes": subject.num_classes,
        "classes": subject.classes or (source.classes if finding.classes.labelled else None),
        "labelled": finding.classes.labelled,
        "preparation": asdict(subject.preparation),
        "measured": {tally.protocol.name: tally.summary() for tally in finding.tallies},
        "by_class": finding.classes.summary(),
        "consistency_of_images": [[index, agreed] for index, agreed in finding.consistency.items()],
        "worst_images": finding.worst,
        "planes": finding.planes,
        "tokens": finding.tokens,
    }


def answer_name(model: dict[str, Any], label: int) -> str:
    """What a model's answer is called."""
    names = model["classes"]
    return names[label] if names and 0 <= label < len(names) else f"class {label}"
