"""From a picture to the pixels that a segmentation network is shown: all of it, at a size that keeps its ratio."""

from dataclasses import dataclass, field, fields
from typing import Any

from jaxtyping import UInt8
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from ..ops.geometry.shift import Pair
from .prepare import Colours, pixels_of

FITS = ("resize", "pad")


@dataclass(frozen=True)
class ScenePreparation(Colours):
    """How a segmentation network wants its pictures.

    Args:
        scale: the longest side at most, and the shortest: a picture is resized to the largest size within both that
            keeps its ratio, as mmsegmentation does.
        multiple: of rows and of columns, that the network needs.
        fit: ``"resize"``: each side goes on to the next multiple, so that the picture fills its frame and may be
            shifted circularly (the paper's way for those shifts); ``"pad"``: the size stays as it is, and the picture
            is padded where it is shown (for ordinary shifts).
    """

    scale: Pair = (2048, 512)
    multiple: Pair = (1, 1)
    fit: str = "resize"
    mean: tuple[float, ...] = field(default=IMAGENET_DEFAULT_MEAN)
    std: tuple[float, ...] = field(default=IMAGENET_DEFAULT_STD)
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if not self.scale[0] >= self.scale[1] >= 1 or min(self.multiple) < 1:
            raise ValueError(
                f"scale {self.scale}, multiple {self.multiple}: needs the longest side first, and positive numbers"
            )
        if self.fit not in FITS:
            raise ValueError(f"fit {self.fit!r}: needs one of {', '.join(FITS)}")
        self.check_colours()

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "ScenePreparation":
        """From what :meth:`to_dict` gave, also once it was JSON; what it does not say stays at the default."""
        known = [each.name for each in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"a preparation with {', '.join(unknown)}: needs only {', '.join(known)}")
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """As lists, numbers and words, for a configuration file."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    def kept_ratio(self, height: int, width: int, factor: float = 1.0) -> Pair:
        """Height and width at ``factor`` times the scale, with the ratio kept but for whole pixels."""
        longest, shortest = self.scale
        grow = factor * min(longest / max(height, width), shortest / min(height, width))
        return max(int(height * grow + 0.5), 1), max(int(width * grow + 0.5), 1)

    def scaled(self, height: int, width: int) -> Pair:
        """Height and width that a picture is resized to."""
        rows, columns = self.kept_ratio(height, width)
        if self.fit == "resize":
            rows, columns = rows + -rows % self.multiple[0], columns + -columns % self.multiple[1]
        return rows, columns

    def framed(self, picture: Image.Image) -> Image.Image:
        """The picture at that size. Resized once: what keeps the ratio is only reckoned with."""
        height, width = self.scaled(picture.height, picture.width)
        return picture if (width, height) == picture.size else picture.resize((width, height), self.filter)

    def canvas(self, picture: Image.Image) -> UInt8[Tensor, "3 H W"]:
        """The pixels of :meth:`framed`."""
        return pixels_of(self.framed(picture))
