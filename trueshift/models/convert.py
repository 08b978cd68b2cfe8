"""From an existing network to its shift-equivariant twin with the same weights, and back."""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from timm.models._features import FeatureDictNet, FeatureGetterNet, FeatureHookNet
from timm.models.mvitv2 import MultiScaleAttention, MultiScaleVit
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import Tensor, nn

from ..utils.deprecation import renamed_arguments
from ..utils.wrappers import unwrapped
from .backbone import Backbone
from .config import PLACES
from .cvt import Cvt, CvtConfig, is_microsoft, is_transformers, rename_cvt_keys
from .foreign import ADAPTS, KEPT, adapt_foreign, is_adapted, library_of, revert_foreign
from .hub import HubModel, misfits
from .mvit_v2 import MvitV2, MvitV2Config
from .swin import Swin, SwinConfig, SwinV2, SwinV2Config

SUPPORTED = (
    "timm's SwinTransformer, SwinTransformerV2 and MultiScaleVit (MViTv2, with convolutional pooling and relative "
    "positions), transformers' CvtForImageClassification, a CvT state_dict with Microsoft's names, trueshift's own "
    "models, or, keeping their class, "
    + "; ".join(f"{library.partition('.')[0]}'s {', '.join(names)}" for library, names in KEPT.items())
    + "; for any other image model there is trueshift.canonicalize"
)


def adapt(model: nn.Module | Mapping[str, Tensor], **changes: Any) -> Any:
    """The shift-equivariant twin of a network, with its weights.

    Takes any size and number of classes; dtype, device, training mode and which parameters are trained stay the same.
    The network given is not touched; DataParallel, DistributedDataParallel and ``torch.compile`` are taken off.

    **Swin, SwinV2 and MViTv2 of timm, CvT**: one of our networks, all of whose layers choose their grids. Windows,
    patches and keys begin elsewhere now, also on images that did not move, so fine-tune it. Position tables stay as
    they are; MViTv2's linear ones are read at the shortest signed distance. One of ours that adapts already stays as
    it is but for the changes.

    **ViT, DeiT, DINO, CLIP, Hiera, torchvision's and transformers' networks**: a copy of the same class, with the same
    call and the same keys, whose patch embedding shows each image to the rest in a frame that moves with it, in
    evaluation. By default that is the photograph's own, so that nothing has to be fine-tuned: see
    :func:`trueshift.models.foreign.adapt_foreign`. :func:`~trueshift.features` has features with their positions.

    Args:
        model: what is named above; a state_dict of Microsoft's CvT; or one of ours.
        changes: fields of the configuration to change, such as ``criterion``, ``anchor`` or ``feature_frame``; for
            networks that keep their class ``criterion``, ``grid_drop_rate`` and ``circular`` alone.

    Shift law: logits of the twin do not change when the image moves, bit for bit; with ``circular="width"``, when its
    columns move.
    """
    network = unwrapped(model)
    if library_of(network) is None:
        return _twin(network, True, changes)
    if not changes.keys() <= set(ADAPTS):
        needs = f"needs {', '.join(ADAPTS[:-1])} or {ADAPTS[-1]} alone"
        raise TypeError(f"{', '.join(changes)}: a {type(network).__name__} keeps its class; {needs}")
    return adapt_foreign(network, **changes)


def revert(model: nn.Module, **changes: Any) -> Any:
    """The ordinary network with the same weights, bit for bit: the criterion is ``"fixed"`` everywhere.

    Of an adapted network that kept its class, a copy as it was. Parameters of a learned criterion are left out.
    Position tables that were made for the circle (an MViTv2 that was adaptive from the start) are still read so.

    Args:
        changes: fields of the configuration to change: ``padding="circular"`` gives the paper's baseline for circular
            shifts. For our networks.
    """
    model = unwrapped(model)
    if is_adapted(model) and not isinstance(model, HubModel) and not changes:
        return revert_foreign(model)
    if not isinstance(model, Backbone):
        needs = "trueshift's own backbones and UperNet, or without changes what adapt gave of another library's network"
        raise TypeError(f"a {type(model).__name__} cannot be reverted: needs {needs}")
    return _twin(model, False, changes)


@renamed_arguments(align="feature_frame")
def twin_config(config: Any, adaptive: bool, **changes: Any) -> Any:
    """The configuration of a network's adaptive or ordinary twin; an adaptive one's adaptive twin is itself."""
    kept = adaptive and config.adaptive(*PLACES)
    if not kept:
        usual = {"criterion": "max_norm" if adaptive else "fixed", "anchor": None, "border": None, "padding": None}
        changes = {**usual, "grids": 1, "grid_drop_rate": 0.0, **changes}
    twin = replace(config, **changes)
    if isinstance(config, MvitV2Config) and "positions" not in changes and not (kept and twin.closed == config.closed):
        of_linear_tables = "shortest" if adaptive and twin.border != "closed" else "linear"
        twin = replace(twin, positions="circular" if config.position_mode == "circular" else of_linear_tables)
    return twin


