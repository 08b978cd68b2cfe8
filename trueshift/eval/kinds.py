"""What an evaluation does with its images: one answer for each, or one for each of their pixels."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from ..data import ImageSource, Unreadable, read_ahead
from ..data.scene_preparation import ScenePreparation
from ..data.scenes import SceneSource
from .journal import Record
from .measure import measure
from .protocols import Protocol
from .scene_reading import read_scenes
from .scene_tally import SceneTally
from .segmentation import check_dense, measure_segmentation
from .settings import EvalSettings, on_gpu
from .subject import Subject
from .tally import Tally
from .views import margin_of


@dataclass
class Classification:
    """One answer for each picture."""

    subject: Subject
    source: ImageSource
    protocols: list[Protocol]
    settings: EvalSettings
    name = "classification"

    def tallies(self) -> list[Tally]:
        """One for each protocol."""
        return [Tally(protocol, classes_agree(self.subject, self.source)) for protocol in self.protocols]

    def records(self, indices: Sequence[int]) -> Iterator[Record | Unreadable]:
        """The answers to some of the pictures, in order."""
        subject, settings = self.subject, self.settings
        wanted = subject.preparation
        margin = margin_of(self.protocols, wanted.size)
        pictures = read_ahead(self.source, indices, wanted, margin, settings.workers, for_gpu=on_gpu(settings.device))
        numbers = {protocol.name: self._shifts(protocol) for protocol in self.protocols}
        size = subject.batch_size or settings.batch_size
        return measure(subject.forward, pictures, self.protocols, wanted, numbers, settings.seed, size, settings.device)

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
    source: SceneSource
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
        masks = self.source.classes is None or classes_agree(subject, self.source)
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
    subject: Subject, source: ImageSource | SceneSource, protocols: list[Protocol], settings: EvalSettings
) -> Classification | Segmentation:
    """What is to be done; refused where the model, the data and the protocols do not belong together."""
    check_protocols(subject, protocols)
    if subject.dense:
        return Segmentation(subject, cast(SceneSource, source), protocols, settings)
    return Classification(subject, cast(ImageSource, source), protocols, settings)


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


def classes_agree(subject: Subject, source: ImageSource | SceneSource) -> bool:
    """Whether right and wrong can be told: only where the model's classes are those of the data."""
    return source.classes is not None and len(source.classes) == subject.num_classes


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
