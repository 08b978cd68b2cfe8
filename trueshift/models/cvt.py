"""CvT, ordinary and truly shift-equivariant (A-CvT), close to the parameter names of Microsoft's own checkpoints."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm
from operator import mul
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from timm.layers import DropPath
from torch import Tensor, nn

from ..layers.attention import check_heads
from ..layers.linear import Linear
from ..layers.merge import AdaptiveConvMerge
from ..layers.perceptron import Mlp
from ..layers.pool import pool_sequences
from ..layers.tokenize import check_size
from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.shift import Pair, pair
from ..ops.nn.attention import attention
from ..ops.nn.autocast import network_precision
from .backbone import Backbone
from .config import BackboneConfig, check_stages
from .stage import Stage, stage_drop_rates


class QuickGELU(nn.Module):
    """The approximation of GELU with which Microsoft's checkpoints were trained."""

    def forward(self, x: Tensor) -> Tensor:
        """``x`` times a sigmoid."""
        return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "quick_gelu": QuickGELU}


VARIANTS: dict[str, dict[str, Any]] = {
    "cvt_13": {"embed_dim": (64, 192, 384), "depths": (1, 2, 10), "num_heads": (1, 3, 6)},
    "cvt_21": {"embed_dim": (64, 192, 384), "depths": (1, 4, 16), "num_heads": (1, 3, 6)},
    "cvt_w24": {"embed_dim": (192, 768, 1024), "depths": (2, 2, 20), "num_heads": (3, 12, 16)}
    | {"img_size": 384, "drop_path_rate": 0.3},
    # for images of 32 and 64 pixels
    "cvt_mini_32": {"embed_dim": (64, 128, 256), "depths": (1, 3, 2), "num_heads": (1, 2, 4)}
    | {"patch_sizes": (3, 3, 3), "patch_strides": (2, 2, 2), "patch_paddings": (1, 1, 1)}
    | {"img_size": 32, "drop_path_rate": 0.0},
}


@dataclass(frozen=True)
class CvtConfig(BackboneConfig):
    """Sizes of a CvT, by stage.

    Args:
        cls_token: in which stages a class token joins the others. Pooled is the last stage's, if it has one.
        stride_kv: of the convolutions that make keys and values.
        drop_path_rate: reached at the last block of the last stage, from 0 at its first; no other stage drops.
        act_layer: ``"gelu"`` as in transformers, or ``"quick_gelu"`` as in Microsoft's training.
    """

    global_pool: str = "token"
    embed_dim: tuple[int, ...] = (64, 192, 384)
    depths: tuple[int, ...] = (1, 2, 10)
    num_heads: tuple[int, ...] = (1, 3, 6)
    cls_token: tuple[bool, ...] = (False, False, True)
    patch_sizes: tuple[int, ...] = (7, 3, 3)
    patch_strides: tuple[int, ...] = (4, 2, 2)
    patch_paddings: tuple[int, ...] = (2, 1, 1)
    kernel_qkv: int = 3
    stride_kv: int = 2
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.1
    act_layer: str = "gelu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.act_layer not in ACTIVATIONS:
            raise ValueError(f"act_layer {self.act_layer!r}: needs one of {tuple(ACTIVATIONS)}")
        check_stages(
            self.depths,
            embed_dim=self.embed_dim,
            num_heads=self.num_heads,
            cls_token=self.cls_token,
            patch_sizes=self.patch_sizes,
            patch_strides=self.patch_strides,
            patch_paddings=self.patch_paddings,
        )
        for dim, heads in zip(self.embed_dim, self.num_heads, strict=True):
            check_heads(dim, heads)

    def key_stride(self, stages: int | None = None) -> int:
        """In pixels: of what an image's sides are multiples where all stages have a whole number of keys.

        Args:
            stages: how many the network has; all if not given.
        """
        return lcm(*[step * self.stride_kv for step in accumulate(self.patch_strides[:stages], mul)])


class CvtSequence(NamedTuple):
    """Tokens as the blocks of a stage pass them on: one sequence, with the class token in front if there is one."""

    values: Float[Tensor, "B N C"]
    grid: TokenGrid
    prefix: int  # how many tokens stand nowhere


class ConvProjection(nn.Module):
    """A depthwise convolution and its norm, applied by :func:`~trueshift.layers.pool.pool_sequences`."""

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel_size, groups=dim, bias=False)
        self.bn = nn.BatchNorm2d(dim)


