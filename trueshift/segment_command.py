"""Label the pixels of image files; write a label file and an overlay for each."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image

from .data import Unreadable
from .data.images import EXTENSIONS, decoded, image_files, png_bytes
from .eval.models.eval_model import EvalModel, PixelLogits
from .eval.runner.segment import NOT_NUMBERS, labels_at
from .ops.geometry.shift import Pair
from .report.images import mask_png, overlay, shares
from .tasks.inference import segment_sliding
from .utils.files import write_whole

_MASK, _OVERLAY = "{}_mask.png", "{}_overlay.png"
_LISTED = 4  # classes in a line


@dataclass(frozen=True)
class PixelLabels:
    """From an image to the class of each of its pixels."""

    model: EvalModel
    device: str = "cpu"
    sliding: tuple[Pair, Pair] | None = None  # window and stride: show the model windows instead of the whole image

    def __post_init__(self) -> None:
        if not self.model.dense:
            raise ValueError(
                f"{self.model.name} gives one answer per image: needs a segmentation model, such as a folder "
                "written by UperNet.save_pretrained"
            )

    @property
    def names(self) -> list[str]:
        """Names of the classes."""
        return self.model.classes or [f"class {label}" for label in range(self.model.num_classes or 2**16)]

    def __call__(self, image: Image.Image) -> Int[np.ndarray, "H W"]:
        """The class with the largest logit, at the size of the image itself; an error where logits are NaN."""
        preparation, forward = self.model.preparation, self.model.forward
        with torch.inference_mode():
            images = preparation.normalise(preparation.canvas(image).to(self.device))[None]
            logits = segment_sliding(PixelLogits(forward), images, *self.sliding) if self.sliding else forward(images)
            if bool(logits.isnan().any()):
                raise FloatingPointError(NOT_NUMBERS)
            return labels_at(logits[0], (image.height, image.width)).cpu().numpy()


def usual_sliding(model: EvalModel, window: Pair | None = None, stride: Pair | None = None) -> tuple[Pair, Pair]:
    """Window and stride as asked for; by default the training's crop or a square of the shortest side, two thirds."""
    config = getattr(model.module, "pretrained_cfg", None) or {}
    side = model.preparation.scale[1]
    high, wide = window or config.get("crop") or (side, side)
    down, across = stride or (max(high * 2 // 3, 1), max(wide * 2 // 3, 1))
    if not (1 <= down <= high and 1 <= across <= wide):
        raise ValueError(
            f"windows of {high} x {wide} every {down} x {across} pixels: needs strides from 1 to the window's size"
        )
    return (high, wide), (down, across)


def find_images(given: Sequence[str | Path], output: Path) -> dict[str, Path]:
    """Image files, and those below folders, by the names of their results; earlier results are left out."""
    found: dict[str, Path] = {}
    for place in map(Path, given):
        if place.is_dir():
            below = sorted(image_files(place))
            files = [file for file in below if not file.resolve().is_relative_to(output.resolve())]
            if below and not files:
                raise ValueError(f"all images of {place} are in the output {output}: needs another --output")
            if not files:
                raise ValueError(f"{place} has no images: needs files ending in {', '.join(EXTENSIONS)}")
            named = {file: "_".join(file.relative_to(place).with_suffix("").parts) for file in files}
        elif place.is_file():
            named = {place: place.stem}
        else:
            raise FileNotFoundError(f"there is no image at {place}: needs an image or a folder of them")
        for file, name in named.items():
            if name in found and found[name].resolve() != file.resolve():
                raise ValueError(
                    f"{found[name]} and {file} would both become {_MASK.format(name)}: needs different names, or "
                    "another --output for one of them"
                )
            found[name] = file
    return found


def check_free(names: Iterable[str], output: Path) -> None:
    """Refuse to write over files: they may be someone's own labels."""
    for name in names:
        for path in (output / _MASK.format(name), output / _OVERLAY.format(name)):
            if path.exists():
                raise FileExistsError(f"{path} is there already: needs --overwrite, or another --output")


def segment_files(images: Mapping[str, Path], model: PixelLabels, output: Path) -> Iterator[str | Unreadable]:
    """Label images one after the other, and name the largest classes of each in a line.

    Those that cannot be read or have no answer are reported, and the others done.
    """
    names = model.names
    for index, (name, path) in enumerate(images.items()):
        try:
            image = decoded(path.read_bytes(), str(path))
        except Exception as error:  # decoders raise many kinds; the other images are still to be done
            yield Unreadable(index, str(path), str(error) or type(error).__name__)
            continue
        try:
            labels = model(image)
        except FloatingPointError as error:
            yield Unreadable(index, str(path), str(error))
            continue
        write_whole(output / _MASK.format(name), mask_png(labels, len(names)))
        write_whole(output / _OVERLAY.format(name), png_bytes(overlay(image, labels, names)))
        found = [f"{names[label]} {share:.1%}" for label, share in shares(labels)]
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        yield f"{path} ({image.height} x {image.width}): {', '.join(found[:_LISTED])}{more}"
