"""From a network that exists to its shift-equivariant twin with the same weights, and back."""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from timm.models.mvitv2 import MultiScaleAttention, MultiScaleVit
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import Tensor, nn

from ..utils.deprecation import renamed_arguments
from .backbone import Backbone
from .cvt import Cvt, CvtConfig, is_microsoft, is_transformers, rename_cvt_keys
from .mvit_v2 import MvitV2, MvitV2Config
from .swin import Swin, SwinConfig
from .swin_v2 import SwinV2, SwinV2Config

SUPPORTED = (
    "timm's SwinTransformer, SwinTransformerV2 and MultiScaleVit (MViTv2, with convolutional pooling and relative "
    "positions), transformers' CvtForImageClassification, a CvT state_dict with Microsoft's names, and trueshift's own "
    "models; for any other image model there is trueshift.canonicalize"
)


def adapt(model: nn.Module | Mapping[str, Tensor], **changes: Any) -> Backbone:
    """The shift-equivariant twin of a network, with its weights.

    Takes any size and number of classes; dtype, device, training mode and which parameters are trained stay the same.
    The network given is not touched. Outputs differ from its own, also on images that did not move: windows, patches
    and keys stand elsewhere now. Accuracy follows with some fine-tuning, as the paper reports.

    Position tables stay as they are: Swin's are only read within windows, MViTv2's linear ones are read at the
    shortest signed distance.

    Args:
        model: one of timm's SwinTransformer, SwinTransformerV2, MultiScaleVit; transformers'
            CvtForImageClassification; a state_dict of Microsoft's CvT; or one of ours.
        changes: fields of the configuration to set otherwise, such as ``criterion``, ``anchor`` or ``feature_frame``.

    Shift law: logits of the twin do not change when the image moves, bit for bit.
    """
    family, config, state = _read(model)
    return _rebuild(model, family, twin_config(config, adaptive=True, **changes), state)


def revert(model: Backbone, **changes: Any) -> Backbone:
    """The ordinary network with the same weights, bit for bit: the criterion is ``"fixed"`` everywhere.

    Parameters of a learned criterion have no place there and are left out. Position tables that were made for the
    circle (an MViTv2 that was adaptive from the start) are still read circularly.

    Args:
        changes: fields of the configuration to set otherwise: ``padding="circular"`` gives the paper's baseline for
            circular shifts.
    """
    if not isinstance(model, Backbone):
        raise TypeError(f"a {type(model).__name__} cannot be reverted: needs one of trueshift's own models")
    family, config, state = _read(model)
    return _rebuild(model, family, twin_config(config, adaptive=False, **changes), state)


@renamed_arguments(align="feature_frame")
def twin_config(config: Any, adaptive: bool, **changes: Any) -> Any:
    """The configuration of a network's adaptive or ordinary twin."""
    changes = {"criterion": "max_norm" if adaptive else "fixed", "anchor": None, "padding": None, **changes}
    if isinstance(config, MvitV2Config) and "positions" not in changes:
        of_linear_tables = "shortest" if adaptive else "linear"
        changes["positions"] = "circular" if config.choices.position_mode == "circular" else of_linear_tables
    return replace(config, **changes)


def _read(model: Any) -> tuple[type[Backbone], Any, dict[str, Tensor]]:
    """Family, configuration and weights of a network, in our terms."""
    if isinstance(model, Backbone):
        config = replace(model.config, num_classes=model.num_classes, global_pool=model.global_pool)
        return type(model), config, without_criteria(model.state_dict())
    if isinstance(model, Mapping):
        if is_microsoft(model):
            state = rename_cvt_keys(model)
            return Cvt, _config_of_cvt_weights(state), state
        raise TypeError(f"a state_dict with keys like {next(iter(model), '')!r} cannot be adapted: needs {SUPPORTED}")
    for kind, family, read in _READERS:
        if isinstance(model, kind):
            return family, read(model), dict(model.state_dict())
    state = model.state_dict() if isinstance(model, nn.Module) else {}
    if type(model).__name__ == "CvtForImageClassification" and is_transformers(state):  # without importing transformers
        return Cvt, _config_of_transformers_cvt(model), rename_cvt_keys(state)
    raise TypeError(f"a {type(model).__name__} cannot be adapted: needs {SUPPORTED}")


