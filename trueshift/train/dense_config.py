"""Settings of segmentation alone, and of fields alone."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class SegmentationAugmentConfig:
    """Random changes, seeded by epoch and sample: the same on any number of processes.

    Args:
        scale_range: least and largest factor of the scale that images are resized to; [1, 1] for none.
        crop: height and width of the training crop; smaller images are padded, and the padding is ignored.
        flip: how often an image is mirrored.
        max_class_share: draw another crop, up to ten times, if one class fills more of the labelled pixels.
        photometric: change brightness, contrast, saturation and hue.
    """

    scale_range: tuple[float, float] = (0.5, 2.0)
    crop: tuple[int, int] = (512, 512)
    flip: float = 0.5
    max_class_share: float = 0.75
    photometric: bool = True


@dataclass(frozen=True)
class SegmentationConfig:
    """Settings of segmentation alone.

    Args:
        scale: longest and shortest side, at most, that images are resized to, their ratio kept.
        fit: how whole images reach a size the network takes: resize (for circular shifts, as in the paper) or pad (for
            standard shifts).
        multiple: what the sides of whole images are multiples of; by default of what the network needs.
        decoder: arguments of UperNet, such as channels or auxiliary.
        augment: random changes.
    """

    scale: tuple[int, int] = (2048, 512)
    fit: Literal["resize", "pad"] = "resize"
    multiple: int | None = None
    decoder: dict[str, Any] = field(default_factory=dict)
    augment: SegmentationAugmentConfig = field(default_factory=SegmentationAugmentConfig)


@dataclass(frozen=True)
class FieldsConfig:
    """Settings of fields alone.

    Args:
        random_rolls: roll each state and the next one by a random offset: how a network whose windows lie at fixed
            places learns that the world is round; width rolls columns alone, for maps of the globe.
        decoder: arguments of FieldNet, such as residual or decoder_depth.
    """

    random_rolls: bool | Literal["width"] = False
    decoder: dict[str, Any] = field(default_factory=dict)
