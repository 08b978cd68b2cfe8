"""UperNet: a label for every pixel, on any backbone of ours; truly shift-equivariant on an adaptive one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..models.backbone import Backbone
from ..models.config import PLACES
from ..models.hub import BUILDERS
from ..ops.geometry.grid import TokenGrid
from ..ops.geometry.interpolate import enlarge, enlarge_from
from ..ops.geometry.periodic import repeated
from ..ops.geometry.shift import IMAGE_DIMS, circular_shift
from .dense import DenseModel, own_config, without_classifier
from .pyramid import BINS, ConvNormRelu, UperNetDecoder

ARCHITECTURE = "upernet"  # in config.json
_HALF = (torch.bfloat16, torch.float16)
_CHUNKS = 8  # of the classes, where logits are moved at full resolution


@dataclass(frozen=True)
class UperNetConfig:
    """Arguments of the decoder.

    Args:
        channels: of the decoder.
        bins: parts along each side over which the coarsest features are averaged.
        auxiliary: a second, simple head on the last stage but one, which helps to train and is not used afterwards.
        auxiliary_channels: of that head.
        auxiliary_weight: of its loss.
        drop_rate: of whole channels, in front of both classifiers.
        head_align_corners: enlarge the logits with corners aligned, as segmentation_models_pytorch does; the ordinary
            network only, since a circle has no corners.
    """

    num_classes: int
    channels: int = 512
    bins: Sequence[int] = BINS
    auxiliary: bool = True
    auxiliary_channels: int = 256
    auxiliary_weight: float = 0.4
    drop_rate: float = 0.1
    head_align_corners: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", tuple(self.bins))  # a configuration file has lists
        for name in ("num_classes", "channels", "auxiliary_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: needs at least 1")
        if not self.bins or min(self.bins) < 1:
            raise ValueError(f"bins {self.bins}: needs positive numbers, e.g. {BINS}")


class UperNet(DenseModel):
    """A backbone, the pyramid decoder, and a classifier for pixels.

    Shift law: ``net(S x) == S net(x)``, bit for bit, on an anchored backbone, as adaptive ones are, and in evaluation
    mode; on one with ``circular="width"`` for shifts of columns. On another ordinary backbone it is the ordinary
    UperNet, with its weights' usual names. In a compiled or captured graph the law holds up to a period of the image,
    where it has one (:mod:`trueshift.ops.geometry.periodic`).

    Args:
        backbone: the name of one of ours, or a :class:`~trueshift.models.backbone.Backbone`, which becomes part of
            this network and loses its classifier and last norm.
        num_classes: answers for each pixel.
        pretrained: start from published weights of the backbone.
        arguments: fields of :class:`UperNetConfig`, such as ``channels`` or ``auxiliary``; and, with a name, those of
            :func:`~trueshift.create_model`, such as ``img_size``, ``padding`` or ``drop_path_rate``.

    >>> net = trueshift.UperNet("a_swin_mini", num_classes=5, channels=16).eval()
    >>> image = torch.rand(1, 3, 32, 32)
    >>> torch.equal(net(image.roll((3, 1), (2, 3))), net(image).roll((3, 1), (2, 3)))
    True
    """

    architecture_name, count = ARCHITECTURE, "num_classes"
    pipeline_tag = "image-segmentation"

    def __init__(self, backbone: str | Backbone, num_classes: int, pretrained: bool = False, **arguments: Any) -> None:
        super().__init__()
        self.config, self.num_classes = own_config(UperNetConfig, num_classes, arguments), num_classes
        self.encoder = without_classifier(backbone, pretrained, arguments)
        choices = self.encoder.config
        self.adaptive = choices.adaptive(*PLACES)
        self.framed = self.adaptive or choices.anchored
        if self.adaptive and self.config.head_align_corners:
            raise ValueError("head_align_corners: a circle has no corners; needs an ordinary backbone, or False")
        stages = [info["num_chs"] for info in self.encoder.feature_info]
        channels, padding = self.config.channels, choices.padding_mode
        self.decoder = UperNetDecoder(stages, channels, padding, self.adaptive, self.config.bins, choices.fixed_rows)
        self.segmentation_head = nn.Sequential(nn.Conv2d(channels, num_classes, 1))
        self.auxiliary_head: nn.Sequential | None = None
        if self.config.auxiliary:
            self.auxiliary_head = nn.Sequential(
                ConvNormRelu(stages[-2], self.config.auxiliary_channels, 3, padding),
                nn.Dropout2d(self.config.drop_rate),
                nn.Conv2d(self.config.auxiliary_channels, num_classes, 1),
            )
        self.drop = nn.Dropout2d(self.config.drop_rate)
        for part in filter(None, (self.decoder, self.segmentation_head, self.auxiliary_head)):
            part.apply(_initialise)
        known = self.encoder.pretrained_cfg
        self.pretrained_cfg: dict[str, Any] = {key: known[key] for key in ("mean", "std") if key in known}

    def in_own_frame(self, images: Float[Tensor, "B C H W"]) -> tuple[Tensor, Tensor | None, TokenGrid]:
        """Logits ``[B, classes, h, w]`` on the finest grid of the backbone, and that grid; in between, while training,
        those of the auxiliary head on its own grid, which starts at the same pixel.

        On an anchored backbone the values do not depend on the shift of the image: it is all in ``grid.origin``.
        """
        features = self.encoder.features(images)
        fused = self.decoder(features)
        logits = self.segmentation_head(self.drop(fused.values.permute(0, 3, 1, 2)))
        if not self.training or self.auxiliary_head is None:
            return logits, None, fused.grid
        level = self.decoder.in_frame(features[-2], fused.grid)
        return logits, self.auxiliary_head(level.values.permute(0, 3, 1, 2)), fused.grid

    def forward(self, images: Float[Tensor, "B C H W"], masks: Int[Tensor, "B H W"] | None = None) -> Tensor:
        """Logits of all pixels ``[B, classes, H, W]``, in the frame of the image; with masks, the loss.

        Args:
            masks: labels of all pixels, -100 for those that do not count. The loss is the mean cross-entropy, plus
                the auxiliary head's while training. Labels are rolled to the network's frame, not logits to theirs.
        """
        repeats = self.whether_repeating(images) if masks is None else None
        logits, auxiliary, grid = self.in_own_frame(images)
        if masks is None:
            maps = self._in_image_frame(logits, grid)
            return repeated(maps, images, grid.origin, grid.fixed_rows, repeats)
        if masks.shape != (images.shape[0], *images.shape[2:]):
            given = f"masks of shape {tuple(masks.shape)} for images of {tuple(images.shape)}"
            raise ValueError(f"{given}: needs one label per pixel")
        if self.framed:
            masks = circular_shift(masks, grid.origin)
        loss = _cross_entropy(self._on_pixels(logits, grid), masks)
        if auxiliary is not None:
            loss = loss + self.config.auxiliary_weight * _cross_entropy(self._on_pixels(auxiliary, grid), masks)
        return loss

    def _on_pixels(self, maps: Float[Tensor, "B D h w"], grid: TokenGrid) -> Float[Tensor, "B D H W"]:
        """Interpolated to every pixel, still starting at the grid's own origin."""
        if self.config.head_align_corners:
            return F.interpolate(maps, grid.image_size, mode="bilinear", align_corners=True)
        return enlarge(maps.contiguous(), grid.image_size, self.decoder.circular, dims=IMAGE_DIMS)

    def _in_image_frame(self, maps: Float[Tensor, "B D h w"], grid: TokenGrid) -> Float[Tensor, "B D H W"]:
        """The same, rolled once, at full resolution, to where the pixels lie."""
        if not self.framed:
            return self._on_pixels(maps, grid)
        if maps.is_cuda and maps.dtype in _HALF:
            return enlarge_from(maps, grid.image_size, -grid.origin, self.decoder.circular)
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            return circular_shift(self._on_pixels(maps, grid), -grid.origin, IMAGE_DIMS)
        # some classes at a time: two copies of all logits at full resolution would be most of the memory
        parts = maps.split(-(-self.num_classes // _CHUNKS), 1)
        moved = maps.new_empty(len(maps), self.num_classes, *grid.image_size)
        for part, there in zip(parts, moved.split([part.shape[1] for part in parts], 1), strict=True):
            there.copy_(circular_shift(self._on_pixels(part, grid), -grid.origin, IMAGE_DIMS))
        return moved


BUILDERS[ARCHITECTURE] = UperNet.build


def _cross_entropy(logits: Float[Tensor, "B classes H W"], masks: Int[Tensor, "B H W"]) -> Float[Tensor, ""]:
    """The mean over labelled pixels; 0 where there are none."""
    total = F.cross_entropy(logits.float(), masks.long(), reduction="sum")
    return total / (masks != -100).sum().clamp_min(1)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
