"""What the four backbones share: timm's interface, and features that know where they stand."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from timm.models._features import FeatureGetterNet, feature_take_indices
from torch import Tensor, nn

from ..layers.tokenize import AdaptiveTokenize, check_image, check_size
from ..ops.geometry.grid import Tokens
from ..ops.geometry.shift import Pair, pair
from .config import BackboneConfig
from .feature_frame import ALIGNMENTS, LAYOUTS
from .head import Head


class Backbone(nn.Module):
    """A tokenizer and stages, each from :class:`.Tokens` to Tokens; then a norm and a classifier.

    Shift law: logits do not change, bit for bit with the anchor; features move with the image.

    ``features(x)`` gives the tokens of every stage and where they stand. The rest is timm's interface:
    ``forward_features`` stays in the network's own frame, in which a shift of the image changes nothing;
    ``forward_intermediates`` and ``features_only`` bring maps back to the frame of the image.
    """

    Config: ClassVar[type[BackboneConfig]]
    stages_name: ClassVar[str] = "stages"
    output_fmt: ClassVar[str | None] = None  # of forward_features and features_only, where timm's is not the usual one

    patch_embed: AdaptiveTokenize
    norm: nn.Module
    head: Head
    feature_info: list[dict[str, Any]]
    num_features: int
    config: BackboneConfig
    pretrained_cfg: dict[str, Any]

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.num_classes = config.num_classes
        self.in_chans = config.in_chans
        self.drop_rate = config.drop_rate
        self.grad_checkpointing = False
        self.pretrained_cfg = {}

    @property
    def stage_list(self) -> Any:
        """The stages, whatever timm calls them in this family."""
        return getattr(self, self.stages_name)

    @property
    def size_multiple(self) -> Pair:
        """Height and width of an image must be multiples of these."""
        raise NotImplementedError

    @property
    def global_pool(self) -> str:
        """How tokens are pooled for the classifier."""
        return self.head.pool

    @property
    def head_hidden_size(self) -> int:
        """Channels in front of the classifier."""
        return self.num_features

    # -- forward --------------------------------------------------------------------------------------------------

    def _stages(self, image: Tensor, last: int | None = None) -> Iterator[Tokens]:
        check_image(image, self.in_chans, self.size_multiple)
        tokens = self.tokenize(image)
        for stage in self.stage_list[:last]:
            tokens = stage(tokens)
            yield tokens

    def tokenize(self, image: Float[Tensor, "B C H W"]) -> Tokens:
        """The image as tokens."""
        return self.patch_embed(image)

    def features(self, x: Float[Tensor, "B C H W"]) -> tuple[Tokens, ...]:
        """The tokens of every stage, and where they stand.

        Shift law: ``place(features(S x)[i]) == S place(features(x)[i])``; with the anchor even the values are the
        same, and only the grids move.
        """
        return tuple(self._stages(x))

    def forward_features(self, x: Float[Tensor, "B C H W"]) -> Tensor:
        """The normed tokens of the last stage, in the network's own frame."""
        *_, tokens = self._stages(x)
        return self.finish(tokens)

    def finish(self, tokens: Tokens) -> Tensor:
        """Norm, as a map ``[B, h, w, C]`` or as a sequence ``[B, N, C]`` with the class token first."""
        if self.output_fmt == "NHWC":
            return self.norm(tokens.values)
        sequence = tokens.values.flatten(1, 2)
        if tokens.prefix is not None:
            sequence = torch.cat([tokens.prefix, sequence], 1)
        return self.norm(sequence)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and classify what ``forward_features`` gave."""
        return self.head(x, pre_logits)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Tensor:
        """Logits."""
        return self.forward_head(self.forward_features(x))

    def _intermediates(
        self, x: Tensor, indices: int | Sequence[int] | None, norm: bool, stop_early: bool
    ) -> tuple[list[Tokens], Tokens]:
        """The stages asked for, in the frame of the image, and the last one that was computed, in the network's."""
        count = len(self.stage_list)
        take, last = feature_take_indices(count, _listed(indices))
        stages = list(self._stages(x, last + 1 if stop_early else None))
        asked = [stages[index] for index in sorted(take)]
        if norm and last == count - 1:
            asked[-1] = Tokens(self.norm(asked[-1].values), asked[-1].grid)
        return [ALIGNMENTS[self.config.align](tokens) for tokens in asked], stages[-1]

    def intermediate_tokens(
        self, x: Float[Tensor, "B C H W"], indices: int | Sequence[int] | None = None, norm: bool = False
    ) -> list[Tokens]:
        """Tokens of the stages asked for, in the frame of the image: what ``features_only`` gives, with their grids.

        With ``align="stride"`` the first token is the one whose patch starts within the first cell of the image; the
        rest of its position, 0 to stride - 1 pixels, is ``grid.origin``. With ``align="pixel"`` it is 0.
        """
        return self._intermediates(x, indices, norm, stop_early=True)[0]

    def forward_intermediates(
        self,
        x: Float[Tensor, "B C H W"],
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Maps of the stages asked for, in the frame of the image; and ``forward_features``, as timm does it."""
        layout = LAYOUTS.get(str(getattr(output_fmt, "value", output_fmt)))
        if layout is None:
            raise ValueError(f"output_fmt {output_fmt!r}: needs one of {tuple(LAYOUTS)}")
        asked, last = self._intermediates(x, indices, norm, stop_early or intermediates_only)
        maps = [layout(tokens.values) for tokens in asked]
        return maps if intermediates_only else (self.finish(last), maps)

    def _set_image_size(self, img_size: int | Pair) -> None:
        size = pair(img_size)
        check_size(size, self.size_multiple)
        self.config = replace(self.config, img_size=size)
        self.tell_input_size()

    def tell_input_size(self) -> None:
        """Say in ``pretrained_cfg`` for what images the network is now: data are prepared by that."""
        channels = (self.pretrained_cfg.get("input_size") or (self.in_chans,))[0]
        self.pretrained_cfg = {**self.pretrained_cfg, "input_size": (channels, *self.config.size)}

    # -- timm's housekeeping --------------------------------------------------------------------------------------

    def save_pretrained(self, directory: str | Path, **model_config: Any) -> Path:
        """Write the model to a folder: see :func:`trueshift.models.hub.save_pretrained`."""
        from .hub import save_pretrained  # it needs the registry, which needs every family

        return save_pretrained(self, directory, **model_config)

    @classmethod
    def from_pretrained(cls, source: str | Path, **changes: Any) -> "Backbone":
        """A model from a folder or the Hub: see :func:`trueshift.models.hub.from_pretrained`."""
        from .hub import from_pretrained

        model = from_pretrained(source, **changes)
        if not isinstance(model, cls):
            raise TypeError(f"{source} holds a {type(model).__name__}, not a {cls.__name__}")
        return model

    def push_to_hub(self, repository: str, private: bool = False, **model_config: Any) -> str:
        """Upload to the Hugging Face Hub: see :func:`trueshift.models.hub.push_to_hub`."""
        from .hub import push_to_hub

        return push_to_hub(self, repository, private, **model_config)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the stages behind the last one asked for."""
        take, last = feature_take_indices(len(self.stage_list), _listed(indices))
        setattr(self, self.stages_name, self.stage_list[: last + 1])
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return list(take)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new last layer; names of classes stay with it while there are as many."""
        if num_classes != self.num_classes:
            named = ("label_names", "label_descriptions")
            self.pretrained_cfg = {key: value for key, value in self.pretrained_cfg.items() if key not in named}
        self.num_classes = num_classes
        weight = next(self.patch_embed.parameters())
        self.head.reset(num_classes, global_pool)
        self.head.to(weight.device, weight.dtype)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute activations again in the backward pass instead of keeping them."""
        self.grad_checkpointing = enable
        for stage in self.stage_list:
            stage.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Parameters that take no weight decay."""
        return {name for name, _ in self.named_parameters() if any(part in name for part in self.undecayed)}

    undecayed: ClassVar[tuple[str, ...]] = ()

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How parameters are grouped by depth, for layer-wise learning rates."""
        stage = rf"^{self.stages_name}\.(\d+)"
        fine = [(rf"{stage}.downsample", (0,)), (rf"{stage}\.\w+\.(\d+)", None), (r"^norm", (99999,))]
        return {"stem": r"^patch_embed", "blocks": stage if coarse else fine}


class FeatureMaps(FeatureGetterNet):
    """timm's wrapper for ``features_only=True``, which can also say where the tokens stand."""

    def tokens(self, x: Float[Tensor, "B C H W"]) -> list[Tokens]:
        """The same maps as Tokens: ``grid.origin`` holds the 0 to stride - 1 pixels that whole tokens cannot."""
        backbone: Backbone = self.model  # type: ignore[assignment]
        return backbone.intermediate_tokens(x, self.out_indices, self.norm)


def _listed(indices: int | Sequence[int] | None) -> int | list[int] | None:
    return indices if indices is None or isinstance(indices, int) else list(indices)
