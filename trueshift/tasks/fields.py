"""Fields in, fields out: a U-shaped network on any backbone of ours; truly shift-equivariant on an adaptive one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..layers.linear import Linear
from ..models.backbone import Backbone
from ..models.config import PLACES
from ..models.foreign import library_of
from ..models.hub import BUILDERS
from ..models.stage import Mlp, init_linear
from ..ops.geometry.grid import Tokens
from ..ops.geometry.periodic import repeated
from ..ops.geometry.resample import start_at
from ..ops.geometry.shift import IMAGE_DIMS, Pair, circular_shift, pair
from ..ops.nn.conv import conv_tokens
from ..utils.wrappers import unwrapped
from .adapted import LIBRARY, AdaptedEncoder
from .dense import DenseModel, own_config, without_classifier

ARCHITECTURE = "fieldnet"  # in config.json


@dataclass(frozen=True)
class FieldNetConfig:
    """Arguments of the decoder.

    Args:
        residual: predict the change of the input, as is usual for a step in time; needs as many channels out as in.
        decoder_depth: blocks on each grid of the decoder.
        kernel_size: of their depthwise convolutions.
    """

    out_chans: int
    residual: bool = False
    decoder_depth: int = 2
    kernel_size: int = 7

    def __post_init__(self) -> None:
        for name in ("out_chans", "decoder_depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: needs at least 1")
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size {self.kernel_size}: needs an odd number, e.g. 7")


class SplitTokens(nn.Module):
    """A linear layer that splits each token into the patch it was merged from.

    Shift law: the patches move with the tokens.
    """

    def __init__(self, dim: int, out_dim: int, patch: Pair) -> None:
        super().__init__()
        self.patch = patch
        self.expand = Linear(dim, patch[0] * patch[1] * out_dim)

    def forward(self, x: Float[Tensor, "B h w C"]) -> Float[Tensor, "B H W D"]:
        """Values of finer tokens or pixels, from the start of the first patch on."""
        parts = self.expand(x).unflatten(3, (*self.patch, -1))  # B h w rows columns D
        return parts.transpose(2, 3).flatten(3, 4).flatten(1, 2)


class ConvBlock(nn.Module):
    """A depthwise convolution, a norm and a perceptron around a skip (ConvNeXt's block).

    Shift law: the output moves with the tokens, to rounding; with circular padding.
    """

    def __init__(self, dim: int, kernel_size: int, padding_mode: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, kernel_size, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, 4 * dim)
        self.reach, self.pad_mode = pair(kernel_size // 2), padding_mode

    def forward(self, x: Float[Tensor, "B h w C"]) -> Float[Tensor, "B h w C"]:
        """Mix tokens, then channels."""
        mixed = conv_tokens(x, self.conv, (1, 1), self.reach, self.pad_mode)
        return x + self.mlp(self.norm(mixed))


class FieldDecoder(nn.Module):
    """From the tokens of all stages to a value for each pixel, from coarse to fine with skip connections.

    On each grid tokens are split into those they were merged from, as the recorded grids say, and fused with the
    encoder's.

    Shift law, on circles: the values do not change when the field moves, bit for bit after an anchored backbone; they
    start at the origin of the coarsest grid, which moves with it.

    Args:
        dims: channels of the stages, from fine to coarse.
        strides: pixels from one token to the next, by stage.
        padding_mode: of convolutions, ``"circular"`` or ``"zeros"``.
        moving: whether grids may start elsewhere than at the first pixel.
    """

    def __init__(
        self, dims: Sequence[int], strides: Sequence[int], config: FieldNetConfig, padding_mode: str, moving: bool
    ) -> None:
        super().__init__()
        self.moving = moving
        self.skip_norms = nn.ModuleList(nn.LayerNorm(dim) for dim in dims)
        levels = range(len(dims) - 1)
        self.splits = nn.ModuleList(
            SplitTokens(dims[at + 1], dims[at], pair(strides[at + 1] // strides[at])) for at in levels
        )
        self.fusions = nn.ModuleList(Linear(2 * dims[at], dims[at]) for at in levels)
        kernel, count = config.kernel_size, config.decoder_depth
        self.blocks = nn.ModuleList(
            nn.Sequential(*(ConvBlock(dims[at], kernel, padding_mode) for _ in range(count))) for at in levels
        )
        self.norm = nn.LayerNorm(dims[0])
        self.head = SplitTokens(dims[0], config.out_chans, pair(strides[0]))

    def forward(self, features: Sequence[Tokens]) -> Float[Tensor, "B H W D"]:
        """Values of all pixels, from the start of the coarsest grid on."""
        origin = features[-1].grid.origin
        x = self.skip_norms[-1](features[-1].values)
        for at in reversed(range(len(self.splits))):
            skip = start_at(features[at], origin) if self.moving else features[at]
            x = self.fusions[at](torch.cat([self.splits[at](x), self.skip_norms[at](skip.values)], 3))
            x = self.blocks[at](x)
        return self.head(self.norm(x))


class FieldNet(DenseModel):
    """Encoder and decoder for dense regression on periodic fields, such as a step of a simulation or of the weather.

    Shift law: ``net(S x) == S net(x)``, bit for bit, on an anchored backbone, as adaptive ones are, and in evaluation
    mode; on one with ``circular="width"`` for shifts of columns. On another ordinary backbone it is the ordinary
    network, with circular padding. In a compiled or captured graph the law holds up to a period of the field, where it
    has one (:mod:`trueshift.ops.geometry.periodic`).

    Args:
        backbone: the name of one of ours, ``"transformers/swin"`` or ``"transformers/swinv2"``; a
            :class:`~trueshift.models.backbone.Backbone`, or what :func:`~trueshift.adapt` made of transformers'
            ``SwinModel`` or ``Swinv2Model``, which becomes part of this network and loses its classifier and last norm.
        in_chans: channels of the input.
        out_chans: channels of the output; as many as of the input by default.
        arguments: fields of :class:`FieldNetConfig`, such as ``residual``; and, with a name, those of
            :func:`~trueshift.create_model`, such as ``img_size``, ``embed_dim`` or ``grid_drop_rate``, or for
            transformers' those of its configuration and of :func:`~trueshift.adapt`.

    >>> net = trueshift.FieldNet("a_swinv2_mini", in_chans=2, residual=True).eval()
    >>> field = torch.randn(1, 2, 32, 32)
    >>> torch.equal(net(field.roll((3, 1), (2, 3))), net(field).roll((3, 1), (2, 3)))
    True
    """

    num_classes = 0
    architecture_name, count = ARCHITECTURE, "in_chans"

    def __init__(
        self, backbone: str | nn.Module, in_chans: int = 1, out_chans: int | None = None, **arguments: Any
    ) -> None:
        super().__init__()
        out_chans = in_chans if out_chans is None else out_chans
        self.config = own_config(FieldNetConfig, out_chans, arguments)
        if self.config.residual and out_chans != in_chans:
            raise ValueError(f"residual with {in_chans} channels in and {out_chans} out: needs as many out as in")
        self.in_chans, self.out_chans = in_chans, out_chans
        self.encoder = _encoder(backbone, in_chans, arguments)
        choices, stages = self.encoder.config, self.encoder.feature_info
        self.adaptive = self.framed = choices.adaptive(*PLACES) or choices.anchored
        dims, strides = [stage["num_chs"] for stage in stages], [stage["reduction"] for stage in stages]
        self.decoder = FieldDecoder(dims, strides, self.config, choices.padding_mode, self.adaptive)
        self.decoder.apply(init_linear)
        self.pretrained_cfg: dict[str, Any] = {}

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        """The fields that follow from ``x``, in the frame of ``x``."""
        repeats = None if self.training else self.whether_repeating(x)
        features = self.encoder.features(x)
        out = self.decoder(features).permute(0, 3, 1, 2)
        if self.adaptive:
            grid = features[-1].grid
            moved = circular_shift(out, -grid.origin, IMAGE_DIMS)
            out = repeated(moved, x, grid.origin, grid.fixed_rows, repeats)
        return x + out if self.config.residual else out

    @property
    def circular(self) -> str:
        """Along which axes fields go around: ``"both"``, or ``"width"`` where rows do not."""
        choices = self.encoder.config
        return "width" if choices.fixed_rows or choices.padding_mode == "circular_width" else "both"


def _encoder(backbone: Any, in_chans: int, arguments: dict[str, Any]) -> Backbone | AdaptedEncoder:
    """The backbone of a FieldNet, by name or as it is given."""
    if isinstance(backbone, str):
        arguments["in_chans"] = in_chans
        if "border" not in arguments:
            arguments.setdefault("padding", "circular")
        if backbone.startswith(LIBRARY):
            return AdaptedEncoder.rebuilt(backbone, **arguments)
    elif library_of(unwrapped(backbone)) and not arguments:
        return AdaptedEncoder(backbone, in_chans, "circular")
    elif isinstance(backbone, Backbone) and backbone.in_chans != in_chans:
        raise ValueError(f"in_chans {in_chans}: needs the {backbone.in_chans} of the backbone")
    return without_classifier(backbone, False, arguments)


BUILDERS[ARCHITECTURE] = FieldNet.build
