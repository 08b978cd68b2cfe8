"""Sizes of MViTv2: its configuration, the named variants, and the shape of every block."""

from dataclasses import dataclass
from math import lcm
from typing import Any, NamedTuple

from ..ops.geometry.shift import Pair, pair
from .config import BackboneConfig, check_stages
from .position_tables import TablePlace

VARIANTS: dict[str, dict[str, Any]] = {
    "mvitv2_tiny": {"depths": (1, 2, 5, 2)},
    "mvitv2_small": {"depths": (1, 2, 11, 2)},
    "mvitv2_base": {"depths": (2, 3, 16, 3)},
    "mvitv2_large": {"depths": (2, 6, 36, 4), "embed_dim": (144, 288, 576, 1152), "num_heads": (2, 4, 8, 16)}
    | {"expand_attn": False},
    # for images of 32 and 64 pixels
    "mvitv2_mini_32": {"depths": (1, 2, 2), "embed_dim": (64, 128, 256), "num_heads": (1, 2, 4), "img_size": 32}
    | {"stride_q": (1, 2, 2), "stride_kv": (4, 2, 1), "patch_kernel": 3, "patch_stride": 2, "patch_padding": 1},
}


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
        check_stages(self, "embed_dim", "num_heads", "stride_q", "stride_kv")

    def size_multiple(self) -> int:
        """What an image's sides are multiples of where every block has a whole number of queries and of keys."""
        needed, stride = [], self.patch_stride
        for stride_q, stride_kv, depth in zip(self.stride_q, self.stride_kv, self.depths, strict=True):
            needed += [stride * stride_q, stride * stride_kv]
            stride *= stride_q
            needed += [stride * stride_kv] if depth > 1 else []
        return lcm(*needed)


class BlockShape(NamedTuple):
    """Channels, strides and steps around the image of one block."""

    dim: int
    attn_dim: int
    out_dim: int
    heads: int
    stride: int  # of its tokens, in pixels
    stride_q: Pair
    stride_kv: Pair
    steps: Pair  # of the finer of queries and keys, around the image

    def place(self, axis: int, size: Pair) -> TablePlace:
        """The distances in its table of rows (0) or columns (1), on images of a size."""
        key_step = self.stride_kv[axis] // min(self.stride_q[axis], self.stride_kv[axis])
        return TablePlace(axis, self.steps[axis], key_step, size[axis] // self.steps[axis])


def block_shapes(config: MvitV2Config) -> list[list[BlockShape]]:
    """The shape of every block, by stage."""
    stages, dim, stride, last = [], config.embed_dim[0], config.patch_stride, len(config.depths) - 1
    for index, depth in enumerate(config.depths):
        grown = config.embed_dim[index if config.expand_attn else min(index + 1, last)]
        stride_kv = config.stride_kv[index]
        blocks = []
        for number in range(depth):
            stride_q = config.stride_q[index] if number == 0 else 1
            out_dim = grown if config.expand_attn or number == depth - 1 else dim
            attn_dim = out_dim if config.expand_attn else dim
            fine = stride * min(stride_q, stride_kv)
            steps = (config.size[0] // fine, config.size[1] // fine)
            strides = (stride, pair(stride_q), pair(stride_kv))
            blocks.append(BlockShape(dim, attn_dim, out_dim, config.num_heads[index], *strides, steps))
            dim, stride = out_dim, stride * stride_q
        stages.append(blocks)
    return stages
