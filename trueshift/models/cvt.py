"""CvT, ordinary and truly shift-equivariant (A-CvT), close to the parameter names of Microsoft's own checkpoints."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm
from operator import mul
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from timm.layers import calculate_drop_path_rates
from timm.layers.activations import QuickGELU
from torch import Tensor, nn

from ..layers.checks import check_size
from ..layers.linear import Linear
from ..layers.merge import AdaptiveConvMerge
from ..layers.pool import pool_sequences
from ..ops.geometry.grid import TokenGrid, Tokens
from ..ops.geometry.shift import Pair, pair
from ..ops.nn.attention import attention
from ..ops.nn.autocast import network_precision
from .backbone import Backbone
from .config import BackboneConfig, check_stages
from .stage import Block, Mlp, Stage

# Microsoft's checkpoints were trained with an approximation
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
        per_stage = ("embed_dim", "num_heads", "cls_token", "patch_sizes", "patch_strides", "patch_paddings")
        check_stages(self, *per_stage)

    def key_stride(self, stages: int | None = None) -> int:
        """What an image's sides must be multiples of, for a whole number of keys in all or the first ``stages``."""
        return lcm(*[step * self.stride_kv for step in accumulate(self.patch_strides[:stages], mul)])


class ConvProjection(nn.Module):
    """A depthwise convolution and its norm, applied by :func:`~trueshift.layers.pool.pool_sequences`."""

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel_size, groups=dim, bias=False)
        self.bn = nn.BatchNorm2d(dim)


class CvtAttention(nn.Module):
    """Attention over all tokens, with queries, keys and values made by convolutions.

    Keys and values lie on one coarser grid, chosen by content. There are no positions, so where they lie no longer
    matters, and a class token takes no part in convolutions or the choice.

    Shift law: the output moves with the tokens.
    """

    def __init__(self, dim: int, num_heads: int, config: CvtConfig) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = dim**-0.5  # of all channels, not of a head's
        self.stride_kv = pair(config.stride_kv)
        self.reach: Pair = (config.kernel_qkv // 2, config.kernel_qkv // 2)
        self.pad_mode = config.padding_mode
        self.attn_drop = config.attn_drop_rate
        for name in "qkv":
            setattr(self, f"conv_proj_{name}", ConvProjection(dim, config.kernel_qkv))
        for name in "qkv":
            setattr(self, f"proj_{name}", Linear(dim, dim, bias=config.qkv_bias))
        self.proj = Linear(dim, dim)
        self.criterion = config.at("pool", 2 * dim, self.stride_kv)

    def forward(self, x: Float[Tensor, "B N C"], grid: TokenGrid, prefix: int) -> Float[Tensor, "B N C"]:
        """Attend over a sequence; its first ``prefix`` tokens are not on the grid."""
        x = x.to(network_precision(x))  # once for all three convolutions
        values, class_token = x[:, prefix:].unflatten(1, grid.shape), x[:, :prefix] if prefix else None

        def projected(names: str, stride: Pair) -> list[Tensor]:
            makers = [getattr(self, f"conv_proj_{name}") for name in names]
            convs, norms = [maker.conv for maker in makers], [maker.bn for maker in makers]
            common = (self.criterion, stride, self.reach, grid, self.pad_mode, norms, class_token)
            pooled, _ = pool_sequences([values] * len(makers), convs, *common)
            return [getattr(self, f"proj_{name}")(part) for name, part in zip(names, pooled, strict=True)]

        (query,), (key, value) = projected("q", (1, 1)), projected("kv", self.stride_kv)
        dropped = self.attn_drop if self.training else 0.0
        return self.proj(attention(query, key, value, self.num_heads, self.scale, dropped))


class CvtStage(Stage):
    """Merge tokens, let a class token join, run the blocks.

    Shift law: ``place(stage(S t)) == S place(stage(t))``, and the class token does not change.
    """

    downsample: nn.Module

    def __init__(self, dim: int, downsample: nn.Module, blocks: Sequence[nn.Module], cls_token: bool) -> None:
        super().__init__(blocks, downsample=downsample)
        self.cls_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=0.02)) if cls_token else None

    def forward(self, tokens: Tokens) -> Tokens:
        """Tokens on a coarser grid, except in the first stage."""
        tokens = self.downsample(tokens)
        sequence, count = tokens.values.flatten(1, 2), 0
        if self.cls_token is not None:
            sequence = torch.cat([self.cls_token.expand(sequence.shape[0], -1, -1), sequence], 1)
            count = self.cls_token.shape[1]
        mixed = self.run_blocks(sequence, tokens.grid, count)
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
        dims = config.embed_dim
        kernel, padding = config.patch_sizes[0], config.patch_paddings[0]
        self._make_tokenizer(
            dims[0], config.patch_strides[0], kernel_size=kernel, padding=padding, norm_layer=nn.LayerNorm
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
                    criterion=config.at("merge", dim),
                    padding_mode=config.padding_mode,
                    norm_layer=nn.LayerNorm,
                )
            last = index == len(dims) - 1
            rates: Any = calculate_drop_path_rates(config.drop_path_rate if last else 0, depth)
            hidden, act_layer = int(dim * config.mlp_ratio), ACTIVATIONS[config.act_layer]
            blocks = [
                Block(dim, CvtAttention(dim, heads, config), Mlp(dim, hidden, act_layer=act_layer), rate)
                for rate in rates
            ]
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
