"""How many pixels change their label when the picture moves? Everything a report on segmentation shows, as data."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...data import Unreadable
from ...data.source import Source
from ...data.transforms import ScenePreparation
from ..metrics.aggregate_dense import SceneTally
from ..models.eval_model import Subject
from ..protocols.registry import Protocol
from ..runner.read_scenes import PreparedScene, read_scenes
from ..runner.records import PixelAnswers, SceneRecord
from ..runner.segment import check_dense, measure_segmentation
from ..runner.settings import AuditSettings, Progress
from ..runner.tasks import check_protocols, classes_of, masks_agree, scenes_of
from .examples import choose_examples
from .label_flips import flip_map


@dataclass
class _Findings:
    """What has been found out about one model so far."""

    subject: Subject
    tallies: list[SceneTally]
    labelled: bool
    answers: dict[int, PixelAnswers] = field(default_factory=dict)  # to each image, under the first protocol
    worst: list[dict[str, Any]] = field(default_factory=list)
    flips: list[dict[str, Any]] = field(default_factory=list)


class SceneAudit:
    """Measures segmentation models on the same scenes and shifts, as far as it gets.

    Args:
        skipped: to which scenes are added that could not be measured.
    """

    task = "segmentation"

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
        check_dense(protocols, settings.shifts)
        self.source, self.protocols, self.settings, self.skipped = source, protocols, settings, skipped
        self.findings = [
            _Findings(
                subject,
                [SceneTally(protocol, classes_of(subject)) for protocol in protocols],
                masks_agree(subject, source),
            )
            for subject in subjects
        ]

    @property
    def images(self) -> int:
        """How many were measured."""
        return self.findings[0].tallies[0].images

    def describe(self, protocol: Protocol) -> str:
        """A protocol in words; sizes differ from scene to scene."""
        return protocol.describe(None)

    def measure(self, indices: list[int], progress: Progress) -> None:
        """All models side by side, a scene at a time, so that an interrupt finds them equally far."""
        for done, records in enumerate(zip(*self._streams(indices), strict=True)):
            unread = [record for record in records if isinstance(record, Unreadable)]
            if unread:
                self.skipped.append({"name": unread[0].name, "reason": unread[0].reason})
            for finding, record in zip(self.findings, records, strict=True):
                if not unread and isinstance(record, SceneRecord):
                    self._count(finding, record)
            progress("shifting images", done + 1, len(indices))

    def _streams(self, indices: list[int]) -> list[Iterator[SceneRecord | Unreadable]]:
        """The records of each model. Models that want their pictures alike share one reading of them."""
        wanted = [(scenes_of(finding.subject), finding.labelled) for finding in self.findings]
        read: dict[tuple[ScenePreparation, bool], Iterator[Iterator[PreparedScene | Unreadable]]] = {
            each: iter(
                itertools.tee(read_scenes(self.source, indices, each[0], self.protocols, each[1]), wanted.count(each))
            )
            for each in dict.fromkeys(wanted)
        }
        settings = self.settings
        return [
            measure_segmentation(
                finding.subject.forward,
                next(read[each]),
                self.protocols,
                each[0],
                settings.shifts,
                settings.seed,
                finding.subject.batch_size or settings.batch_size,
                settings.device,
                fixed_batch=finding.subject.batch_size is not None,
            )
            for finding, each in zip(self.findings, wanted, strict=True)
        ]

    def _count(self, finding: _Findings, record: SceneRecord) -> None:
        for tally in finding.tallies:
            tally.add(record)
        said = record.pixels[self.protocols[0].name]
        finding.answers[record.index] = said
        if said.agreement == 1:
            return
        finding.worst.append(
            {
                "index": record.index,
                "name": record.name,
                "consistency": said.agreement,
                "shift": _turning_shift(said),
                "flipped": float(said.flipped.max()),
                "largest_logit_change": float(said.change.max()),
            }
        )
        finding.worst.sort(key=lambda entry: (entry["consistency"], -entry["largest_logit_change"], entry["index"]))
        del finding.worst[self.settings.worst :]

    def look_closer(self, progress: Progress) -> None:
        """Maps of labels that flip, for a few images: those on which any model is least consistent come first."""
        least = {
            index: min(finding.answers[index].agreement for finding in self.findings)
            for index in self.findings[0].answers
        }
        examples = choose_examples(least, self.settings.examples)
        work = [(index, finding) for index in examples for finding in self.findings]
        for done, (index, finding) in enumerate(work):
            # the shift that turns most pixels over in any model is shown of all that see the image at that size
            said = max((each.answers[index] for each in self.findings), key=lambda answers: answers.flipped.max())
            mine = finding.answers[index]
            shift = _turning_shift(said if said.size == mine.size else mine)
            finding.flips.append(
                flip_map(finding.subject, self.source, index, self.protocols[0], shift, self.settings.device)
            )
            progress("looking at examples", done + 1, len(work))

    def conclude(self) -> list[dict[str, Any]]:
        """What is known of each model."""
        return [self._conclude(finding) for finding in self.findings]

    def _conclude(self, finding: _Findings) -> dict[str, Any]:
        subject = finding.subject
        own = self.source.classes if self.source.classes and finding.labelled else None
        return {
            "name": subject.name,
            "weights": subject.weights,
            "random": subject.random,
            "assumed": subject.assumed,
            "num_classes": subject.num_classes,
            "classes": subject.classes or own,
            "labelled": finding.labelled,
            "preparation": scenes_of(subject).to_dict(),
            "measured": {tally.protocol.name: tally.summary() for tally in finding.tallies},
            "consistency_of_images": [[index, said.agreement] for index, said in finding.answers.items()],
            "worst_images": finding.worst,
            "flips": finding.flips,
        }


def _turning_shift(said: PixelAnswers) -> list[int]:
    """The shift that turns over the labels of most pixels."""
    return said.shifts[int(said.flipped.argmax())].tolist()