def _twin(source: Any, adaptive: bool, changes: dict[str, Any]) -> Backbone:
    """A new network with copies of the weights, in the mode of its source."""
    family, config, state = _read(source)
    twin = family(twin_config(config, adaptive, **changes))
    if isinstance(twin, MvitV2) and twin.config.circular != config.circular:
        state = twin.read_weights(state)  # tables of rows become linear ones, or those of a circle
    copy_weights(source, fitting_criteria(state, config, twin.config), twin)
    if isinstance(source, nn.Module):
        twin.set_grad_checkpointing(any(getattr(part, "grad_checkpointing", False) for part in source.modules()))
    twin.pretrained_cfg = {**deepcopy(getattr(source, "pretrained_cfg", None) or {}), "architecture": twin.architecture}
    twin.record_input_size()
    return twin


def _read(model: Any) -> tuple[type[Backbone], Any, dict[str, Tensor]]:
    """Family, configuration and weights of a network, in our terms."""
    if isinstance(model, Backbone):
        config = replace(model.config, num_classes=_classes(model), global_pool=model.global_pool)
        return type(model), config, model.state_dict()
    if isinstance(model, Mapping):
        if is_microsoft(model):
            state = rename_cvt_keys(model)
            return Cvt, _config_of_cvt_weights(state), state
        raise TypeError(f"a state_dict with keys like {next(iter(model), '')!r} cannot be adapted: needs {SUPPORTED}")
    for kind, family, read in _READERS:
        if isinstance(model, kind):
            own = _own_code(model)
            whole = "which a twin would not have; trueshift.canonicalize keeps it"
            _check(type(model).__name__, {f"its {own} has code of its own, {whole}": own is not None})
            return family, read(model), dict(model.state_dict())
    state = model.state_dict() if isinstance(model, nn.Module) else {}
    if type(model).__name__ == "CvtForImageClassification" and is_transformers(state):  # without importing transformers
        return Cvt, _config_of_transformers_cvt(model), rename_cvt_keys(state)
    if isinstance(model, FeatureDictNet | FeatureHookNet | FeatureGetterNet):
        raise TypeError(
            "a network made with features_only=True cannot be adapted: needs the whole network, whose features "
            "trueshift.features(adapt(network), image) gives; or trueshift.canonicalize(model, dense=True)"
        )
    raise TypeError(f"a {type(model).__name__} cannot be adapted: needs {SUPPORTED}")


def fitting_criteria(state: Mapping[str, Tensor], config: Any, wanted: Any) -> dict[str, Tensor]:
    """The weights of a network, those of its criteria only if another configuration wants the same."""
    same = config.criterion == wanted.criterion
    return {key: value for key, value in state.items() if same or "criterion." not in key}


def copy_weights(source: Any, state: Mapping[str, Tensor], twin: HubModel) -> None:
    """Copy the weights, with device and type, and the training mode and frozen parameters of a source that is a module.

    Norms with running statistics are copied as they are, so that frozen ones stay frozen.

    Args:
        source: the module that ``state`` was taken from, or anything else.
        state: all weights under the twin's names; those of its criteria may be missing, and then stay as they are.
    """
    norms = _copy_norms(source, state, twin)
    weight = next(value for value in state.values() if value.is_floating_point())
    twin.to(weight.device, weight.dtype)  # tables that are no weights, and criteria of its own
    wanted = twin.state_dict()
    criteria = {key: value for key, value in wanted.items() if "criterion." in key}
    copies = {**criteria, **{key: value.detach().clone() for key, value in state.items()}}
    if problems := misfits(wanted, copies):
        raise ValueError(f"these weights do not fit {twin.title}: {'; '.join(problems)}")
    twin.load_state_dict(copies, assign=True)
    if isinstance(source, nn.Module):
        twin.train(source.training)
        for name, norm in norms.items():
            twin.get_submodule(name).train(norm.training)
        trained = {value.data_ptr() for value in source.parameters() if value.requires_grad}
        frozen = {value.data_ptr() for value in source.parameters()} - trained
        for name, parameter in twin.named_parameters():
            if name in state and state[name].data_ptr() in frozen:
                parameter.requires_grad_(False)


