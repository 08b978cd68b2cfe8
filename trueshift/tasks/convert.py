"""From a segmentation network that exists to its shift-equivariant twin with the same weights, and back."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from torch import Tensor, nn

from ..models import convert, hub
from ..models.backbone import Backbone
from ..models.registry import create_model
from ..utils.wrappers import unwrapped
from .upernet import UperNet


@overload
def adapt(model: UperNet, **changes: Any) -> UperNet: ...
@overload
def adapt(model: Backbone | Mapping[str, Tensor], **changes: Any) -> Backbone: ...
@overload
def adapt(model: nn.Module, **changes: Any) -> nn.Module: ...
def adapt(model: nn.Module | Mapping[str, Tensor], **changes: Any) -> nn.Module:
    """The shift-equivariant twin of a classifier or a segmentation network, with its weights.

    For classifiers and feature networks (Swin, CvT, MViTv2; ViT, DINO, CLIP, Hiera, torchvision's and transformers',
    which keep their class) see :func:`trueshift.models.convert.adapt`. A UperNet, ours or of
    segmentation_models_pytorch, keeps its decoder's weights; pooling and interpolation then follow the content's frame,
    and logits are enlarged by half-pixel centres. Outputs differ from its own, also on images that did not move;
    fine-tuning restores accuracy.

    Args:
        model: what :func:`trueshift.models.convert.adapt` takes, a :class:`~trueshift.UperNet`, or a UPerNet of
            segmentation_models_pytorch on a Swin, SwinV2 or MViTv2 of timm's.
        changes: fields of the backbone's configuration to change.

    Shift law: logits of the twin move with the image, bit for bit.

    >>> import timm
    >>> ordinary = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1), embed_dim=24)
    >>> model = trueshift.adapt(ordinary).eval()
    >>> image = torch.rand(1, 3, 224, 224)
    >>> torch.equal(model(image), model(image.roll(1, 3)))
    True
    >>> vit = trueshift.adapt(timm.create_model("vit_tiny_patch16_224", depth=1)).eval()
    >>> torch.equal(vit(image), vit(image.roll(1, 3)))
    True
    """
    model = unwrapped(model)
    if _is_smp(model):
        model = from_smp(model)
    if not isinstance(model, UperNet):
        return convert.adapt(model, **changes)
    config = convert.twin_config(model.encoder.config, adaptive=True, **changes)
    return _rebuilt(model, config, head_align_corners=False)


@overload
def revert(model: UperNet, **changes: Any) -> UperNet: ...
@overload
def revert(model: Backbone, **changes: Any) -> Backbone: ...
@overload
def revert(model: nn.Module, **changes: Any) -> nn.Module: ...
def revert(model: nn.Module, **changes: Any) -> nn.Module:
    """The ordinary network with the same weights: see :func:`trueshift.models.convert.revert`.

    >>> ordinary = trueshift.create_model("swin_mini")
    >>> again = trueshift.revert(trueshift.adapt(ordinary))
    >>> all(torch.equal(one, other) for one, other in zip(again.parameters(), ordinary.parameters()))
    True
    """
    model = unwrapped(model)
    if not isinstance(model, UperNet):
        return convert.revert(model, **changes)
    return _rebuilt(model, convert.twin_config(model.encoder.config, adaptive=False, **changes))


def _rebuilt(model: UperNet, config: Any, **head: Any) -> UperNet:
    """A network with another configuration of its backbone and copies of all weights."""
    encoder = type(model.encoder)(replace(config, num_classes=0))
    encoder.pretrained_cfg = dict(model.encoder.pretrained_cfg)
    twin = UperNet(encoder, model.num_classes, **{**model.own_arguments(), **head})
    weights = convert.fitting_criteria(model.state_dict(), model.encoder.config, config)
    convert.copy_weights(model, weights, twin)
    twin.pretrained_cfg = dict(model.pretrained_cfg)
    return twin


# -- segmentation_models_pytorch --------------------------------------------------------------------------------------


def _our_name(key: str) -> str:
    """``encoder.layers.0.`` for ``encoder.model.layers_0.`` (Swin), ``encoder.`` for ``encoder.model.model.``."""
    key = re.sub(r"^encoder\.model\.(model\.)?", "encoder.", key)
    return re.sub(r"^encoder\.(layers|stages)_(\d+)\.", r"encoder.\1.\2.", key)


def from_smp(source: Any, backbone: str | None = None, auxiliary: bool = False) -> UperNet:
    """The ordinary UperNet with the weights of one of segmentation_models_pytorch, all of them or none.

    It gives the same logits, on images whose size ours accepts.

    Args:
        source: a UPerNet of segmentation_models_pytorch; its ``state_dict``; or a folder or Hub repository as its
            ``save_pretrained`` writes it, such as ``"smp-hub/upernet-swin-tiny"``.
        backbone: which of ours the encoder is, if the source does not name it.
        auxiliary: with a new auxiliary head, for fine-tuning; theirs have none.
    """
    source = unwrapped(source)
    name, state = _named_state(source)
    backbone = backbone or name
    if backbone is None:
        raise ValueError("a state_dict does not name its encoder: needs backbone, e.g. 'swin_tiny_patch4_window7_224'")
    weights = {_our_name(key): value for key, value in state.items()}
    for key in ("decoder.fusion_block.0.weight", "segmentation_head.0.weight", "encoder.patch_embed.proj.weight"):
        if key not in weights:
            needs = "needs all of one of segmentation_models_pytorch on timm's Swin, SwinV2 or MViTv2, by its names"
            raise ValueError(f"these weights, {next(iter(state), 'none')!r} and so on, have no {key}: {needs}")
    model = UperNet(
        create_model(backbone, in_chans=weights["encoder.patch_embed.proj.weight"].shape[1], **_windows(source)),
        weights["segmentation_head.0.weight"].shape[0],
        channels=weights["decoder.fusion_block.0.weight"].shape[0],
        auxiliary=auxiliary,
        head_align_corners=True,
    )
    head = weights["segmentation_head.0.weight"]
    model.eval().to(head.device, head.dtype)
    fresh = {key: value for key, value in model.state_dict().items() if key.startswith("auxiliary_head.")}
    convert.copy_weights(source, {**fresh, **weights}, model)
    return model


def _named_state(source: Any) -> tuple[str | None, Mapping[str, Tensor]]:
    """The name of the encoder, where it is known, and all weights."""
    if _is_smp(source):
        parts = [part for part in source.segmentation_head.modules() if not list(part.children())]
        odd = [type(part).__name__ for part in parts if not isinstance(part, nn.Conv2d | nn.Upsample | nn.Identity)]
        scales: list[Any] = [part.scale_factor for part in parts if isinstance(part, nn.Upsample)]
        _check_head(", ".join(odd), *scales or [1])
        return _backbone_of(source.name), source.state_dict()
    if isinstance(source, Mapping):
        return None, source
    if isinstance(source, str | Path):
        config = hub.read_json(hub.fetch(source, hub.CONFIG))
        _check_head(str(config.get("activation") or "").replace("identity", ""), config.get("upsampling", 4))
        return _backbone_of(str(config.get("encoder_name"))), hub.read_weights(hub.fetch(source, hub.WEIGHTS))
    raise TypeError(f"a {type(source).__name__}: needs a UPerNet of segmentation_models_pytorch, its weights or folder")


def _windows(source: Any) -> dict[str, Any]:
    """Windows of a Swin or SwinV2 that its name does not tell, and its size where that cut them down."""
    model: Any = source.encoder.model if _is_smp(source) else nn.Module()
    stages: list[Any] = [part for name, part in model.named_children() if name.startswith("layers_")]
    windows = [max(stage.blocks[0].attn.window_size) for stage in stages]
    if not windows:
        return {}
    return {"window_size": windows[0], **({"img_size": model.patch_embed.img_size} if len(set(windows)) > 1 else {})}


def _check_head(activation: str, upsampling: float) -> None:
    """Refuse what ours does not do after its classifier."""
    if activation or upsampling != 4:
        found = f"this UPerNet has activation={activation or None} and upsampling={upsampling:g}"
        raise ValueError(f"{found}: needs activation=None and upsampling=4, since ours gives logits for every pixel")


def _backbone_of(encoder: str) -> str:
    """``upernet-tu-swin_tiny_patch4_window7_224.ms_in1k`` is our ``swin_tiny_patch4_window7_224``."""
    return encoder.removeprefix("upernet-").removeprefix("tu-").partition(".")[0]


def _is_smp(model: Any) -> bool:
    kind = type(model)  # without importing segmentation_models_pytorch
    return kind.__name__ == "UPerNet" and kind.__module__.startswith("segmentation_models_pytorch")