def without_criteria(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the network itself."""
    return {key: value for key, value in state.items() if "criterion." not in key}


def copy_weights(source: Any, state: Mapping[str, Tensor], twin: nn.Module) -> None:
    """Copies of the weights, on their device; a twin of a module is also trained, or not, in the same parts.

    Args:
        source: the module that ``state`` was taken from, or anything else.
        state: all weights but the criteria's, under the twin's names.
    """
    twin.to(next(iter(state.values())).device)
    criteria = {key: value for key, value in twin.state_dict().items() if "criterion." in key}
    copies = {key: value.detach().clone() for key, value in state.items()}
    try:
        twin.load_state_dict({**criteria, **copies}, strict=True, assign=True)
    except RuntimeError as error:
        raise ValueError(f"the weights do not fit a {type(twin).__name__}: {error}") from error
    if not isinstance(source, nn.Module):
        return
    twin.train(source.training)
    # names differ between packages, storage does not
    trained = {value.data_ptr() for value in source.parameters() if value.requires_grad}
    frozen = {value.data_ptr() for value in source.parameters()} - trained
    for name, parameter in twin.named_parameters():
        if name in state and state[name].data_ptr() in frozen:
            parameter.requires_grad_(False)


def _rebuild(source: Any, family: type[Backbone], config: Any, state: Mapping[str, Tensor]) -> Backbone:
    """A new network with copies of the weights, in the mode of the one it was made from."""
    twin = family(config)
    copy_weights(source, state, twin)
    if isinstance(source, nn.Module):
        twin.set_grad_checkpointing(any(getattr(part, "grad_checkpointing", False) for part in source.modules()))
    twin.pretrained_cfg = {**deepcopy(getattr(source, "pretrained_cfg", None) or {}), "architecture": twin.architecture}
    twin.record_input_size()
    return twin


def _refuse(condition: bool, kind: str, reason: str) -> None:
    if condition:
        raise ValueError(f"this {kind} cannot be adapted: {reason}")


def _drop_path(blocks: list[Any]) -> float:
    return max(float(getattr(block.drop_path1, "drop_prob", 0.0) or 0.0) for block in blocks)


def _swin_fields(model: Any) -> dict[str, Any]:
    """What both Swins have in common in timm."""
    kind = type(model).__name__
    stages = [stage.blocks for stage in model.layers]
    first = stages[0][0]
    dims = [blocks[0].norm1.normalized_shape[0] for blocks in stages]
    patch = model.patch_embed.patch_size
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    _refuse(dims != [dims[0] * 2**index for index in range(len(dims))], kind, f"channels {dims} do not double")
    _refuse(patch[0] != patch[1], kind, f"its patches of {patch} are not square")
    _refuse(first.attn.qkv.out_features != 3 * dims[0], kind, "its heads are narrower or wider than its channels")
    _refuse(any(norm.eps != 1e-5 for norm in norms), kind, "its norms have another epsilon than 1e-5")
    _refuse(not isinstance(model.patch_embed.norm, nn.LayerNorm), kind, "its patch embedding has no LayerNorm")
    _refuse(type(first.mlp.act).__name__ != "GELU", kind, "its activation is not GELU")
    fields = {
        "img_size": model.patch_embed.img_size,
        "in_chans": model.patch_embed.proj.in_channels,
        "num_classes": model.num_classes,
        "global_pool": model.head.global_pool.pool_type,  # the attribute of the network itself is not kept up to date
        "patch_size": patch[0],
        "embed_dim": dims[0],
        "depths": tuple(map(len, stages)),
        "num_heads": tuple(blocks[0].attn.num_heads for blocks in stages),
        "mlp_ratio": first.mlp.fc1.out_features / dims[0],
        "drop_rate": model.head.drop.p,
        "proj_drop_rate": first.attn.proj_drop.p,
        "attn_drop_rate": first.attn.attn_drop.p,
        "drop_path_rate": _drop_path([block for blocks in stages for block in blocks]),
    }
    windows = [tuple(blocks[0].attn.window_size) for blocks in stages]
    one_for_all = SwinConfig(window_size=max(windows[0]), **fields)
    same = one_for_all.windows() == windows
    return {**fields, "window_size": one_for_all.window_size if same else tuple(windows)}


def _config_of_swin(model: Any) -> SwinConfig:
    return SwinConfig(qkv_bias=model.layers[0].blocks[0].attn.qkv.bias is not None, **_swin_fields(model))


def _config_of_swin_v2(model: Any) -> SwinV2Config:
    attentions = [stage.blocks[0].attn for stage in model.layers]
    return SwinV2Config(
        qkv_bias=attentions[0].q_bias is not None,
        pretrained_window_sizes=tuple(tuple(attn.pretrained_window_size) for attn in attentions),
        **_swin_fields(model),
    )


def _config_of_mvit_v2(model: Any) -> MvitV2Config:
    kind = type(model).__name__
    blocks = [stage.blocks for stage in model.stages]
    first, proj = blocks[0][0], model.patch_embed.proj
    _refuse(model.pos_embed is not None, kind, "it adds absolute positions to its tokens")
    _refuse(not isinstance(first.attn, MultiScaleAttention), kind, "it pools before it projects (pool_first)")
    _refuse(
        first.attn.mode != "conv", kind, f"it pools by {first.attn.mode!r}, not by convolutions shared by the heads"
    )
    _refuse(first.attn.rel_pos_type != "spatial", kind, "it has no relative positions")
    _refuse(any(part.attn.pool_q is None for stage in blocks for part in stage), kind, "it has blocks without pooling")
    stride_q = tuple(stage[0].attn.pool_q.stride[0] for stage in blocks)
    stride_kv = tuple(stage[0].attn.pool_k.stride[0] for stage in blocks)
    steps = (first.attn.rel_pos_h.shape[0] + 1) // 2
    if model.expand_attn:
        dims = tuple(stage[0].dim_out for stage in blocks)
    else:
        dims = (proj.out_channels, *(stage[-1].dim_out for stage in blocks[:-1]))
    return MvitV2Config(
        img_size=steps * proj.stride[0] * min(stride_q[0], stride_kv[0]),
        in_chans=proj.in_channels,
        num_classes=model.num_classes,
        global_pool=model.global_pool,
        drop_rate=model.drop_rate,
        drop_path_rate=_drop_path([block for stage in blocks for block in stage]),
        criterion="fixed",
        embed_dim=dims,
        depths=tuple(model.depths),
        num_heads=tuple(stage[0].attn.num_heads for stage in blocks),
        stride_q=stride_q,
        stride_kv=stride_kv,
        kernel_qkv=first.attn.pool_q.kernel_size[0],
        patch_kernel=proj.kernel_size[0],
        patch_stride=proj.stride[0],
        patch_padding=proj.padding[0],
        mlp_ratio=first.mlp.fc1.out_features / first.mlp.fc1.in_features,
        qkv_bias=first.attn.qkv.bias is not None,
        expand_attn=model.expand_attn,
        residual_pooling=first.attn.residual_pooling,
        use_cls_token=model.cls_token is not None,
        norm_eps=model.norm.eps,
    )


def _config_of_transformers_cvt(model: Any) -> CvtConfig:
    kind, config = "CvtForImageClassification", model.config

    def same(name: str) -> Any:
        """The one value of a setting that transformers allows to differ by stage."""
        values = getattr(config, name)
        _refuse(len(set(values)) != 1, kind, f"{name} {list(values)} differs between stages")
        return values[0]

    method = same("qkv_projection_method")
    _refuse(method != "dw_bn", kind, f"its projection is {method!r}, not 'dw_bn'")
    _refuse(same("stride_q") != 1, kind, "its queries have a stride")
    by_stage = {"depths": "depth", "patch_strides": "patch_stride", "patch_paddings": "patch_padding"}
    by_stage |= {name: name for name in ("embed_dim", "num_heads", "cls_token", "patch_sizes")}
    stages: dict[str, Any] = {ours: tuple(getattr(config, theirs)) for ours, theirs in by_stage.items()}
    read = CvtConfig(
        in_chans=config.num_channels,
        num_classes=config.num_labels,
        global_pool="token" if config.cls_token[-1] else "avg",
        attn_drop_rate=same("attention_drop_rate"),
        drop_path_rate=config.drop_path_rate[-1],
        **stages,
        **{name: same(name) for name in ("kernel_qkv", "stride_kv", "mlp_ratio", "qkv_bias")},
    )
    step = read.key_stride()
    return replace(read, img_size=-(-read.size[0] // step) * step)  # it does not say for what size it was made


def _config_of_cvt_weights(state: Mapping[str, Tensor]) -> CvtConfig:
    """Sizes of one of Microsoft's three networks, from the shapes of its weights; heads have 64 channels in all."""
    stages = _count(r"stages\.(\d+)\.", state)
    depths = tuple(_count(rf"stages\.{index}\.blocks\.(\d+)\.", state) for index in range(stages))
    dims = tuple(state[f"stages.{index}.blocks.0.norm1.weight"].shape[0] for index in range(stages))
    has_token = tuple(f"stages.{index}.cls_token" in state for index in range(stages))
    return CvtConfig(
        in_chans=state["patch_embed.proj.weight"].shape[1],
        num_classes=state["head.fc.weight"].shape[0] if "head.fc.weight" in state else 0,
        global_pool="token" if has_token[-1] else "avg",
        embed_dim=dims,
        depths=depths,
        num_heads=tuple(dim // 64 for dim in dims),
        cls_token=has_token,
        qkv_bias="stages.0.blocks.0.attn.proj_q.bias" in state,
        act_layer="quick_gelu",
    )


def _count(pattern: str, state: Mapping[str, Tensor]) -> int:
    return 1 + max(int(found[1]) for key in state if (found := re.match(pattern, key)))


_READERS: tuple[tuple[type[nn.Module], type[Backbone], Callable[[Any], Any]], ...] = (
    (SwinTransformer, Swin, _config_of_swin),
    (SwinTransformerV2, SwinV2, _config_of_swin_v2),
    (MultiScaleVit, MvitV2, _config_of_mvit_v2),
)
