"""Swin and SwinV2, ordinary and truly shift-equivariant (A-Swin, A-SwinV2), under timm's parameter names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import lcm
from typing import Any, ClassVar

from jaxtyping import Float
from timm.layers import calculate_drop_path_rates, resize_rel_pos_bias_table
from timm.models.swin_transformer import checkpoint_filter_fn
from timm.models.swin_transformer_v2 import checkpoint_filter_fn as v2_checkpoint_filter_fn
from torch import Tensor, nn

from ..layers.attention import AlignWindows, CosineWindowAttention, WindowAttention, distance_index, log_distances
from ..layers.checks import check_size
from ..layers.merge import AdaptiveMerge
from ..ops.geometry.grid import Tokens
from ..ops.geometry.shift import Pair, pair
from .backbone import Backbone
from .config import BackboneConfig, check_stages
from .stage import Block, Mlp, Stage

Attention = WindowAttention | CosineWindowAttention

_TINY = {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)}
_SMALL = {**_TINY, "depths": (2, 2, 18, 2)}
_BASE = {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)}
_LARGE = {"embed_dim": 192, "depths": (2, 2, 18, 2), "num_heads": (6, 12, 24, 48)}
_AT_384 = {"img_size": 384, "window_size": 12}
_AT_32 = {"img_size": 32, "patch_size": 2, "window_size": 4, "drop_path_rate": 0.0}  # and for 64
_MINI = {"embed_dim": 64, "depths": (2, 2, 2), "num_heads": (2, 4, 8), **_AT_32}
VARIANTS: dict[str, dict[str, Any]] = {
    "swin_tiny_patch4_window7_224": _TINY,
    "swin_small_patch4_window7_224": _SMALL,
    "swin_base_patch4_window7_224": _BASE,
    "swin_base_patch4_window12_384": {**_AT_384, **_BASE},
    "swin_large_patch4_window7_224": _LARGE,
    "swin_large_patch4_window12_384": {**_AT_384, **_LARGE},
    "swin_mini_patch2_window4_32": _MINI,
}
V2_VARIANTS: dict[str, dict[str, Any]] = {
    f"swinv2_{size}_window{window}_256": {"window_size": window, **arguments}
    for size, arguments in (("tiny", _TINY), ("small", _SMALL), ("base", _BASE))
    for window in (8, 16)
} | {"swinv2_mini_patch2_window4_32": _MINI}


@dataclass(frozen=True)
class SwinConfig(BackboneConfig):
    """Sizes of a Swin.

    Args:
        window_size: one for all stages, or one per stage; cut down to the grid where the grid is smaller.
    """

    patch_size: int = 4
    embed_dim: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    num_heads: tuple[int, ...] = (3, 6, 12, 24)
    window_size: int | tuple[int | Pair, ...] = 7
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(self, "num_heads", "window_size")
        if any(min(pair(window)) < 1 for window in self._window_sizes()):
            raise ValueError(f"window_size {self.window_size}: needs at least 1 token each way, e.g. 7")

    def _window_sizes(self) -> tuple[int | Pair, ...]:
        size = self.window_size
        return (size,) * len(self.depths) if isinstance(size, int) else size

    def windows(self) -> list[Pair]:
        """The window of each stage, cut down to its grid."""
        rows, columns = (self._windows_along(axis, self.size[axis]) for axis in (0, 1))
        return list(zip(rows, columns, strict=True))

    def _windows_along(self, axis: int, length: int) -> list[int]:
        """How many tokens the window of each stage has along one side of an image."""
        grids = [max(length // step, 1) for step in self.steps()]
        return [min(grid, pair(window)[axis]) for grid, window in zip(grids, self._window_sizes(), strict=True)]

    def steps(self) -> list[int]:
        """From one token to the next, in pixels, by stage."""
        return [self.patch_size * 2**index for index in range(len(self.depths))]

    def check_windows(self) -> None:
        """Refuse a size of images on which windows would be cut through, and name the nearest on which none is.

        After an anchor, windows may be cut off at the border.
        """
        coarsest = self.steps()[-1]
        if self.anchored:
            check_size(self.size, pair(coarsest))
            return
        for axis, name in enumerate(("height", "width")):
            length = self.size[axis]
            if self._has_whole_windows(axis, length):
                continue
            below = range(length // coarsest * coarsest, 0, -coarsest)
            above = count(max(length // coarsest + 1, 1) * coarsest, coarsest)
            near = [next((at for at in sizes if self._has_whole_windows(axis, at)), None) for sizes in (below, above)]
            raise ValueError(
                f"{name} {length}: needs whole windows of {self._windows_along(axis, length)} tokens, stage by stage, "
                f"e.g. {' or '.join(str(at) for at in near if at)}; or anchor=True, after which windows may be cut off"
            )

    def _has_whole_windows(self, axis: int, length: int) -> bool:
        windows = zip(self.steps(), self._windows_along(axis, length), strict=True)
        return length > 0 and all(length % (step * window) == 0 for step, window in windows)


class SwinStage(Stage):
    """Merge tokens, choose where windows begin, run the blocks.

    Tokens stay where they are: each attention cuts its windows from the chosen token on.
    """

    downsample: nn.Module
    align: AlignWindows

    def forward(self, tokens: Tokens) -> Tokens:
        """Tokens on a coarser grid, except in the first stage."""
        tokens, start = self.align.start(self.downsample(tokens))
        return Tokens(self.run_blocks(tokens.values, start), tokens.grid)


class Swin(Backbone):
    """See :class:`~trueshift.models.backbone.Backbone`."""

    Config = SwinConfig
    variants = VARIANTS
    stages_name = "layers"
    output_fmt = "NHWC"
    undecayed: ClassVar[tuple[str, ...]] = ("relative_position_bias_table",)
    block: ClassVar[type[Block]] = Block
    attention_layer: ClassVar[type[Attention]] = WindowAttention
    merge_norm: ClassVar[str] = "before"

    config: SwinConfig

    def __init__(self, config: SwinConfig) -> None:
        super().__init__(config)
        config.check_windows()
        dims = [config.embed_dim * 2**index for index in range(len(config.depths))]
        self._make_tokenizer(dims[0], config.patch_size, norm_layer=nn.LayerNorm)
        stages = []
        drop_rates: Any = calculate_drop_path_rates(config.drop_path_rate, list(config.depths), stagewise=True)
        for index, (dim, window) in enumerate(zip(dims, config.windows(), strict=True)):
            merge = AdaptiveMerge(dim // 2, dim, norm=self.merge_norm, criterion=config.at("merge", dim))
            blocks = [
                self.block(
                    dim,
                    self.attention(index, window, shifted=number % 2 == 1),
                    Mlp(dim, int(dim * config.mlp_ratio), drop=config.proj_drop_rate),
                    rate,
                )
                for number, rate in enumerate(drop_rates[index])
            ]
            align = AlignWindows(window, criterion=config.at("align", dim), closed=config.closed)
            stages.append(SwinStage(blocks, downsample=merge if index else nn.Identity(), align=align))
        self.layers = nn.Sequential(*stages)
        self._make_head(dims, config.steps(), config.global_pool)

    def attention(self, index: int, window: Pair, **more: Any) -> Attention:
        """The attention of one block of a stage."""
        config = self.config
        return self.attention_layer(
            config.embed_dim * 2**index,
            window,
            config.num_heads[index],
            config.qkv_bias,
            border=config.closed or not config.adaptive("align"),
            circular=config.circular,
            cut_off=config.anchored,
            attn_drop=config.attn_drop_rate,
            proj_drop=config.proj_drop_rate,
            **more,
        )

    @property
    def size_multiple(self) -> Pair:
        """A whole number of tokens in every stage; without an anchor, of windows."""
        if self.config.anchored:
            return pair(self.config.steps()[len(self.stage_list) - 1])
        windows = [stage.align.window_size for stage in self.stage_list]
        rows, columns = (
            lcm(*[step * window[axis] for step, window in zip(self.config.steps(), windows, strict=False)])
            for axis in (0, 1)
        )
        return rows, columns

    def set_input_size(
        self,
        img_size: int | Pair | None = None,
        patch_size: int | Pair | None = None,
        window_size: int | Pair | None = None,
        window_ratio: int | None = None,
    ) -> None:
        """Prepare for another size of images: windows grow with it, position tables are interpolated.

        Args:
            window_size: the new window; a ``window_ratio``-th of the grid of tokens if not given.
            window_ratio: 8 if not given; for the size that the network has already, nothing changes then.
        """
        if patch_size is not None and pair(patch_size) != pair(self.config.patch_size):
            raise ValueError(f"patch_size {patch_size}: cannot be changed from {self.config.patch_size}")
        size = pair(self.config.img_size if img_size is None else img_size)
        if not window_size and window_ratio is None and size == pair(self.config.img_size):
            return
        step, ratio = self.config.patch_size, 8 if window_ratio is None else window_ratio
        window = pair(window_size) if window_size else (size[0] // step // ratio, size[1] // step // ratio)
        if not min(window):
            raise ValueError(f"img_size {size}: too small for windows of a {ratio}-th, give window_size")
        config = replace(self.config, img_size=size, window_size=(window,) * len(self.config.depths))
        config.check_windows()
        for stage, new in zip(self.stage_list, config.windows(), strict=False):  # some may be pruned
            stage.align.window_size = new
            for attn in (block.attn for block in stage.blocks if block.attn.window_size != new):
                self.resize_table(attn, new)
                index = attn.relative_position_index
                attn.relative_position_index = distance_index(new).to(index.device)
                attn.window_size = new
        self.config = config
        self.record_input_size()

    def resize_table(self, attn: Any, window: Pair) -> None:
        """Interpolate an attention's position table to another window."""
        table = attn.relative_position_bias_table
        shape = ((2 * window[0] - 1) * (2 * window[1] - 1), attn.num_heads)
        resized = resize_rel_pos_bias_table(table.detach(), new_window_size=window, new_bias_shape=shape)
        attn.relative_position_bias_table = nn.Parameter(resized, requires_grad=table.requires_grad)

    def read_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Weights under timm's names, tables interpolated to the windows.

        timm takes the window of every table for a square, so tables that fit already are kept from it.
        """
        own = self.state_dict()
        if _fits(weights, own):  # timm takes what has no classifier for an older layout
            return dict(weights)
        tables = [key for key in weights if key in own and key.endswith("relative_position_bias_table")]
        fitting = {key: weights[key] for key in tables if weights[key].shape == own[key].shape}
        others = {key: value for key, value in weights.items() if key not in fitting}
        return {**checkpoint_filter_fn(others, self), **fitting}


def _fits(weights: Mapping[str, Any], own: Mapping[str, Tensor]) -> bool:
    """Whether weights are those of this very network."""
    return weights.keys() == own.keys() and all(weights[key].shape == value.shape for key, value in own.items())


@dataclass(frozen=True)
class SwinV2Config(SwinConfig):
    """Sizes of a SwinV2.

    Args:
        pretrained_window_sizes: windows with which the weights were trained, by stage; 0 where they were the same, or
            alone for all stages.
    """

    img_size: int | Pair = 256
    window_size: int | tuple[int | Pair, ...] = 8
    pretrained_window_sizes: int | tuple[int | Pair, ...] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(self, "pretrained_window_sizes")


class SwinV2Block(Block):
    """With the norms after attention and perceptron, inside the skip."""

    def __init__(self, dim: int, attn: nn.Module, mlp: Mlp, drop_path: float) -> None:
        super().__init__(dim, attn, mlp, drop_path)
        for name in ("attn", "norm1", "mlp", "norm2"):  # the order of timm: optimizers go by it
            self._modules[name] = self._modules.pop(name)

    def forward(self, x: Float[Tensor, "B *tokens C"], *more: Any) -> Float[Tensor, "B *tokens C"]:
        """Mix tokens, then channels; ``more`` is for the attention."""
        x = x + self.drop_path1(self.norm1(self.attn(x, *more)))
        return x + self.drop_path2(self.norm2(self.mlp(x)))


class SwinV2(Swin):
    """See :class:`~trueshift.models.backbone.Backbone`."""

    Config = SwinV2Config
    variants = V2_VARIANTS
    undecayed: ClassVar[tuple[str, ...]] = ("cpb_mlp", "logit_scale")
    block: ClassVar[type[Block]] = SwinV2Block
    attention_layer: ClassVar[type[Attention]] = CosineWindowAttention
    merge_norm: ClassVar[str] = "after"

    config: SwinV2Config

    def __init__(self, config: SwinV2Config) -> None:
        super().__init__(config)
        for stage in self.stage_list:  # each block starts as the identity
            for block in stage.blocks:
                for norm in (block.norm1, block.norm2):
                    nn.init.zeros_(norm.weight)

    def attention(self, index: int, window: Pair, **more: Any) -> Attention:
        """Cosine attention, which also knows the window it was trained with."""
        trained = self.config.pretrained_window_sizes
        trained_window = trained if isinstance(trained, int) else trained[index]
        return super().attention(index, window, trained_window=trained_window, **more)

    def resize_table(self, attn: Any, window: Pair) -> None:
        """Other distances, for the same network."""
        attn.relative_coords_table = log_distances(window, attn.trained_window).to(attn.relative_coords_table)

    def read_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Weights under timm's names, as timm reads them."""
        if _fits(weights, self.state_dict()):
            return dict(weights)
        return v2_checkpoint_filter_fn(dict(weights), self)