def _copy_norms(source: Any, state: Mapping[str, Tensor], twin: nn.Module) -> dict[str, nn.Module]:
    """Put copies of the norms with running statistics into a twin; returns those of the source by the twin's names."""
    parts = source.modules() if isinstance(source, nn.Module) else ()
    # names differ between packages, storage does not; on the meta device there is none
    found = ((part, part._buffers.get("running_mean")) for part in parts)
    means = {mean.data_ptr(): part for part, mean in found if mean is not None and not mean.is_meta}
    norms = {
        key.removesuffix(".running_mean"): means[value.data_ptr()]
        for key, value in state.items()
        if key.endswith(".running_mean") and value.data_ptr() in means
    }
    for name, norm in norms.items():
        twin.set_submodule(name, deepcopy(norm))
    return norms


def _check(kind: str, problems: Mapping[str, bool]) -> None:
    for reason, found in problems.items():
        if found:
            raise ValueError(f"this {kind} cannot be adapted: {reason}")


def _own_code(model: nn.Module) -> str | None:
    """The class of a part that computes something else than torch's or timm's code, such as a subclass by hand."""
    for part in model.modules():
        for method in ("forward", "forward_features", "forward_head"):
            code = getattr(type(part), method, None)
            if code is not None and code.__module__.partition(".")[0] not in ("torch", "timm"):
                return type(part).__name__
    return None


def _classes(model: Any) -> int:
    """Of the last layer that it has now, which may have been replaced by hand."""
    return getattr(getattr(model.head, "fc", None), "out_features", model.num_classes)


def _drop_path(stages: list[Any]) -> float:
    """The largest rate of stochastic depth."""
    drops = [block.drop_path1 for blocks in stages for block in blocks]
    return max(float(getattr(drop, "drop_prob", 0.0) or 0.0) for drop in drops)


def _swin_fields(model: Any) -> dict[str, Any]:
    """What both Swins have in common in timm."""
    stages = [stage.blocks for stage in model.layers]
    first = stages[0][0]
    dims = [blocks[0].norm1.normalized_shape[0] for blocks in stages]
    patch = model.patch_embed.patch_size
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    problems = {
        f"channels {dims} do not double": dims != [dims[0] * 2**index for index in range(len(dims))],
        f"its patches of {patch} are not square": patch[0] != patch[1],
        "its heads are narrower or wider than its channels": first.attn.qkv.out_features != 3 * dims[0],
        "its norms have another epsilon than 1e-5": any(norm.eps != 1e-5 for norm in norms),
        "its patch embedding has no LayerNorm": not isinstance(model.patch_embed.norm, nn.LayerNorm),
        "its activation is not GELU": any(
            type(block.mlp.act).__name__ != "GELU" for blocks in stages for block in blocks
        ),
        "its head was replaced: needs reset_classifier": not hasattr(model.head, "global_pool"),
    }
    _check(type(model).__name__, problems)
    fields = {
        "img_size": model.patch_embed.img_size,
        "in_chans": model.patch_embed.proj.in_channels,
        "num_classes": _classes(model),
        "global_pool": model.head.global_pool.pool_type,  # the attribute of the network itself is not kept up to date
        "patch_size": patch[0],
        "embed_dim": dims[0],
        "depths": tuple(map(len, stages)),
        "num_heads": tuple(blocks[0].attn.num_heads for blocks in stages),
        "mlp_ratio": first.mlp.fc1.out_features / dims[0],
        "qkv_bias": getattr(first.attn, "q_bias", first.attn.qkv.bias) is not None,  # apart in SwinV2
        "drop_rate": model.head.drop.p,
        "proj_drop_rate": first.attn.proj_drop.p,
        "attn_drop_rate": first.attn.attn_drop.p,
        "drop_path_rate": _drop_path(stages),
    }
    windows = [tuple(blocks[0].attn.window_size) for blocks in stages]
    one_for_all = SwinConfig(window_size=max(windows[0]), **fields)
    same = one_for_all.windows() == windows
    return {**fields, "window_size": one_for_all.window_size if same else tuple(windows)}


def _config_of_swin_v2(model: Any) -> SwinV2Config:
    trained = tuple(tuple(stage.blocks[0].attn.pretrained_window_size) for stage in model.layers)
    return SwinV2Config(pretrained_window_sizes=trained, **_swin_fields(model))


