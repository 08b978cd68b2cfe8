"""What networks for every pixel share: a backbone of ours without its classifier, and what goes with it."""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..models.backbone import Backbone
from ..models.hub import HubModel
from ..models.registry import create_model
from ..ops.geometry.grid import TokenGrid
from ..ops.geometry.periodic import repeat_one_period
from ..ops.geometry.shift import Pair
from ..utils.async_copy import AsyncCopy


class DenseModel(HubModel):
    """A backbone, ``encoder``, and parts behind it that know nothing of its layers."""

    architecture_name: ClassVar[str]  # in config.json
    encoder: Any  # a Backbone, or what gives features as one does

    @property
    def size_multiple(self) -> Pair:
        """Height and width of the input must be multiples of these."""
        return self.encoder.size_multiple

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute activations of the backbone again in the backward pass instead of keeping them."""
        self.encoder.set_grad_checkpointing(enable)

    def no_weight_decay(self) -> set[str]:
        """Parameters that take no weight decay."""
        return {f"encoder.{name}" for name in self.encoder.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How parameters are grouped by depth: the backbone's layers, then all others."""
        inner = self.encoder.group_matcher(coarse)
        behind = "|".join(f"^{name}" for name, _ in self.named_children() if name != "encoder")
        blocks = inner["blocks"] if isinstance(inner["blocks"], list) else [(inner["blocks"], None)]
        within = [(pattern.replace("^", r"^encoder\."), order) for pattern, order in blocks]
        return {"stem": inner["stem"].replace("^", r"^encoder\."), "blocks": [*within, (behind, (99999,))]}

    @property
    def title(self) -> str:
        """With its backbone."""
        return f"{type(self).__name__} on {self.encoder.architecture}"

    @property
    def shift_law(self) -> str:
        """That of the backbone, with outputs that move."""
        return self.encoder.config.choices.shift_law.replace("stay the same", "move along")

    def own_arguments(self) -> dict[str, Any]:
        """How the parts behind the backbone were made, to make the same again."""
        raise NotImplementedError

    def hub_config(self) -> dict[str, Any]:
        """Arguments of the backbone and of what is behind it."""
        arguments, of_classifier = self.encoder.changed_arguments(), ("num_classes", "global_pool", "drop_rate")
        return {
            "architecture": self.architecture_name,
            "backbone": self.encoder.architecture,
            "backbone_args": {key: value for key, value in arguments.items() if key not in of_classifier},
            "model_args": self.own_arguments(),
            "pretrained_cfg": self.pretrained_cfg,
        }


def check_saved(config: dict[str, Any], kind: str, *more: str) -> None:
    """Refuse a ``config.json`` that does not say how the network was made."""
    missing = [key for key in ("backbone", *more, "backbone_args", "model_args") if key not in config]
    if missing:
        raise ValueError(f"the configuration of a {kind} has no {', '.join(missing)}: save the model again")


def repeated(moved: Tensor, images: Tensor, grid: TokenGrid, repeats: AsyncCopy) -> Tensor:
    """Maps of images that repeat, made to repeat as well."""
    which = repeats.numpy().nonzero()[0]
    if not len(which):
        return moved
    at = torch.from_numpy(which).to(moved.device)
    repeated = repeat_one_period(moved[at], images[at], grid.origin[at], grid.fixed_rows)
    return moved.index_copy(0, at, repeated)


def without_classifier(backbone: str | Backbone, pretrained: bool, arguments: dict[str, Any]) -> Backbone:
    """A backbone by name, or the one given, as the encoder of a dense task."""
    if isinstance(backbone, str):
        encoder = create_model(backbone, pretrained, **arguments)
    elif isinstance(backbone, Backbone):
        if pretrained or arguments:
            raise TypeError("a backbone that exists takes no arguments: needs a name, or the backbone alone")
        encoder = backbone
    else:
        raise TypeError(f"a {type(backbone).__name__} is no backbone: needs a name or one of trueshift's own models")
    encoder.reset_classifier(0, "")
    encoder.config = replace(encoder.config, num_classes=0)
    encoder.norm = nn.Identity()  # every level has a norm of its own
    return encoder