class CvtAttention(nn.Module):
    """Attention over all tokens, with queries, keys and values made by convolutions.

    Keys and values stand on one coarser grid, chosen by content. There are no positions, so where they stand is of no
    further interest, and a class token stays out of convolutions and of the choice.

    Shift law: the output moves with the tokens.
    """

    def __init__(self, dim: int, num_heads: int, config: CvtConfig) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = dim**-0.5  # of all channels, not of a head's
        self.stride_kv = pair(config.stride_kv)
        criterion = config.choices.at("pool", 2 * dim, self.stride_kv)
        self.reach: Pair = (config.kernel_qkv // 2, config.kernel_qkv // 2)
        self.pad_mode = config.choices.padding_mode
        self.attn_drop = config.attn_drop_rate
        self.conv_proj_q = ConvProjection(dim, config.kernel_qkv)
        self.conv_proj_k = ConvProjection(dim, config.kernel_qkv)
        self.conv_proj_v = ConvProjection(dim, config.kernel_qkv)
        self.proj_q = Linear(dim, dim, bias=config.qkv_bias)
        self.proj_k = Linear(dim, dim, bias=config.qkv_bias)
        self.proj_v = Linear(dim, dim, bias=config.qkv_bias)
        self.proj = Linear(dim, dim)
        self.criterion = criterion

    def _pooled(
        self, values: Tensor, prefix: Tensor | None, makers: Sequence[ConvProjection], stride: Pair, anchored: bool
    ) -> list[Tensor]:
        pooled, _ = pool_sequences(
            [values] * len(makers),
            [maker.conv for maker in makers],
            self.criterion,
            stride,
            self.reach,
            self.pad_mode,
            anchored,
            [maker.bn for maker in makers],
            prefix,
        )
        return pooled

    def forward(self, x: CvtSequence) -> Float[Tensor, "B N C"]:
        """The sequence, mixed."""
        # once for all three convolutions, which would compute in this type anyway
        sequence = x.values.to(network_precision(x.values))
        values = sequence[:, x.prefix :].unflatten(1, x.grid.shape)
        prefix = sequence[:, : x.prefix] if x.prefix else None
        (query,) = self._pooled(values, prefix, [self.conv_proj_q], (1, 1), x.grid.anchored)
        makers = [self.conv_proj_k, self.conv_proj_v]
        key, value = self._pooled(values, prefix, makers, self.stride_kv, x.grid.anchored)
        query, key, value = self.proj_q(query), self.proj_k(key), self.proj_v(value)
        dropped = self.attn_drop if self.training else 0.0
        return self.proj(attention(query, key, value, self.num_heads, self.scale, dropped))


class CvtBlock(nn.Module):
    """Attention and a perceptron, each behind a norm and around a skip."""

    def __init__(self, dim: int, attn: CvtAttention, config: CvtConfig, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * config.mlp_ratio), act_layer=ACTIVATIONS[config.act_layer])
        self.drop_path1 = DropPath(drop_path) if drop_path else nn.Identity()
        self.drop_path2 = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: CvtSequence) -> CvtSequence:
        """Mix tokens, then channels."""
        values = x.values + self.drop_path1(self.attn(x._replace(values=self.norm1(x.values))))
        return x._replace(values=values + self.drop_path2(self.mlp(self.norm2(values))))


class CvtStage(Stage):
    """Merge tokens, let a class token join, run the blocks.

    Shift law: ``place(stage(S t)) == S place(stage(t))``, and the class token does not change.
    """

    def __init__(self, dim: int, downsample: nn.Module, blocks: Sequence[nn.Module], cls_token: bool) -> None:
        super().__init__()
        self.downsample = downsample
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if cls_token else None
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.blocks = nn.Sequential(*blocks)

    def forward(self, tokens: Tokens) -> Tokens:
        """Tokens on a coarser grid, except in the first stage."""
        tokens = self.downsample(tokens)
        sequence, count = tokens.values.flatten(1, 2), 0
        if self.cls_token is not None:
            sequence = torch.cat([self.cls_token.expand(sequence.shape[0], -1, -1), sequence], 1)
            count = self.cls_token.shape[1]
        mixed = self.run_blocks(CvtSequence(sequence, tokens.grid, count)).values
        values = mixed[:, count:].unflatten(1, tokens.grid.shape)
        return Tokens(values, tokens.grid, mixed[:, :count] if count else None)


