"""What the four backbones share: timm's interface, and features that know where they lie."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from timm.layers import Format, nhwc_to
from timm.models._features import FeatureGetterNet, feature_take_indices
from timm.models._pretrained import filter_pretrained_cfg
from torch import Tensor, nn

from ..layers.checks import check_image, check_size, refuse_scripting
from ..layers.tokenize import AdaptiveTokenize
from ..ops.geometry.grid import Tokens
from ..ops.geometry.resample import resample
from ..ops.geometry.shift import Pair, circular_shift, pair
from .config import PLACES, BackboneConfig
from .hub import HubModel
from .stage import init_linear

LAYOUTS = ("NCHW", "NHWC", "NLC")


class Head(nn.Module):
    """Pool the tokens and classify."""

    def __init__(self, dim: int, num_classes: int, pool: str, drop: float, has_prefix: bool = False) -> None:
        super().__init__()
        self.dim, self.has_prefix = dim, has_prefix
        self.drop = nn.Dropout(drop)
        self.reset(num_classes, pool)

    def reset(self, num_classes: int, pool: str | None = None) -> None:
        """A new last layer, and another pooling if given."""
        allowed = ("avg", "token", "") if self.has_prefix else ("avg", "")
        if pool not in (None, *allowed):
            raise ValueError(f"global_pool {pool!r}: needs one of {allowed}")
        if pool is not None:
            self.pool = pool
        self.fc = nn.Linear(self.dim, num_classes) if num_classes else nn.Identity()
        init_linear(self.fc)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of ``[B, h, w, C]`` or ``[B, N, C]``; the pooled features with ``pre_logits``."""
        if self.pool == "token":
            x = x[:, 0]
        elif self.pool == "avg":
            x = x.flatten(1, -2)[:, int(self.has_prefix) :].mean(1)
        x = self.drop(x)
        return x if pre_logits else self.fc(x)


