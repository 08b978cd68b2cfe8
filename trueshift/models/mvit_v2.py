"""MViTv2, ordinary and truly shift-equivariant (A-MViTv2), under timm's parameter names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.layers import DropPath
from torch import Tensor, nn

from ..criteria import Criterion
from ..layers.attention import check_heads
from ..layers.linear import Linear
from ..layers.perceptron import Mlp
from ..layers.pool import max_pool, pool_sequences
from ..layers.tokenize import AdaptiveTokenize, check_size
from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.rel_pos import finer, position_bias
from ..ops.geometry.shift import Pair, pair
from ..ops.selection.choose import Choice
from .backbone import Backbone
from .config import BackboneConfig, check_stages
from .head import Head
from .position_tables import POSITIONS, Positions, TablePlace, find_tables, fit_table
from .selection_config import PLACES, Choices
from .stage import Stage, init_linear, stage_drop_rates

TABLES = ("rel_pos_h", "rel_pos_w")


@dataclass(frozen=True)
class MvitV2Config(BackboneConfig):
    """Sizes of an MViTv2, by stage.

    Args:
        stride_q: by how much the first block of each stage pools its queries.
        stride_kv: by how much every block of a stage pools keys and values.
        expand_attn: whether channels grow in the attention of a stage's first block, or in the perceptron of the last
            block of the stage before.
    """

    embed_dim: tuple[int, ...] = (96, 192, 384, 768)
    depths: tuple[int, ...] = (1, 2, 5, 2)
    num_heads: tuple[int, ...] = (1, 2, 4, 8)
    stride_q: tuple[int, ...] = (1, 2, 2, 2)
    stride_kv: tuple[int, ...] = (4, 2, 1, 1)
    kernel_qkv: int = 3
    patch_kernel: int = 7
    patch_stride: int = 4
    patch_padding: int = 3
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    expand_attn: bool = True
    residual_pooling: bool = True
    use_cls_token: bool = False
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(
            self.depths,
            embed_dim=self.embed_dim,
            num_heads=self.num_heads,
            stride_q=self.stride_q,
            stride_kv=self.stride_kv,
        )
        for dim, heads in zip(self.embed_dim, self.num_heads, strict=True):
            check_heads(dim, heads)


class BlockShape(NamedTuple):
    """Channels, strides and steps around the image of one block."""

    dim: int
    attn_dim: int
    out_dim: int
    heads: int
    stride_q: Pair
    stride_kv: Pair
    steps: Pair  # of the finer of queries and keys, around the image

    def place(self, axis: int, size: Pair) -> TablePlace:
        """For what distances its table of rows (0) or columns (1) is asked, on images of a size."""
        key_step = self.stride_kv[axis] // min(self.stride_q[axis], self.stride_kv[axis])
        return TablePlace(axis, self.steps[axis], key_step, size[axis] // self.steps[axis])


class PoolingAttention(nn.Module):
    """Attention over all tokens, with pooled queries, keys and values, and relative positions.

    Keys and values take one phase, queries their own; distances are between absolute positions, so that both phases
    are in them. Choices are made before the norms, behind which all tokens have the same energy.

    Shift law: the output moves with the tokens, on the grid of the queries.
    """

    def __init__(self, shape: BlockShape, config: MvitV2Config, choices: Choices) -> None:
        super().__init__()
        dim = shape.attn_dim // shape.heads
        self.shape, self.head_dim = shape, dim
        self.residual_pooling = config.residual_pooling
        self.reach: Pair = (config.kernel_qkv // 2, config.kernel_qkv // 2)
        self.pad_mode = choices.padding_mode
        self.positions = POSITIONS[choices.position_mode]
        self.qkv = Linear(shape.dim, 3 * shape.attn_dim, bias=config.qkv_bias)
        self.proj = Linear(shape.attn_dim, shape.attn_dim)
        depthwise = partial(nn.Conv2d, dim, dim, config.kernel_qkv, groups=dim, bias=False)
        norm = partial(nn.LayerNorm, dim, eps=config.norm_eps)
        self.pool_q, self.norm_q = depthwise(), norm()
        self.pool_k, self.norm_k = depthwise(), norm()
        self.pool_v, self.norm_v = depthwise(), norm()
        rows, columns = map(self.positions.table_rows, shape.steps)
        self.rel_pos_h = nn.Parameter(nn.init.trunc_normal_(torch.empty(rows, dim), std=0.02))
        self.rel_pos_w = nn.Parameter(nn.init.trunc_normal_(torch.empty(columns, dim), std=0.02))
        self.query_criterion = choices.at("merge", shape.attn_dim, shape.stride_q)
        self.key_criterion = choices.at("pool", 2 * shape.attn_dim, shape.stride_kv)

    def forward(self, tokens: Tokens) -> tuple[Tokens, Choice | None]:
        """The mixed tokens on the grid of the queries, and how that was chosen."""
        maps = self.qkv(tokens.values).chunk(3, 3)
        prefixes = (None,) * 3 if tokens.prefix is None else self.qkv(tokens.prefix).chunk(3, 2)
        convs, norms = [self.pool_q, self.pool_k, self.pool_v], [self.norm_q, self.norm_k, self.norm_v]

        def pooled(which: slice, criterion: Criterion, stride: Pair) -> tuple[list[Tensor], Choice | None]:
            common = (self.reach, self.pad_mode, tokens.grid.anchored)
            return pool_sequences(maps[which], convs[which], criterion, stride, *common, norms[which])

        choice = key_choice = None
        if self.shape.stride_q == self.shape.stride_kv == (1, 1):  # nothing to choose: all in one
            (query, key, value), _ = pooled(slice(3), self.query_criterion, (1, 1))
        else:
            (query,), choice = pooled(slice(1), self.query_criterion, self.shape.stride_q)
            (key, value), key_choice = pooled(slice(1, 3), self.key_criterion, self.shape.stride_kv)
        grid = _advance(tokens.grid, choice, self.shape.stride_q)
        key_grid = _advance(tokens.grid, key_choice, self.shape.stride_kv)

        queries, keys, values = (
            self._heads(sequence, None if prefix is None else norm(prefix.unflatten(2, (self.shape.heads, -1))))
            for sequence, prefix, norm in zip((query, key, value), prefixes, norms, strict=True)
        )
        bias = self.position_bias(queries, grid, key_grid)
        mixed = F.scaled_dot_product_attention(queries, keys, values, bias.to(queries.dtype), scale=self.head_dim**-0.5)
        if self.residual_pooling:
            mixed = mixed + queries
        sequence = self.proj(mixed.transpose(1, 2).flatten(2))
        count = sequence.shape[1] - query.shape[1]
        values_out = sequence[:, count:].unflatten(1, grid.shape)
        return Tokens(values_out, grid, sequence[:, :count] if count else None), choice

    def _heads(self, sequence: Float[Tensor, "B N C"], prefix: Tensor | None) -> Float[Tensor, "B heads M d"]:
        heads = sequence.unflatten(2, (self.shape.heads, -1))
        return (heads if prefix is None else torch.cat([prefix, heads], 1)).transpose(1, 2)

    def position_bias(
        self, queries: Float[Tensor, "B heads N d"], grid: TokenGrid, key_grid: TokenGrid
    ) -> Float[Tensor, "B heads N K"]:
        """How much each query asks for tokens at each key's distance, in rows and columns; class tokens ask nothing."""
        count = queries.shape[2] - grid.shape[0] * grid.shape[1]
        tables = (self._table(self.rel_pos_h, grid, key_grid, 0), self._table(self.rel_pos_w, grid, key_grid, 1))
        together = grid is key_grid or not (self.query_criterion.adaptive or self.key_criterion.adaptive)
        asked = queries.transpose(1, 2)[:, count:]
        bias = position_bias(asked, tables, grid, key_grid, self.positions.rows, together)
        return F.pad(bias, (count, 0, count, 0)) if count else bias

    def _table(self, table: Tensor, grid: TokenGrid, key_grid: TokenGrid, axis: int) -> Tensor:
        """The table for the image at hand, interpolated if it was made for another size."""
        steps = grid.image_size[axis] // finer(grid, key_grid, axis)
        return self.positions.resize(table, self.positions.table_rows(steps))

    def resize(self, steps: Pair) -> None:
        """Make the tables for another size of images the parameters."""
        for name, count in zip(TABLES, steps, strict=True):
            table = getattr(self, name)
            resized = self.positions.resize(table.detach(), self.positions.table_rows(count)).clone()
            setattr(self, name, nn.Parameter(resized, requires_grad=table.requires_grad))
        self.shape = self.shape._replace(steps=steps)

    def set_positions(self, mode: str, size: Pair) -> None:
        """Read positions in another way, from tables that say the same."""
        for axis, name in enumerate(TABLES):
            table = getattr(self, name)
            place = self.shape.place(axis, size)
            fitted = fit_table(table.detach(), self.positions.kind, place, POSITIONS[mode].kind).clone()
            setattr(self, name, nn.Parameter(fitted, requires_grad=table.requires_grad))
        self.positions = POSITIONS[mode]


