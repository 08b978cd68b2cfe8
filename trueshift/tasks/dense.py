"""What networks for every pixel share: a backbone of ours without its classifier, and what goes with it."""

from dataclasses import asdict, fields, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from ..layers.checks import check_image
from ..models.backbone import Backbone
from ..models.config import check_one_grid
from ..models.hub import HubModel, saved_cfg
from ..models.registry import create_model
from ..ops.geometry.periodic import whether_repeating
from ..ops.geometry.shift import Pair
from ..utils.async_copy import AsyncCopy


class DenseModel(HubModel):
    """A backbone, ``encoder``, and parts after it that do not depend on its layers."""

    architecture_name: ClassVar[str]  # in config.json
    count: ClassVar[str]  # its argument that must be given beside the backbone
    config: Any  # of the parts after the backbone
    encoder: Any  # a Backbone, or what gives features as one does
    framed: bool  # its maps lie in a frame that the content chooses

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
        return self.encoder.config.shift_law.replace("stay the same", "move along")

    def own_arguments(self) -> dict[str, Any]:
        """How the parts after the backbone were made, to make the same again."""
        return {key: value for key, value in asdict(self.config).items() if key != self.count}

    def hub_config(self) -> dict[str, Any]:
        """Arguments of the backbone and of what follows it."""
        arguments, of_classifier = self.encoder.changed_arguments(), ("num_classes", "global_pool", "drop_rate")
        return {
            "architecture": self.architecture_name,
            "backbone": self.encoder.architecture,
            "backbone_args": {key: value for key, value in arguments.items() if key not in of_classifier},
            "model_args": self.own_arguments(),
            self.count: getattr(self, self.count),
            "pretrained_cfg": self.pretrained_cfg,
        }

    @classmethod
    def build(cls, config: dict[str, Any], **changes: Any) -> "DenseModel":
        """A network as its ``config.json`` describes it."""
        missing = [key for key in ("backbone", cls.count, "backbone_args", "model_args") if key not in config]
        if missing:
            raise ValueError(f"the configuration of a {cls.__name__} has no {', '.join(missing)}: save the model again")
        arguments = {**config["backbone_args"], cls.count: config[cls.count], **config["model_args"], **changes}
        if "align" in arguments:  # written before the field was renamed
            arguments["feature_frame"] = arguments.pop("align")
        model = cls(config["backbone"], **arguments)
        known = saved_cfg(config, model.num_classes) if model.num_classes else config.get("pretrained_cfg", {})
        model.pretrained_cfg = {**model.pretrained_cfg, **known}
        return model

    def whether_repeating(self, images: Tensor) -> AsyncCopy | None:
        """Asked where the frame is chosen, see :mod:`trueshift.ops.geometry.periodic`; what is no image is refused."""
        check_image(images, self.encoder.in_chans, self.size_multiple)
        return whether_repeating(images) if self.framed else None


def own_config(kind: type, count: int, arguments: dict[str, Any]) -> Any:
    """The configuration of the parts after a backbone, with its fields taken out of all arguments."""
    own = {field.name for field in fields(kind)} & arguments.keys()
    return kind(count, **{key: arguments.pop(key) for key in own})


def without_classifier(backbone: str | Backbone, pretrained: bool, arguments: dict[str, Any]) -> Backbone:
    """A backbone by name, or the one given, as the encoder of a dense task."""
    if isinstance(backbone, str):
        check_one_grid(arguments)
        encoder = create_model(backbone, pretrained, **arguments)
    elif isinstance(backbone, Backbone):
        if pretrained or arguments:
            raise TypeError("a backbone that exists takes no arguments: needs a name, or the backbone alone")
        encoder = backbone
    else:
        raise TypeError(f"a {type(backbone).__name__} is no backbone: needs a name or one of trueshift's own models")
    encoder.config = replace(encoder.config, num_classes=0, grids=1)  # a classifier may average over several
    encoder.reset_classifier(0, "")
    encoder.norm = nn.Identity()  # every level has a norm of its own
    return encoder
