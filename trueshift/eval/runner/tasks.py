"""What an evaluation does with its images: one answer for each, or one for each of their pixels."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...data import Source, Unreadable, read_ahead
from ...data.transforms import ScenePreparation
from ..metrics.aggregate import Tally
from ..metrics.aggregate_dense import SceneTally
from ..models.eval_model import Subject
from ..protocols.registry import Protocol
from .read_scenes import read_scenes
from .resume import Record
from .scales import canvas_groups, measure_groups
from .segment import check_dense, measure_segmentation
from .settings import EvalSettings, on_gpu
from .view_batches import margin_of


@dataclass
class Classification:
    """One answer for each picture."""

    subject: Subject
    source: Source
    protocols: list[Protocol]
    settings: EvalSettings
    name = "classification"

    def tallies(self) -> list[Tally]:
        """One for each protocol."""
        labelled, numbers = classes_agree(self.subject, self.source), class_numbers(self.subject, self.source)
        return [Tally(protocol, labelled, numbers) for protocol in self.protocols]

    def records(self, indices: Sequence[int]) -> Iterator[Record | Unreadable]:
        """The answers to some of the pictures, in order."""
        subject, settings = self.subject, self.settings
        wanted = subject.preparation
        groups, for_gpu = canvas_groups(self.protocols, wanted), on_gpu(settings.device)
        pictures = [
            read_ahead(self.source, indices, wanted, margin_of(group, wanted.size), settings.workers, for_gpu=for_gpu)
            for group in groups
        ]
        numbers = {protocol.name: self._shifts(protocol) for protocol in self.protocols}
        size = subject.batch_size or settings.batch_size
        return measure_groups(subject.forward, pictures, groups, wanted, numbers, settings.seed, size, settings.device)

    def _shifts(self, protocol: Protocol) -> int | None:
        if not self.settings.shifts:
            return None
        return self.settings.shifts - 1 if protocol.against_unshifted else self.settings.shifts

    def describe(self, protocol: Protocol) -> str:
        """A protocol in words."""
        return protocol.describe(self.subject.preparation.size)

    def preparation(self) -> dict[str, Any]:
        """How pictures are prepared."""
        return asdict(self.subject.preparation)


@dataclass
class Segmentation:
    """A label for each pixel."""

    subject: Subject
    source: Source
    protocols: list[Protocol]
    settings: EvalSettings
    name = "segmentation"

    def __post_init__(self) -> None:
        check_dense(self.protocols, self.settings.shifts)

    def tallies(self) -> list[SceneTally]:
        """One for each protocol."""
        return [SceneTally(protocol, classes_of(self.subject)) for protocol in self.protocols]

    def records(self, indices: Sequence[int]) -> Iterator[Record | Unreadable]:
        """The answers to some of the scenes, in order."""
        subject, settings, wanted = self.subject, self.settings, scenes_of(self.subject)
        masks = masks_agree(subject, self.source)
        scenes = read_scenes(self.source, indices, wanted, self.protocols, masks, settings.workers)
        return measure_segmentation(
            subject.forward,
            scenes,
            self.protocols,
            wanted,
            settings.shifts,
            settings.seed,
            subject.batch_size or settings.batch_size,
            settings.device,
            fixed_batch=subject.batch_size is not None,
        )

    def describe(self, protocol: Protocol) -> str:
        """A protocol in words; sizes differ from scene to scene."""
        return protocol.describe(None)

    def preparation(self) -> dict[str, Any]:
        """How pictures are prepared."""
        return scenes_of(self.subject).to_dict()


def task_of(
    subject: Subject, source: Source, protocols: list[Protocol], settings: EvalSettings
) -> Classification | Segmentation:
    """What is to be done; refused where the model, the data and the protocols do not belong together."""
    check_protocols(subject, protocols)
    if subject.dense:
        return Segmentation(subject, source, protocols, settings)
    return Classification(subject, source, protocols, settings)


def check_protocols(subject: Subject, protocols: list[Protocol]) -> None:
    """A segmentation model needs protocols for pixels, any other model those for whole images."""
    wrong = [protocol.name for protocol in protocols if protocol.dense != subject.dense]
    if wrong and len(wrong) < len(protocols):
        raise ValueError(
            f"protocols for pixels and for whole images in one ({', '.join(protocol.name for protocol in protocols)}): "
            f"needs only those for {'segmentation, e.g. ade20k' if subject.dense else 'one answer per image'}"
        )
    if wrong and subject.dense:
        raise ValueError(
            f"{subject.name} is a segmentation model, and {', '.join(wrong)} compares one answer per image: needs "
            "ade20k-circular, ade20k-standard, or the suite ade20k"
        )
    if wrong:
        raise ValueError(
            f"{subject.name} gives one answer per image, and {', '.join(wrong)} is for segmentation: needs a "
            "segmentation model, or protocols such as circular"
        )


def classes_agree(subject: Subject, source: Source) -> bool:
    """Whether right and wrong can be told: only where the model's classes are those of the data."""
    return source.classes is not None and len(source.classes) == subject.num_classes


def class_numbers(subject: Subject, source: Source) -> list[int] | None:
    """The model's number of each class of the data; None where their names do not tell, and numbers must be alike."""
    theirs, ours = source.classes or [], subject.classes or []
    if len(set(ours)) < len(ours) or sorted(theirs) != sorted(ours) or not ours:
        return None
    return [ours.index(name) for name in theirs]


def masks_agree(subject: Subject, source: Source) -> bool:
    """Whether masks can be compared with the model's labels; refused where only the order of classes differs."""
    numbers = class_numbers(subject, source)
    if numbers is not None and subject.classes is not None and numbers != sorted(numbers):
        at = next(place for place, number in enumerate(numbers) if number != place)
        raise ValueError(
            f"{source.title} and {subject.name} have the same classes in another order (class {at} is "
            f"{subject.classes[numbers[at]]} to the data, {subject.classes[at]} to the model): needs masks with the "
            "model's numbers"
        )
    return source.classes is None or classes_agree(subject, source)


def scenes_of(subject: Subject) -> ScenePreparation:
    """How a segmentation model wants its pictures."""
    if subject.scenes is None:
        raise ValueError(f"{subject.name} does not say how it wants its pictures: needs a ScenePreparation")
    return subject.scenes


def classes_of(subject: Subject) -> int:
    """How many labels a pixel can get."""
    if subject.num_classes is None:
        raise ValueError(f"{subject.name} does not say how many classes it has: needs num_classes")
    return subject.num_classes