def _advance(grid: TokenGrid, choice: Choice | None, stride: Pair) -> TokenGrid:
    return grid if choice is None else grid.advance(choice.offset, stride)


class MvitV2Block(nn.Module):
    """Attention and a perceptron, each behind a norm and around a skip; the skip is pooled where the queries are."""

    def __init__(self, shape: BlockShape, config: MvitV2Config, choices: Choices, drop_path: float) -> None:
        super().__init__()
        norm = partial(nn.LayerNorm, eps=config.norm_eps)
        self.stride_q, self.pad_mode = shape.stride_q, choices.padding_mode
        self.norm1 = norm(shape.dim)
        self.shortcut_proj_attn = Linear(shape.dim, shape.attn_dim) if shape.dim != shape.attn_dim else None
        self.attn = PoolingAttention(shape, config, choices)
        self.drop_path1 = DropPath(drop_path) if drop_path else nn.Identity()
        self.norm2 = norm(shape.attn_dim)
        self.shortcut_proj_mlp = Linear(shape.attn_dim, shape.out_dim) if shape.attn_dim != shape.out_dim else None
        self.mlp = Mlp(shape.attn_dim, int(shape.attn_dim * config.mlp_ratio), shape.out_dim)
        self.drop_path2 = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, tokens: Tokens) -> Tokens:
        """Mix tokens, then channels."""
        normed = _each(self.norm1, tokens)
        # a skip that is projected starts behind the norm, any other before it, as in the original
        skip = tokens if self.shortcut_proj_attn is None else _each(self.shortcut_proj_attn, normed)
        mixed, choice = self.attn(normed)
        skipped = skip.values if choice is None else max_pool(skip.values, choice, self.stride_q, self.pad_mode)
        tokens = _add(Tokens(skipped, mixed.grid, skip.prefix), mixed, self.drop_path1)
        normed = _each(self.norm2, tokens)
        skip = tokens if self.shortcut_proj_mlp is None else _each(self.shortcut_proj_mlp, normed)
        return _add(skip, _each(self.mlp, normed), self.drop_path2)


