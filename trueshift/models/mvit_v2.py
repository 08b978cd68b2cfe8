"""MViTv2, ordinary and truly shift-equivariant (A-MViTv2), under timm's parameter names."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from timm.layers import DropPath, calculate_drop_path_rates
from timm.models.mvitv2 import checkpoint_filter_fn
from torch import Tensor, nn

from ..criteria import Criterion
from ..layers.checks import check_size
from ..layers.linear import Linear
from ..layers.pool import max_pool, pool_sequences
from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.rel_pos import finer, position_bias
from ..ops.geometry.shift import Pair, pair
from ..ops.nn.attention import fused_attention
from ..ops.selection.choose import Choice
from .backbone import Backbone
from .config import PLACES
from .mvit_v2_config import VARIANTS, BlockShape, MvitV2Config, block_shapes
from .position_tables import POSITIONS, TablePlace, find_tables, fit_table
from .stage import Mlp, Stage

TABLES = ("rel_pos_h", "rel_pos_w")


class PoolingAttention(nn.Module):
    """Attention over all tokens, with pooled queries, keys and values, and relative positions.

    Keys and values take one phase, queries their own; distances are between absolute positions, so that both phases
    are in them. Choices are made before the norms, after which all tokens have the same energy.

    Shift law: the output moves with the tokens, on the grid of the queries.
    """

    def __init__(self, shape: BlockShape, config: MvitV2Config) -> None:
        super().__init__()
        dim = shape.attn_dim // shape.heads
        self.shape, self.head_dim = shape, dim
        self.residual_pooling = config.residual_pooling
        self.reach: Pair = (config.kernel_qkv // 2, config.kernel_qkv // 2)
        self.pad_mode = config.padding_mode
        self.positions = tuple(POSITIONS[mode] for mode in config.position_modes)
        self.qkv = Linear(shape.dim, 3 * shape.attn_dim, bias=config.qkv_bias)
        self.proj = Linear(shape.attn_dim, shape.attn_dim)
        depthwise = partial(nn.Conv2d, dim, dim, config.kernel_qkv, groups=dim, bias=False)
        norm = partial(nn.LayerNorm, dim, eps=config.norm_eps)
        self.pool_q, self.norm_q = depthwise(), norm()
        self.pool_k, self.norm_k = depthwise(), norm()
        self.pool_v, self.norm_v = depthwise(), norm()
        for name, positions, steps in zip(TABLES, self.positions, shape.steps, strict=True):
            table = torch.empty(positions.table_rows(steps), dim)
            setattr(self, name, nn.Parameter(nn.init.trunc_normal_(table, std=0.02)))
        self.query_criterion = config.at("merge", shape.attn_dim, shape.stride_q)
        self.key_criterion = config.at("pool", 2 * shape.attn_dim, shape.stride_kv)

    def forward(self, tokens: Tokens) -> tuple[Tokens, Choice | None]:
        """The mixed tokens on the grid of the queries, and how that was chosen."""
        maps = self.qkv(tokens.values).chunk(3, 3)
        prefixes = (None,) * 3 if tokens.prefix is None else self.qkv(tokens.prefix).chunk(3, 2)
        convs, norms = [self.pool_q, self.pool_k, self.pool_v], [self.norm_q, self.norm_k, self.norm_v]

        def pooled(which: slice, criterion: Criterion, stride: Pair) -> tuple[list[Tensor], Choice | None]:
            common = (criterion, stride, self.reach, tokens.grid, self.pad_mode, norms[which])
            return pool_sequences(maps[which], convs[which], *common)

        choice = key_choice = None
        if self.shape.stride_q == self.shape.stride_kv == (1, 1):  # nothing to choose: all in one
            (query, key, value), _ = pooled(slice(3), self.query_criterion, (1, 1))
        else:
            (query,), choice = pooled(slice(1), self.query_criterion, self.shape.stride_q)
            (key, value), key_choice = pooled(slice(1, 3), self.key_criterion, self.shape.stride_kv)
        grid = tokens.grid if choice is None else tokens.grid.advance(choice.offset, self.shape.stride_q)
        key_grid = tokens.grid if key_choice is None else tokens.grid.advance(key_choice.offset, self.shape.stride_kv)

        queries, keys, values = (
            self._heads(sequence, None if prefix is None else norm(prefix.unflatten(2, (self.shape.heads, -1))))
            for sequence, prefix, norm in zip((query, key, value), prefixes, norms, strict=True)
        )
        bias = self.position_bias(queries, grid, key_grid)
        mixed = fused_attention(queries, keys, values, bias, scale=self.head_dim**-0.5)
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
        rows, columns = (  # interpolated if they were made for another size
            self.positions[axis].resize(getattr(self, name), grid.image_size[axis] // finer(grid, key_grid, axis))
            for axis, name in enumerate(TABLES)
        )
        together = grid is key_grid or not (self.query_criterion.adaptive or self.key_criterion.adaptive)
        asked = queries.transpose(1, 2)[:, count:]
        read, of_columns = (positions.rows for positions in self.positions)
        read = read if read is of_columns else self._rows
        bias = position_bias(asked, (rows, columns), grid, key_grid, read, together)
        return F.pad(bias, (count, 0, count, 0)) if count else bias

    def _rows(self, grid: TokenGrid, key_grid: TokenGrid, axis: int) -> Int64[Tensor, "B q k"]:
        """Which row of an axis' table, where the axes differ."""
        return self.positions[axis].rows(grid, key_grid, axis)

    def refit(self, shape: BlockShape, modes: tuple[str, str], size: Pair) -> None:
        """Make equivalent tables for another size of images, or for reading positions in another way."""
        wanted = tuple(POSITIONS[mode] for mode in modes)
        for axis, name in enumerate(TABLES):
            table, place = getattr(self, name), shape.place(axis, size)
            fitted = fit_table(table.detach(), self.positions[axis].kind, place, wanted[axis].kind).clone()
            setattr(self, name, nn.Parameter(fitted, requires_grad=table.requires_grad))
        self.shape, self.positions = shape, wanted