def _config_of_mvit_v2(model: Any) -> MvitV2Config:
    stages = [stage.blocks for stage in model.stages]
    first, proj = stages[0][0], model.patch_embed.proj
    attn = first.attn
    problems = {
        "it adds absolute positions to its tokens": model.pos_embed is not None,
        "it pools before it projects (pool_first)": not isinstance(attn, MultiScaleAttention),
        f"it pools by {attn.mode!r}, not by convolutions shared by the heads": attn.mode != "conv",
        "it has no relative positions": attn.rel_pos_type != "spatial",
        "it has blocks without pooling": any(block.attn.pool_q is None for blocks in stages for block in blocks),
    }
    _check(type(model).__name__, problems)
    stride_q = tuple(blocks[0].attn.pool_q.stride[0] for blocks in stages)
    stride_kv = tuple(blocks[0].attn.pool_k.stride[0] for blocks in stages)
    steps = (attn.rel_pos_h.shape[0] + 1) // 2
    late = (proj.out_channels, *(blocks[-1].dim_out for blocks in stages[:-1]))
    return MvitV2Config(
        img_size=steps * proj.stride[0] * min(stride_q[0], stride_kv[0]),
        in_chans=proj.in_channels,
        num_classes=_classes(model),
        global_pool=model.global_pool,
        drop_rate=model.drop_rate,
        drop_path_rate=_drop_path(stages),
        criterion="fixed",
        embed_dim=tuple(blocks[0].dim_out for blocks in stages) if model.expand_attn else late,
        depths=tuple(model.depths),
        num_heads=tuple(blocks[0].attn.num_heads for blocks in stages),
        stride_q=stride_q,
        stride_kv=stride_kv,
        kernel_qkv=attn.pool_q.kernel_size[0],
        patch_kernel=proj.kernel_size[0],
        patch_stride=proj.stride[0],
        patch_padding=proj.padding[0],
        mlp_ratio=first.mlp.fc1.out_features / first.mlp.fc1.in_features,
        qkv_bias=attn.qkv.bias is not None,
        expand_attn=model.expand_attn,
        residual_pooling=attn.residual_pooling,
        use_cls_token=model.cls_token is not None,
        norm_eps=model.norm.eps,
    )


def _config_of_transformers_cvt(model: Any) -> CvtConfig:
    config = model.config
    by_stage = {"depths": "depth", "patch_strides": "patch_stride", "patch_paddings": "patch_padding"}
    by_stage |= {name: name for name in ("embed_dim", "num_heads", "cls_token", "patch_sizes")}
    uniform = ("kernel_qkv", "stride_kv", "mlp_ratio", "qkv_bias", "attention_drop_rate")  # ours has one for all stages
    values = {name: list(getattr(config, name)) for name in ("qkv_projection_method", "stride_q", *uniform)}
    problems = {f"{name} {found} differs between stages": len(set(found)) != 1 for name, found in values.items()}
    method = values["qkv_projection_method"][0]
    problems[f"its projection is {method!r}, not 'dw_bn'"] = method != "dw_bn"
    problems["its queries have a stride"] = values["stride_q"][0] != 1
    _check("CvtForImageClassification", problems)
    fields: dict[str, Any] = {ours: tuple(getattr(config, theirs)) for ours, theirs in by_stage.items()}
    fields |= {name.replace("attention_", "attn_"): values[name][0] for name in uniform}
    read = CvtConfig(
        in_chans=config.num_channels,
        num_classes=config.num_labels,
        global_pool="token" if config.cls_token[-1] else "avg",
        drop_path_rate=config.drop_path_rate[-1],
        **fields,
    )
    step = read.key_stride()
    return replace(read, img_size=-(-read.size[0] // step) * step)  # its own configuration has no size


def _config_of_cvt_weights(state: Mapping[str, Tensor]) -> CvtConfig:
    """Sizes of one of Microsoft's three networks, from the shapes of its weights; all their heads have 64 channels."""

    def count(pattern: str) -> int:
        return 1 + max(int(found[1]) for key in state if (found := re.match(pattern, key)))

    stages = range(count(r"stages\.(\d+)\."))
    dims = tuple(state[f"stages.{index}.blocks.0.norm1.weight"].shape[0] for index in stages)
    has_token = tuple(f"stages.{index}.cls_token" in state for index in stages)
    return CvtConfig(
        in_chans=state["patch_embed.proj.weight"].shape[1],
        num_classes=state["head.fc.weight"].shape[0] if "head.fc.weight" in state else 0,
        global_pool="token" if has_token[-1] else "avg",
        embed_dim=dims,
        depths=tuple(count(rf"stages\.{index}\.blocks\.(\d+)\.") for index in stages),
        num_heads=tuple(dim // 64 for dim in dims),
        cls_token=has_token,
        qkv_bias="stages.0.blocks.0.attn.proj_q.bias" in state,
        act_layer="quick_gelu",
    )


_READERS: tuple[tuple[type[nn.Module], type[Backbone], Callable[[Any], Any]], ...] = (
    (SwinTransformer, Swin, lambda model: SwinConfig(**_swin_fields(model))),
    (SwinTransformerV2, SwinV2, _config_of_swin_v2),
    (MultiScaleVit, MvitV2, _config_of_mvit_v2),
)