class Backbone(HubModel):
    """A tokenizer and stages, each from :class:`.Tokens` to Tokens; then a norm and a classifier.

    Shift law: logits do not change, bit for bit with the anchor; features move with the image.

    ``features(x)`` gives the tokens of every stage and where they lie. The rest is timm's interface:
    ``forward_features`` stays in the network's own frame, in which a shift of the image changes nothing;
    ``forward_intermediates`` and ``features_only`` bring maps back to the frame of the image. The law ends at another
    library's decoder; :func:`~trueshift.canonicalize` around the whole network restores it.
    """

    Config: ClassVar[type[BackboneConfig]]
    variants: ClassVar[dict[str, dict[str, Any]]]  # arguments of Config, by registered name
    stages_name: ClassVar[str] = "stages"
    pipeline_tag: ClassVar[str | None] = "image-classification"
    output_fmt: ClassVar[str | None] = None  # of forward_features and features_only, where timm's is not the usual one
    undecayed: ClassVar[tuple[str, ...]] = ()

    norm: nn.Module
    feature_info: list[dict[str, Any]]
    config: BackboneConfig

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.num_classes = config.num_classes
        self.in_chans = config.in_chans
        self.drop_rate = config.drop_rate
        self.grad_checkpointing = False
        self.pretrained_cfg = {}

    def _make_tokenizer(self, dim: int, stride: int, **more: Any) -> None:
        config = self.config
        more |= {"criterion": config.at("tokenize", dim), "anchor": config.anchored, "closed": config.closed}
        more |= {"padding_mode": config.padding_mode, "circular": config.circular}
        self.patch_embed = AdaptiveTokenize(self.in_chans, dim, stride, **more)
        self.patch_embed.nearby(config.grids)  # refuses what the patches do not have

    def _make_head(
        self, dims: Sequence[int], strides: Sequence[int], pool: str, has_prefix: bool = False, norm_eps: float = 1e-5
    ) -> None:
        """The last norm and the classifier after stages of these channels and pixels between tokens; all weights."""
        self.num_features = self.head_hidden_size = dims[-1]
        self.norm = nn.LayerNorm(dims[-1], eps=norm_eps)
        self.head = Head(dims[-1], self.num_classes, pool, self.drop_rate, has_prefix)
        self.feature_info = [
            {"num_chs": dim, "reduction": stride, "module": f"{self.stages_name}.{index}"}
            for index, (dim, stride) in enumerate(zip(dims, strides, strict=True))
        ]
        self.apply(init_linear)

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

    # -- forward --------------------------------------------------------------------------------------------------

    def _stages(self, image: Tensor, last: int | None = None, start: Tensor | None = None) -> Iterator[Tokens]:
        check_image(image, self.in_chans, self.size_multiple)
        tokens = self.tokenize(image, start)
        for stage in self.stage_list[:last]:
            tokens = stage(tokens)
            yield tokens

    def tokenize(self, image: Float[Tensor, "B C H W"], start: Int64[Tensor, "B 2"] | None = None) -> Tokens:
        """The image as tokens, on the chosen grid or on the one that starts at ``start``."""
        return self.patch_embed(image, start)

    def features(self, x: Float[Tensor, "B C H W"]) -> tuple[Tokens, ...]:
        """The tokens of every stage, and where they lie.

        Shift law: ``place(features(S x)[i]) == S place(features(x)[i])``; with the anchor even the values are the
        same, and only the grids move.
        """
        return tuple(self._stages(x))

    def forward_features(self, x: Float[Tensor, "B C H W"], start: Int64[Tensor, "B 2"] | None = None) -> Tensor:
        """The normed tokens of the last stage, in the network's own frame."""
        *_, tokens = self._stages(x, start=start)
        return self.finish(tokens)

    def finish(self, tokens: Tokens) -> Tensor:
        """Norm, as a map ``[B, h, w, C]`` or as a sequence ``[B, N, C]`` with the class token first."""
        if self.output_fmt == "NHWC":
            return self.norm(tokens.values)
        sequence = tokens.values.flatten(1, 2)
        return self.norm(sequence if tokens.prefix is None else torch.cat([tokens.prefix, sequence], 1))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and classify what ``forward_features`` gave."""
        return self.head(x, pre_logits)

    def __prepare_scriptable__(self) -> Any:
        refuse_scripting()

    def forward(self, x: Float[Tensor, "B C H W"], start: Int64[Tensor, "B 2"] | None = None) -> Tensor:
        """Logits.

        Args:
            start: the pixel at which the first grid starts, where it is not to be chosen; see
                :class:`~trueshift.AdaptiveTokenize`.
        """
        if start is None and self.config.grids > 1 and not self.training:
            check_image(x, self.in_chans, self.size_multiple)
            return self.patch_embed.mean_over_grids(self, x, self.config.grids)
        return self.forward_head(self.forward_features(x, start))

    def _intermediates(
        self, x: Tensor, indices: int | Sequence[int] | None, norm: bool, stop_early: bool
    ) -> tuple[list[Tokens], Tokens]:
        """The requested stages, in the frame of the image, and the last one that was computed, in the network's."""
        count = len(self.stage_list)
        take, last = feature_take_indices(count, indices)  # type: ignore[arg-type]
        stages = list(self._stages(x, last + 1 if stop_early else None))
        found = [stages[index] for index in sorted(take)]
        if norm and last == count - 1:
            found[-1] = Tokens(self.norm(found[-1].values), found[-1].grid)
        in_frame = on_fixed_grid if self.config.feature_frame == "pixel" else in_image_frame
        return [in_frame(tokens) for tokens in found], stages[-1]

    def intermediate_tokens(
        self, x: Float[Tensor, "B C H W"], indices: int | Sequence[int] | None = None, norm: bool = False
    ) -> list[Tokens]:
        """Tokens of the requested stages, in the frame of the image: what ``features_only`` gives, with their grids.

        With ``feature_frame="stride"`` the first token is the one whose patch starts within the first cell of the
        image; the rest of its position, 0 to stride - 1 pixels, is ``grid.origin``. With ``"pixel"`` it is 0.
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
        """Maps of the requested stages, in the frame of the image; and ``forward_features``, as in timm."""
        if output_fmt not in LAYOUTS:
            raise ValueError(f"output_fmt {output_fmt!r}: needs one of {LAYOUTS}")
        found, last = self._intermediates(x, indices, norm, stop_early or intermediates_only)
        maps = [nhwc_to(tokens.values, Format(output_fmt)) for tokens in found]
        return maps if intermediates_only else (self.finish(last), maps)

    def _set_image_size(self, img_size: int | Pair) -> None:
        size = pair(img_size)
        check_size(size, self.size_multiple)
        self.config = replace(self.config, img_size=size)
        self.record_input_size()

    def record_input_size(self) -> None:
        """Write the image size into ``pretrained_cfg``, by which timm and we prepare data."""
        channels = (self.pretrained_cfg.get("input_size") or (self.in_chans,))[0]
        self.pretrained_cfg = {**self.pretrained_cfg, "input_size": (channels, *self.config.size)}

    # -- folders and the Hub --------------------------------------------------------------------------------------

    @property
    def architecture(self) -> str:
        """The registered variant nearest to this model: its own, or the first of the family."""
        own = self.config.arguments()
        sizes = {
            name: {key: value for key, value in arguments.items() if key not in ("img_size", "drop_path_rate")}
            for name, arguments in self.variants.items()
        }
        name = next((name for name, size in sizes.items() if size.items() <= own.items()), next(iter(sizes)))
        return f"a_{name}" if self.config.adaptive(*PLACES) else name

    @property
    def title(self) -> str:
        """The architecture."""
        return self.architecture

    @property
    def shift_law(self) -> str:
        """That of the anchor."""
        return self.config.shift_law

    def changed_arguments(self) -> dict[str, Any]:
        """Fields of the configuration in which this model differs from the variant whose name it takes."""
        name = self.architecture
        criterion = "max_norm" if name.startswith("a_") else "fixed"
        usual = self.Config(**{**self.variants[name.removeprefix("a_")], "criterion": criterion}).arguments()
        own = {**self.config.arguments(), "num_classes": self.num_classes, "global_pool": self.global_pool}
        changed = {key: value for key, value in own.items() if value != usual[key]}
        if "criterion" in changed:
            changed["criterion"] = self.config.described()
        return changed

    def hub_config(self) -> dict[str, Any]:
        """As timm writes it, so that ``timm.create_model("local-dir:...")`` and ``"hf_hub:..."`` read it."""
        arguments = self.changed_arguments()
        if not self.pretrained_cfg.get("input_size"):
            self.record_input_size()
        cfg = {**self.pretrained_cfg, "architecture": None}
        if self.in_chans != 3:  # timm would change the convolution for other channels once more
            cfg["first_conv"] = None
        return {
            "architecture": self.architecture,
            "num_classes": self.num_classes,
            "num_features": self.num_features,
            **({"global_pool": self.global_pool} if self.global_pool else {}),
            **({"model_args": arguments} if arguments else {}),
            "pretrained_cfg": filter_pretrained_cfg(cfg, remove_source=True, remove_null=True),
        }

    def read_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Published or saved weights under the names, and with the position tables, that this model needs."""
        return dict(weights)

    # -- timm's housekeeping --------------------------------------------------------------------------------------

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the stages after the last requested one."""
        take, last = feature_take_indices(len(self.stage_list), indices)  # type: ignore[arg-type]
        setattr(self, self.stages_name, self.stage_list[: last + 1])
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.config = replace(self.config, grids=1)  # there are no logits to average
            self.reset_classifier(0, "")
        return list(take)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new last layer; the names of the classes are kept if their number is."""
        pool = self.global_pool if global_pool is None else global_pool
        replace(self.config, global_pool=pool)  # refuses what does not go together
        if num_classes != self.num_classes:
            named = ("label_names", "label_descriptions")
            self.pretrained_cfg = {key: value for key, value in self.pretrained_cfg.items() if key not in named}
        self.num_classes = num_classes
        weight = next(self.patch_embed.parameters())
        self.head.reset(num_classes, pool)
        self.head.to(weight.device, weight.dtype)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute activations again in the backward pass instead of keeping them."""
        self.grad_checkpointing = enable
        for stage in self.stage_list:
            stage.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Parameters that take no weight decay."""
        return {name for name, _ in self.named_parameters() if any(part in name for part in self.undecayed)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How parameters are grouped by depth, for layer-wise learning rates."""
        stage = rf"^{self.stages_name}\.(\d+)"
        fine = [(rf"{stage}.downsample", (0,)), (rf"{stage}\.\w+\.(\d+)", None), (r"^norm", (99999,))]
        return {"stem": r"^patch_embed", "blocks": stage if coarse else fine}


class FeatureMaps(FeatureGetterNet):
    """timm's wrapper for ``features_only=True``, which also has the positions of the tokens."""

    def tokens(self, x: Float[Tensor, "B C H W"]) -> list[Tokens]:
        """The same maps as Tokens: ``grid.origin`` holds the 0 to stride - 1 pixels that whole tokens cannot."""
        backbone: Backbone = self.model  # type: ignore[assignment]
        return backbone.intermediate_tokens(x, self.out_indices, self.norm)


def in_image_frame(tokens: Tokens) -> Tokens:
    """Roll the tokens so that the first is the one that starts within the first cell of the image.

    Shift law: a shift by a multiple of the stride rolls the map by whole tokens; the origin keeps the rest.
    """
    grid = tokens.grid
    whole = torch.stack([grid.origin[:, axis] // grid.stride[axis] for axis in (0, 1)], 1)
    rest = torch.stack([grid.origin[:, axis] % grid.stride[axis] for axis in (0, 1)], 1)
    return Tokens(circular_shift(tokens.values, -whole), replace(grid, origin=rest, anchored=False), tokens.prefix)


def on_fixed_grid(tokens: Tokens) -> Tokens:
    """Interpolate to where the tokens of an ordinary network lie."""
    return resample(tokens, replace(tokens.grid, origin=torch.zeros_like(tokens.grid.origin), anchored=False))
