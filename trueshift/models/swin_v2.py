"""SwinV2, ordinary and truly shift-equivariant (A-SwinV2), under timm's parameter names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float, Int64
from timm.layers import DropPath
from timm.models.swin_transformer_v2 import checkpoint_filter_fn
from torch import Tensor, nn

from ..layers.attention import CosineWindowAttention, log_distances, window_distances
from ..layers.perceptron import Mlp
from ..ops.geometry.shift import Pair
from .config import check_stages
from .swin import V2_VARIANTS, Attention, Swin, SwinConfig


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
        check_stages(self.depths, pretrained_window_sizes=self.pretrained_window_sizes)


class SwinV2Block(nn.Module):
    """As Swin's, with the norms behind attention and perceptron, inside the skip."""

    def __init__(self, dim: int, attn: Attention, config: SwinConfig, drop_path: float) -> None:
        super().__init__()
        self.attn = attn
        self.norm1 = nn.LayerNorm(dim)
        self.drop_path1 = DropPath(drop_path) if drop_path else nn.Identity()
        self.mlp = Mlp(dim, int(dim * config.mlp_ratio), drop=config.proj_drop_rate)
        self.norm2 = nn.LayerNorm(dim)
        self.drop_path2 = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(
        self, x: Float[Tensor, "B h w C"], start: Int64[Tensor, "B 2"] | None = None
    ) -> Float[Tensor, "B h w C"]:
        """Mix within windows, which begin at ``start``, then within tokens."""
        x = x + self.drop_path1(self.norm1(self.attn(x, start)))
        return x + self.drop_path2(self.norm2(self.mlp(x)))


class SwinV2(Swin):
    """See :class:`~trueshift.models.backbone.Backbone`."""

    Config = SwinV2Config
    variants = V2_VARIANTS
    undecayed: ClassVar[tuple[str, ...]] = ("cpb_mlp", "logit_scale")
    block: ClassVar[Any] = SwinV2Block
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
        return super().attention(
            index, window, trained_window=trained if isinstance(trained, int) else trained[index], **more
        )

    def resize_window(self, attn: Any, window: Pair) -> None:
        """The network of distances stays as it is; it is asked about others."""
        if attn.window_size != window:
            device = attn.qkv.weight.device
            attn.relative_coords_table = log_distances(window, attn.trained_window).to(attn.relative_coords_table)
            attn.relative_position_index = window_distances(window).to(device)
            attn.window_size = window

    def read_weights(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Weights under timm's names, as timm reads them."""
        return checkpoint_filter_fn(dict(weights), self)