class Cvt(Backbone):
    """See :class:`~trueshift.models.backbone.Backbone`."""

    Config = CvtConfig
    variants = VARIANTS
    undecayed: ClassVar[tuple[str, ...]] = ("cls_token",)

    config: CvtConfig

    def __init__(self, config: CvtConfig) -> None:
        super().__init__(config)
        check_size(config.size, pair(config.key_stride()))
        choices, dims = config.choices, config.embed_dim
        self._make_tokenizer(
            dims[0], config.patch_strides[0], config.patch_sizes[0], config.patch_paddings[0], nn.LayerNorm
        )
        stages = []
        for index, (dim, heads, depth) in enumerate(zip(dims, config.num_heads, config.depths, strict=True)):
            downsample: nn.Module = nn.Identity()
            if index:
                downsample = AdaptiveConvMerge(
                    dims[index - 1],
                    dim,
                    config.patch_strides[index],
                    config.patch_sizes[index],
                    config.patch_paddings[index],
                    criterion=choices.at("merge", dim),
                    padding_mode=choices.padding_mode,
                    norm_layer=nn.LayerNorm,
                )
            last = index == len(dims) - 1
            (rates,) = stage_drop_rates(config.drop_path_rate if last else 0, [depth])
            blocks = [CvtBlock(dim, CvtAttention(dim, heads, config), config, rate) for rate in rates]
            stages.append(CvtStage(dim, downsample, blocks, config.cls_token[index]))
        self.stages = nn.ModuleList(stages)
        has_token = config.cls_token[-1]
        pool = "avg" if config.global_pool == "token" and not has_token else config.global_pool
        self._make_head(dims, list(accumulate(config.patch_strides, mul)), pool, has_token)

    @property
    def size_multiple(self) -> Pair:
        """A whole number of keys in every stage."""
        return pair(self.config.key_stride(len(self.stages)))

    def set_input_size(self, img_size: int | Pair | None = None) -> None:
        """Nothing in a CvT depends on the size of the image; only what is reported of it changes."""
        if img_size is not None:
            self._set_image_size(img_size)

    def read_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Weights of Microsoft's checkpoints and of transformers under our names."""
        return rename_cvt_keys(weights)


# -- names of the parameters elsewhere: in Microsoft's checkpoints and in transformers ---------------------------------

_MICROSOFT = (
    (r"^stage0\.patch_embed\.", "patch_embed."),
    (r"^stage(\d+)\.patch_embed\.", r"stages.\1.downsample."),
    (r"^stage(\d+)\.", r"stages.\1."),
    (r"^head\.(?!fc\.)", "head.fc."),
)
_TRANSFORMERS = (
    (r"^cvt\.", ""),
    (r"^encoder\.", ""),
    (r"^stages\.0\.embedding\.convolution_embeddings\.", "patch_embed."),
    (r"^stages\.(\d+)\.embedding\.convolution_embeddings\.", r"stages.\1.downsample."),
    (r"\.layers\.", ".blocks."),
    (r"\.attention\.attention\.convolution_projection_(\w)\w*\.convolution_projection\.", r".attn.conv_proj_\1."),
    (r"\.attention\.attention\.projection_(\w)\w*\.", r".attn.proj_\1."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"(conv_proj_\w)\.convolution\.", r"\1.conv."),
    (r"(conv_proj_\w)\.normalization\.", r"\1.bn."),
    (r"\.projection\.", ".proj."),
    (r"\.normalization\.", ".norm."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head.fc."),
)


def is_microsoft(keys: Mapping[str, Tensor]) -> bool:
    """Whether these are the names of Microsoft's own checkpoints."""
    return "stage0.patch_embed.proj.weight" in keys


def is_transformers(keys: Mapping[str, Tensor]) -> bool:
    """Whether these are the names of transformers."""
    return any(key.endswith("stages.0.embedding.convolution_embeddings.projection.weight") for key in keys)


def rename_cvt_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under our names; what has them already stays as it is."""
    rules = _MICROSOFT if is_microsoft(state) else _TRANSFORMERS if is_transformers(state) else ()
    renamed = {}
    for key, value in state.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        renamed[key] = value
    return renamed