def _each(layer: nn.Module, tokens: Tokens) -> Tokens:
    """A layer of channels on all tokens, the class token included."""
    return Tokens(layer(tokens.values), tokens.grid, None if tokens.prefix is None else layer(tokens.prefix))


def _add(skip: Tokens, branch: Tokens, drop_path: nn.Module) -> Tokens:
    """The sum of skip and branch; a class token is dropped together with the tokens of its image."""
    if skip.prefix is None or branch.prefix is None:
        return Tokens(skip.values + drop_path(branch.values), skip.grid)
    count = branch.prefix.shape[1]
    dropped = drop_path(torch.cat([branch.prefix, branch.values.flatten(1, 2)], 1))
    values = dropped[:, count:].reshape(branch.values.shape)
    return Tokens(skip.values + values, skip.grid, skip.prefix + dropped[:, :count])


class MvitV2Stage(Stage):
    """Blocks, the first of which pools.

    Shift law: ``place(stage(S t)) == S place(stage(t))``.
    """

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, tokens: Tokens) -> Tokens:
        """Tokens on a coarser grid, where the stage pools."""
        return self.run_blocks(tokens)


class MvitV2(Backbone):
    """See :class:`~trueshift.models.backbone.Backbone`."""

    Config = MvitV2Config
    undecayed: ClassVar[tuple[str, ...]] = (*TABLES, "cls_token")

    config: MvitV2Config

    def __init__(self, config: MvitV2Config) -> None:
        super().__init__(config)
        check_size(config.size, self.size_multiple)
        choices, dims = config.choices, config.embed_dim
        self.patch_embed = AdaptiveTokenize(
            config.in_chans,
            dims[0],
            config.patch_stride,
            config.patch_kernel,
            config.patch_padding,
            criterion=choices.at("tokenize", dims[0]),
            anchor=choices.anchored,
            padding_mode=choices.padding_mode,
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dims[0])) if config.use_cls_token else None
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)
        drop_rates = stage_drop_rates(config.drop_path_rate, config.depths)
        self.stages = nn.ModuleList(
            MvitV2Stage(
                [
                    MvitV2Block(shape, config, choices, rate)
                    for shape, rate in zip(shapes, drop_rates[index], strict=True)
                ]
            )
            for index, shapes in enumerate(block_shapes(config))
        )
        step = config.patch_stride
        self.feature_info = []
        for index, shapes in enumerate(block_shapes(config)):
            step *= config.stride_q[index]
            info = {"num_chs": shapes[-1].out_dim, "reduction": step, "module": f"stages.{index}"}
            self.feature_info.append(info)
        self.num_features = dims[-1]
        self.norm = nn.LayerNorm(dims[-1], eps=config.norm_eps)
        has_prefix = config.use_cls_token
        self.head = Head(dims[-1], config.num_classes, config.global_pool, config.drop_rate, has_prefix)
        self.apply(init_linear)

    def tokenize(self, image: Float[Tensor, "B C H W"]) -> Tokens:
        """Patches, and the class token."""
        tokens = self.patch_embed(image)
        joined = None if self.cls_token is None else self.cls_token.expand(image.shape[0], -1, -1)
        return Tokens(tokens.values, tokens.grid, joined)

    @property
    def size_multiple(self) -> Pair:
        """A whole number of queries and of keys in every block."""
        needed, step = [], self.config.patch_stride
        for stride_q, stride_kv, depth in zip(
            self.config.stride_q, self.config.stride_kv, self.config.depths, strict=True
        ):
            needed += [step * stride_q, step * stride_kv]
            step *= stride_q
            needed += [step * stride_kv] if depth > 1 else []
        return lcm(*needed), lcm(*needed)

    def set_input_size(self, img_size: int | Pair | None = None) -> None:
        """Prepare for another size of images: position tables are interpolated."""
        if img_size is None:
            return
        self._set_image_size(img_size)
        for stage, shapes in zip(self.stage_list, block_shapes(self.config), strict=False):
            for block, shape in zip(stage.blocks, shapes, strict=True):
                block.attn.resize(shape.steps)

    def set_positions(self, positions: str) -> None:
        """Read relative positions in another way: see :class:`~trueshift.models.selection_config.Choices`.

        Tables become those that say the same. From ``"circular"`` to ``"shortest"`` and back nothing else changes; a
        ``"linear"`` table loses its distances of more than half the image on the way to ``"circular"``.
        """
        self.config = replace(self.config, positions=positions)
        for stage in self.stage_list:
            for block in stage.blocks:
                block.attn.set_positions(positions, self.config.size)

    def table_places(self, prefix: str = "") -> dict[str, TablePlace]:
        """Where its position tables are among weights whose names begin so."""
        return {
            f"{prefix}{self.stages_name}.{index}.blocks.{number}.attn.{name}": block.attn.shape.place(
                axis, self.config.size
            )
            for index, stage in enumerate(self.stage_list)
            for number, block in enumerate(stage.blocks)
            for axis, name in enumerate(TABLES)
        }

    def with_fitting_tables(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Weights of this network, their position tables as it reads them: see :mod:`.position_tables`.

        A network that was not told how to read positions reads them as the tables are.
        """
        places = self.table_places()
        found = find_tables(weights, places, self.config.size)
        if found is None:  # what does not fit is refused where weights are loaded
            return dict(weights)
        if self.config.positions is None and found.kind != self._positions.kind:
            self.set_positions(self._mode_for(found.kind))
        wanted = self._positions.kind
        fitted = {key: fit_table(weights[key], found.kind, place, wanted) for key, place in places.items()}
        return {**weights, **fitted}

    def table_advice(self, weights: Mapping[str, Any], prefix: str = "") -> str | None:
        """In words, what a network needs that is to take these weights, where its position tables are others."""
        found = find_tables(weights, self.table_places(prefix), self.config.size)
        own, size = self.config.choices.position_mode, self.config.size
        if found is None or (found.kind == self._positions.kind and found.size == size):
            return None
        mode = own if found.kind == self._positions.kind else self._mode_for(found.kind)
        needs = [f"positions={mode!r}"] if mode != own else []
        needs += [f"img_size={found.size}, load them, then set_input_size({size})"] if found.size != size else []
        theirs, mine = (
            f"positions={how!r} on images of {h} x {w}" for how, (h, w) in ((mode, found.size), (own, size))
        )
        return f"position tables for {theirs}, this model has {mine}: create it with {', '.join(needs)}"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        """torch's own tells of numbers of rows alone."""
        if advice := self.table_advice(state_dict, prefix):
            more[-1].append(advice)  # error_msgs
        super()._load_from_state_dict(state_dict, prefix, *more)

    @property
    def _positions(self) -> Positions:
        return POSITIONS[self.config.choices.position_mode]

    def _mode_for(self, kind: str) -> str:
        """How this network would read tables of a kind."""
        if kind == "circular":
            return "circular"
        return "shortest" if self.config.choices.adaptive(*PLACES) else "linear"

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """As timm's."""
        return {"stem": r"^patch_embed", "blocks": [(r"^stages\.(\d+)", None), (r"^norm", (99999,))]}


def block_shapes(config: MvitV2Config) -> list[list[BlockShape]]:
    """Channels, strides and steps of every block, by stage."""
    stages, dim, count = [], config.embed_dim[0], len(config.depths)
    size = config.size
    step = config.patch_stride
    for index, depth in enumerate(config.depths):
        grown = config.embed_dim[index if config.expand_attn else min(index + 1, count - 1)]
        heads, stride_kv = config.num_heads[index], config.stride_kv[index]
        blocks = []
        for number in range(depth):
            stride_q = config.stride_q[index] if number == 0 else 1
            out_dim = grown if config.expand_attn or number == depth - 1 else dim
            fine = step * min(stride_q, stride_kv)
            blocks.append(
                BlockShape(
                    dim,
                    out_dim if config.expand_attn else dim,
                    out_dim,
                    heads,
                    pair(stride_q),
                    pair(stride_kv),
                    (size[0] // fine, size[1] // fine),
                )
            )
            dim, step = out_dim, step * stride_q
        stages.append(blocks)
    return stages


VARIANTS: dict[str, dict[str, Any]] = {
    "mvitv2_tiny": {"depths": (1, 2, 5, 2)},
    "mvitv2_small": {"depths": (1, 2, 11, 2)},
    "mvitv2_base": {"depths": (2, 3, 16, 3)},
    "mvitv2_large": {
        "depths": (2, 6, 36, 4),
        "embed_dim": (144, 288, 576, 1152),
        "num_heads": (2, 4, 8, 16),
        "expand_attn": False,
    },
    # for images of 32 and 64 pixels
    "mvitv2_mini_32": {
        "img_size": 32,
        "embed_dim": (64, 128, 256),
        "depths": (1, 2, 2),
        "num_heads": (1, 2, 4),
        "stride_q": (1, 2, 2),
        "stride_kv": (4, 2, 1),
        "patch_kernel": 3,
        "patch_stride": 2,
        "patch_padding": 1,
    },
}
