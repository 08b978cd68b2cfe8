"""What classification and segmentation do differently: how images are read, shown to the model, and counted."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...data import Prepared, Source, Unreadable, open_data
from ...data.prefetch import at_margins, read_prepared
from ...data.segmentation import UnknownLayout, open_scenes
from ...data.source import WithoutTargets
from ..metrics.aggregate import LabelTally, PixelTally, Tally
from ..models.eval_model import EvalModel
from ..options import EvalOptions, on_gpu
from ..protocols.registry import ShiftProtocol
from .classify import canvas_margins, measure
from .records import LabelAnswers, Record
from .segment import NOT_NUMBERS, check_dense, measure_segmentation, read_scenes


@dataclass
class Task:
    """A model, the data, and what is asked; here one answer for each image, see :class:`Segmentation` for pixels."""

    model: EvalModel
    source: Source
    protocols: list[ShiftProtocol]
    options: EvalOptions
    shifts: Mapping[str, int | None]  # how many of each protocol, by its name; every shift for None

    name = "classification"

    @property
    def batch_size(self) -> int:
        """The only one that the model takes, or the one asked for."""
        return self.model.batch_size or self.options.batch_size_for(self.model.dense)

    @property
    def labelled(self) -> bool:
        """Whether targets can be compared with the model's answers: only where the classes are the same."""
        classes = self.source.classes
        return classes is not None and len(classes) == self.model.num_classes

    def tally(self, protocol: ShiftProtocol) -> Tally:
        """The metrics of a protocol."""
        return LabelTally(protocol, self.labelled, class_numbers(self.model, self.source))

    def describe(self, protocol: ShiftProtocol) -> str:
        """A protocol in words; without a size where it differs from image to image."""
        return protocol.describe(None if self.model.dense else self.model.preparation.size)

    def reading(self) -> Hashable:
        """Tasks with equal keys can share one reading of the images, with masks for all or for none."""
        return self.model.preparation, self.model.dense and self.labelled

    def read(self, indices: Sequence[int]) -> Iterator[Prepared | Unreadable]:
        """The images, prepared."""
        preparation, options = self.model.preparation, self.options
        prepare = partial(at_margins, preparation, sorted(set(canvas_margins(self.protocols, preparation).values())))
        return read_prepared(self.source, indices, prepare, options.workers, for_gpu=on_gpu(options.device))

    def measure(self, images: Iterable[Prepared | Unreadable]) -> Iterator[Record | Unreadable]:
        """The answers to what :meth:`read` gave, in order."""
        model, options = self.model, self.options
        how = (self.shifts, options.seed, self.batch_size, options.device)
        return measure(model.forward, images, self.protocols, model.preparation, *how)


class Segmentation(Task):
    """A label for each pixel."""

    name = "segmentation"

    def __post_init__(self) -> None:
        check_dense(self.protocols, self.options.shifts)
        if self.model.num_classes is None:
            raise ValueError(f"{self.model.name} does not say how many classes it has: needs num_classes")

    @property
    def labelled(self) -> bool:
        """Whether masks can be compared with the model's labels; refused where only the order of classes differs."""
        model, numbers = self.model, class_numbers(self.model, self.source)
        if numbers is not None and model.classes is not None and numbers != sorted(numbers):
            at = next(place for place, number in enumerate(numbers) if number != place)
            raise ValueError(
                f"{self.source.title} and {model.name} have the same classes in another order (class {at} is "
                f"{model.classes[numbers[at]]} to the data, {model.classes[at]} to the model): needs masks with the "
                "model's numbers"
            )
        return self.source.classes is None or super().labelled

    def tally(self, protocol: ShiftProtocol) -> Tally:
        """The metrics of a protocol."""
        return PixelTally(protocol, self.model.num_classes or 0)

    def read(self, indices: Sequence[int]) -> Iterator[Prepared | Unreadable]:
        """The images, each at its own size."""
        model, workers = self.model, self.options.workers
        return read_scenes(self.source, indices, model.preparation, self.protocols, self.labelled, workers)

    def measure(self, images: Iterable[Prepared | Unreadable]) -> Iterator[Record | Unreadable]:
        """The answers to each image."""
        model, options = self.model, self.options
        how = (self.protocols, model.preparation, options.shifts, options.seed, self.batch_size, options.device)
        return measure_segmentation(model.forward, images, *how, fixed_batch=model.batch_size is not None)


def task_of(
    model: EvalModel,
    source: Source,
    protocols: list[ShiftProtocol],
    options: EvalOptions,
    shifts: Mapping[str, int | None],
) -> Task:
    """The task of a model; refused where the model and the protocols do not belong together."""
    if wrong := ", ".join(protocol.name for protocol in protocols if protocol.dense != model.dense):
        raise ValueError(
            f"{model.name} is a segmentation model, and {wrong} compares one answer per image: needs ade20k-circular, "
            "ade20k-standard, or the suites ade20k and pixel-motion"
            if model.dense
            else f"{model.name} gives one answer per image, and {wrong} is for segmentation: needs a segmentation "
            "model, or protocols such as circular"
        )
    return (Segmentation if model.dense else Task)(model, source, protocols, options, shifts)


def problem_of(record: Record | Unreadable) -> str | None:
    """Why a record cannot be counted, if it cannot."""
    if isinstance(record, Unreadable):
        return record.reason
    labels = [each.labels for each in record.answers.values() if isinstance(each, LabelAnswers)]
    return None if all((each >= 0).all() for each in labels) else NOT_NUMBERS


def class_numbers(model: EvalModel, source: Source) -> list[int] | None:
    """The model's number of each class of the data; None where names do not match, and numbers must be the same."""
    theirs, ours = source.classes or [], model.classes or []
    if len(set(ours)) < len(ours) or sorted(theirs) != sorted(ours) or not ours:
        return None
    return [ours.index(name) for name in theirs]


def bundled_data(model: EvalModel) -> str:
    """The images in the package that suit a model's input: small ones up to 64 pixels, photographs above."""
    side = model.preparation.scale[1] if model.dense else max(model.preparation.size)
    return "sample" if side <= 64 else "sample-photos"


def open_source(where: str | Path, split: str = "test", dense: bool = False) -> Source:
    """Data for a model: images, or for a segmentation model images with masks if the folder has them."""
    if not dense:
        return open_data(where, split)
    if not Path(where).is_dir() or where in ("sample", "sample-photos"):
        return WithoutTargets(open_data(where, split))
    try:
        return open_scenes(where, split)
    except UnknownLayout as error:
        unknown = error
    try:
        return WithoutTargets(open_data(where, split))
    except ValueError as error:
        raise ValueError(f"{unknown}; nor are there images without masks ({error})") from error
