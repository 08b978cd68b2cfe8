"""Label the pixels of picture files, and write what was found beside each other: a label file and an overlay."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor

from .data import Unreadable
from .data.images import EXTENSIONS, decoded, image_files
from .data.transforms import ScenePreparation
from .eval.models.eval_model import Subject
from .eval.runner.segment import labels_at
from .ops.geometry.shift import Pair
from .report.masks import mask_png, overlay, shares
from .tasks.inference import segment_sliding
from .utils.files import write_whole

_MASK, _OVERLAY = "{}_mask.png", "{}_overlay.png"
_TOLD = 4  # classes in a line


@dataclass(frozen=True)
class Sliding:
    """Windows that slide over a picture, in place of the whole of it."""

    window: Pair
    stride: Pair


@dataclass(frozen=True)
class Segmented:
    """What was found in a picture.

    Args:
        shares: names of classes, with the part of the pixels that each has; the largest first.
    """

    name: str
    size: Pair
    shares: list[tuple[str, float]]

    def told(self) -> str:
        """The largest classes in a line."""
        largest = ", ".join(f"{name} {share:.1%}" for name, share in self.shares[:_TOLD])
        more = f" and {len(self.shares) - _TOLD} more" if len(self.shares) > _TOLD else ""
        return f"{self.name} ({self.size[0]} x {self.size[1]}): {largest}{more}"


@dataclass(frozen=True)
class PixelLabels:
    """From a picture to the class of each of its own pixels.

    Args:
        subject: a model that labels pixels.
        sliding: show it windows; otherwise the whole picture.
    """

    subject: Subject
    device: str = "cpu"
    sliding: Sliding | None = None

    def __post_init__(self) -> None:
        if not self.subject.dense:
            raise ValueError(
                f"{self.subject.name} gives one answer per picture: needs a segmentation model, such as a folder "
                "written by UperNet.save_pretrained"
            )

    @property
    def preparation(self) -> ScenePreparation:
        """How the model wants its pictures."""
        return self.subject.scenes or ScenePreparation()

    @property
    def names(self) -> list[str]:
        """What its classes are called."""
        return self.subject.classes or [f"class {label}" for label in range(self.subject.num_classes or 2**16)]

    def __call__(self, picture: Image.Image) -> Int[np.ndarray, "H W"]:
        """The class with the largest logit, at the size of the picture itself."""
        pixels = self.preparation.canvas(picture).to(self.device)
        with torch.inference_mode():
            images = self.preparation.normaliser(self.device)(pixels)[None]
            labels = labels_at(self._logits(images)[0], (picture.height, picture.width))
        return labels.cpu().numpy()

    def _logits(self, images: Tensor) -> Tensor:
        if self.sliding is None:
            return self.subject.forward(images)
        return segment_sliding(_AnySize(self.subject), images, self.sliding.window, self.sliding.stride)


@dataclass(frozen=True)
class _AnySize:
    """A subject, which takes images of any size by itself."""

    subject: Subject
    size_multiple: Pair = (1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        return self.subject.forward(images)


def usual_sliding(subject: Subject, window: Pair | None = None, stride: Pair | None = None) -> Sliding:
    """Windows as asked for; by default the crop of the training, or a square of the shortest side, by two thirds."""
    config = getattr(subject.module, "pretrained_cfg", None) or {}
    side = (subject.scenes or ScenePreparation()).scale[1]
    high, wide = window or config.get("crop") or (side, side)
    down, across = stride or (max(high * 2 // 3, 1), max(wide * 2 // 3, 1))
    if not (1 <= down <= high and 1 <= across <= wide):
        raise ValueError(
            f"windows of {high} x {wide} every {down} x {across} pixels: needs strides from 1 to the window's size"
        )
    return Sliding((high, wide), (down, across))


def find_pictures(given: Sequence[str | Path], output: Path) -> dict[str, Path]:
    """Image files, and those below folders, by what their results will be called.

    What lies in the folder of the results is no picture to label: it may be from the last time.
    """
    found: dict[str, Path] = {}
    for place in map(Path, given):
        if place.is_dir():
            files = [file for file in sorted(image_files(place)) if not file.resolve().is_relative_to(output.resolve())]
            if not files:
                raise ValueError(f"{place} has no pictures: needs files ending in {', '.join(EXTENSIONS)}")
            named = {file: "_".join(file.relative_to(place).with_suffix("").parts) for file in files}
        elif place.is_file():
            named = {place: place.stem}
        else:
            raise FileNotFoundError(f"there is no picture at {place}: needs a picture or a folder of them")
        for file, name in named.items():
            if name in found and found[name].resolve() != file.resolve():
                raise ValueError(
                    f"{found[name]} and {file} would both become {_MASK.format(name)}: needs different names, or "
                    "another --output for one of them"
                )
            found[name] = file
    return found


def check_free(names: Sequence[str] | Mapping[str, Path], output: Path) -> None:
    """Refuse to write over files: they may be someone's own labels."""
    for name in names:
        for path in (output / _MASK.format(name), output / _OVERLAY.format(name)):
            if path.exists():
                raise FileExistsError(f"{path} is there already: needs --overwrite, or another --output")


def segment_files(pictures: Mapping[str, Path], model: PixelLabels, output: Path) -> Iterator[Segmented | Unreadable]:
    """Label pictures one after the other; those that cannot be read are told, and the others done."""
    for index, (name, path) in enumerate(pictures.items()):
        try:
            picture = decoded(path.read_bytes(), str(path))
        except Exception as error:  # decoders raise many kinds; whichever it is, the others can go on
            yield Unreadable(index, str(path), str(error) or type(error).__name__)
            continue
        labels = model(picture)
        names = model.names
        write_whole(output / _MASK.format(name), mask_png(labels, len(names)))
        file = io.BytesIO()
        overlay(picture, labels, names).save(file, "PNG")
        write_whole(output / _OVERLAY.format(name), file.getvalue())
        found = [(names[label], share) for label, share in shares(labels)]
        yield Segmented(str(path), (picture.height, picture.width), found)