class MvitV2Block(nn.Module):
    """Attention and a perceptron, each after a norm and with a skip; the skip is pooled where the queries are."""

    def __init__(self, shape: BlockShape, config: MvitV2Config, drop_path: float) -> None:
        super().__init__()
        norm = partial(nn.LayerNorm, eps=config.norm_eps)
        self.stride_q, self.pad_mode = shape.stride_q, config.padding_mode
        self.norm1 = norm(shape.dim)
        self.shortcut_proj_attn = Linear(shape.dim, shape.attn_dim) if shape.dim != shape.attn_dim else None
        self.attn = PoolingAttention(shape, config)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = norm(shape.attn_dim)
        self.shortcut_proj_mlp = Linear(shape.attn_dim, shape.out_dim) if shape.attn_dim != shape.out_dim else None
        self.mlp = Mlp(shape.attn_dim, int(shape.attn_dim * config.mlp_ratio), shape.out_dim)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, tokens: Tokens) -> Tokens:
        """Mix tokens, then channels."""
        normed = _each(self.norm1, tokens)
        # a skip that is projected starts after the norm, any other before it, as in the original
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


class MvitV2(Backbone):
    """See :class:`~trueshift.models.backbone.Backbone`."""

    Config = MvitV2Config
    variants = VARIANTS
    undecayed: ClassVar[tuple[str, ...]] = (*TABLES, "cls_token")

    config: MvitV2Config

    def __init__(self, config: MvitV2Config) -> None:
        super().__init__(config)
        check_size(config.size, self.size_multiple)
        dims = config.embed_dim
        kernel, padding = config.patch_kernel, config.patch_padding
        self._make_tokenizer(dims[0], config.patch_stride, kernel_size=kernel, padding=padding)
        token = nn.init.trunc_normal_(torch.empty(1, 1, dims[0]), std=0.02) if config.use_cls_token else None
        self.cls_token = None if token is None else nn.Parameter(token)
        shapes = block_shapes(config)
        rates: Any = calculate_drop_path_rates(config.drop_path_rate, list(config.depths), stagewise=True)
        self.stages = nn.ModuleList(
            Stage([MvitV2Block(shape, config, rate) for shape, rate in zip(*stage, strict=True)])
            for stage in zip(shapes, rates, strict=True)
        )
        last = [blocks[-1] for blocks in shapes]
        strides = [shape.stride * shape.stride_q[0] for shape in last]
        pool, has_token = config.global_pool, config.use_cls_token
        self._make_head([shape.out_dim for shape in last], strides, pool, has_token, config.norm_eps)

    def tokenize(self, image: Float[Tensor, "B C H W"], start: Int64[Tensor, "B 2"] | None = None) -> Tokens:
        """Patches, and the class token."""
        tokens = super().tokenize(image, start)
        joined = None if self.cls_token is None else self.cls_token.expand(image.shape[0], -1, -1)
        return Tokens(tokens.values, tokens.grid, joined)

    @property
    def size_multiple(self) -> Pair:
        """A whole number of queries and of keys in every block."""
        return pair(self.config.size_multiple())

    def set_input_size(self, img_size: int | Pair | None = None) -> None:
        """Prepare for another size of images: position tables are interpolated."""
        if img_size is not None:
            self._set_image_size(img_size)
            self._refit()

    def set_positions(self, positions: str) -> None:
        """Read relative positions in another way: see :class:`~trueshift.models.config.SelectionConfig`.

        Tables become equivalent ones. From ``"circular"`` to ``"shortest"`` and back nothing else changes; a
        ``"linear"`` table loses its distances of more than half the image on the way to ``"circular"``.
        """
        self.config = replace(self.config, positions=positions)
        self._refit()

    def _refit(self) -> None:
        for stage, shapes in zip(self.stage_list, block_shapes(self.config), strict=False):  # some may be pruned
            for block, shape in zip(stage.blocks, shapes, strict=True):
                block.attn.refit(shape, self.config.position_modes, self.config.size)

    def table_places(self, prefix: str = "") -> dict[str, TablePlace]:
        """Where its position tables are among weights whose names begin so."""
        blocks = {
            f"{prefix}stages.{index}.blocks.{number}.attn": block.attn.shape
            for index, stage in enumerate(self.stage_list)
            for number, block in enumerate(stage.blocks)
        }
        return {
            f"{key}.{name}": shape.place(axis, self.config.size)
            for key, shape in blocks.items()
            for axis, name in enumerate(TABLES)
        }

    def read_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Weights under timm's names, with position tables as this network reads them: see :mod:`.position_tables`.

        A network whose ``positions`` were not given reads them as the tables are.
        """
        if "stages.0.blocks.0.norm1.weight" not in weights:
            # timm's filter renames such weights; it would also stretch tables of those that have its names already
            sizes = SimpleNamespace(depths=self.config.depths, expand_attn=self.config.expand_attn)
            weights = checkpoint_filter_fn(dict(weights), sizes)
        places = self.table_places()
        found = find_tables(weights, places, self.config.size)
        if found is None:  # what does not fit is refused where weights are loaded
            return dict(weights)
        mode = self._mode_for(found.kinds[1])
        if self.config.positions is None and mode != self.config.position_mode:
            self.set_positions(mode)
        wanted = [POSITIONS[mode].kind for mode in self.config.position_modes]
        fitted = {
            key: fit_table(weights[key], found.kinds[place.axis], place, wanted[place.axis])
            for key, place in places.items()
        }
        return {**weights, **fitted}

    def weights_advice(self, weights: Mapping[str, Any], prefix: str = "") -> str | None:
        """How to build a network that takes these weights, if their position tables do not fit this one."""
        found = find_tables(weights, self.table_places(prefix), self.config.size)
        own, size = self.config.position_mode, self.config.size
        if found is None:
            return None
        mode, axes = self._mode_for(found.kinds[1]), self.config.circular
        fits = found.kinds[0] == POSITIONS["linear" if axes == "width" else mode].kind
        their_axes = axes if fits else "both" if axes == "width" else "width"
        needs = [f"positions={mode!r}"] if mode != own else []
        needs += [] if fits else [f"circular={their_axes!r}"]
        needs += [f"img_size={found.size}, load them, then set_input_size({size})"] if found.size != size else []
        if not needs:
            return None
        theirs, mine = (
            f"positions={how!r} and circular={around!r} on images of {h} x {w}"
            for how, around, (h, w) in ((mode, their_axes, found.size), (own, axes, size))
        )
        return f"position tables for {theirs}, this model has {mine}: create it with {', '.join(needs)}"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        """Add to torch's message, which speaks of shapes alone."""
        if advice := self.weights_advice(state_dict, prefix):
            more[-1].append(advice)  # error_msgs
        super()._load_from_state_dict(state_dict, prefix, *more)

    def _mode_for(self, kind: str) -> str:
        """How this network would read tables of a kind: in its own way, if it can."""
        own = self.config.position_mode
        linear = "shortest" if self.config.adaptive(*PLACES) else "linear"
        return own if POSITIONS[own].kind == kind else "circular" if kind == "circular" else linear

    def changed_arguments(self) -> dict[str, Any]:
        """Always with ``positions``, by which the tables among the weights are known."""
        return {**super().changed_arguments(), "positions": self.config.position_mode}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """As timm's."""
        return {"stem": r"^patch_embed", "blocks": [(r"^stages\.(\d+)", None), (r"^norm", (99999,))]}
