"""Models by name: ours with :func:`create_model`, and through timm wherever timm does not have the name already."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from difflib import get_close_matches
from fnmatch import fnmatch
from typing import Any

import timm
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._registry import get_arch_pretrained_cfgs
from timm.models.swin_transformer_v2 import checkpoint_filter_fn as swin_v2_filter
from torch import Tensor, nn

from ..ops.geometry.shift import pair
from . import cvt, mvit_v2, swin, swin_v2
from .backbone import Backbone, FeatureMaps
from .bundled_weights import DamagedWeights, find_shipped, tags_of, unpacked
from .cvt_keys import rename_cvt_keys
from .mvit_v2_keys import read_mvit_v2_weights
from .swin_keys import read_swin_weights

__all__ = ["create_model", "is_ours", "list_models", "name_of", "resolve_name"]  # timm adds the names of the models

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
FAMILIES: dict[type[Backbone], dict[str, dict[str, Any]]] = {
    swin.Swin: swin.VARIANTS,
    swin_v2.SwinV2: swin_v2.VARIANTS,
    cvt.Cvt: cvt.VARIANTS,
    mvit_v2.MvitV2: mvit_v2.VARIANTS,
}
FILTERS: dict[type[Backbone], Callable[[Any, Any], dict[str, Tensor]]] = {
    swin.Swin: read_swin_weights,
    swin_v2.SwinV2: swin_v2_filter,
    cvt.Cvt: lambda state, model: rename_cvt_keys(state),
    mvit_v2.MvitV2: read_mvit_v2_weights,
}
SHORT_NAMES = {
    "swin_tiny": "swin_tiny_patch4_window7_224",
    "swin_small": "swin_small_patch4_window7_224",
    "swin_base": "swin_base_patch4_window7_224",
    "swin_large": "swin_large_patch4_window7_224",
    "swin_mini": "swin_mini_patch2_window4_32",
    "swinv2_tiny": "swinv2_tiny_window8_256",
    "swinv2_small": "swinv2_small_window8_256",
    "swinv2_base": "swinv2_base_window8_256",
    "swinv2_mini": "swinv2_mini_patch2_window4_32",
    "cvt_mini": "cvt_mini_32",
    "mvitv2_mini": "mvitv2_mini_32",
}
ALIASES = {prefix + short: prefix + full for short, full in SHORT_NAMES.items() for prefix in ("", "a_")}
WEIGHTS_OF_CVT = {
    "cvt_13": {"in1k": "microsoft/cvt-13"},
    "cvt_21": {"in1k": "microsoft/cvt-21"},
    "cvt_w24": {"in22k_ft_in1k_384": "microsoft/cvt-w24-384-22k"},
}


def _pretrained_cfgs(variant: str, arguments: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Where published weights of the ordinary network are, by tag: the adaptive one takes the same."""
    published = {cfg.tag or "": asdict(cfg) for cfg in get_arch_pretrained_cfgs(variant).values()}
    if published:
        return published
    size = arguments.get("img_size", 224)
    small = size <= 64
    common = {
        "input_size": (3, size, size),
        "mean": CIFAR_MEAN if small else IMAGENET_DEFAULT_MEAN,
        "std": CIFAR_STD if small else IMAGENET_DEFAULT_STD,
        "crop_pct": 1.0 if small else 0.875,
        "num_classes": 10 if small else 1000,
        "first_conv": "patch_embed.proj",
        "classifier": "head.fc",
        "license": "apache-2.0",
    }
    tags = WEIGHTS_OF_CVT.get(variant, {"": None})
    # published as by transformers: rename_cvt_keys reads that
    return {
        tag: {**common, **({"hf_hub_id": hub, "hf_hub_filename": "pytorch_model.bin"} if hub else {})}
        for tag, hub in tags.items()
    }


def _shipped_cfgs(name: str) -> dict[str, dict[str, Any]]:
    """The weights that come with us, by tag; the names of their classes belong to a model that has loaded them."""
    try:
        found = {tag: find_shipped(name, tag) for tag in tags_of(name)}
    except DamagedWeights as error:  # one damaged file must not stop every import
        warnings.warn(str(error), stacklevel=2)
        return {}
    return {tag: each.pretrained_cfg(None) for tag, each in found.items() if each}


def _entrypoint(name: str, family: type[Backbone], arguments: dict[str, Any], adaptive: bool) -> Callable[..., Any]:
    """What timm calls to make a model: ``entrypoint(pretrained, **arguments)``."""

    def entrypoint(pretrained: bool = False, **given: Any) -> nn.Module:
        _refuse_unknown(name, family, given)
        asked = given.get("pretrained_cfg"), given.get("pretrained_cfg_overlay")
        shipped = find_shipped(name, *asked) if pretrained else None
        needed = _tupled(shipped.arguments) if shipped else {}
        merged = {**arguments, "criterion": "max_norm" if adaptive else "fixed", **needed, **_tupled(given)}
        if shipped:
            shipped.check()
            merged["pretrained_cfg"] = shipped.pretrained_cfg(merged.get("num_classes", shipped.num_classes))
        if "img_size" in given:  # data are prepared by what the description says
            size = {"input_size": (3, *pair(given["img_size"]))}
            merged["pretrained_cfg_overlay"] = {**(given.get("pretrained_cfg_overlay") or {}), **size}
        stages = len(merged["depths"])
        return build_model_with_cfg(
            lambda **fields: family(family.Config(**fields)),
            name,
            pretrained,
            pretrained_filter_fn=lambda state, model: FILTERS[family](unpacked(state), model),
            feature_cfg={"out_indices": merged.pop("out_indices", tuple(range(stages))), "feature_cls": FeatureMaps},
            **merged,
        )

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f"{name}, as :func:`create_model` makes it."
    return entrypoint


def _tupled(value: Any) -> Any:
    """A configuration file has lists where ours have tuples."""
    if isinstance(value, dict):
        return {key: _tupled(entry) for key, entry in value.items()}
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


_FOR_TIMM = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "features_only", "out_indices")


def _refuse_unknown(name: str, family: type[Backbone], given: dict[str, Any]) -> None:
    known = sorted(field.name for field in fields(family.Config))
    for key in given:
        if key not in known and key not in _FOR_TIMM:
            close = get_close_matches(key, known)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise TypeError(f"{name} has no argument {key!r}: {hint}It takes {', '.join(known)}")


def _register(entrypoint: Callable[..., Any]) -> None:
    globals()[entrypoint.__name__] = entrypoint  # timm expects it in this module
    register_model(entrypoint)


ENTRYPOINTS: dict[str, Callable[..., Any]] = {}
default_cfgs = {}  # timm's register_model looks for this name
for _family, _variants in FAMILIES.items():
    for _variant, _arguments in _variants.items():
        _cfgs = _pretrained_cfgs(_variant, _arguments)
        for _prefix in ("", "a_"):
            _name = _prefix + _variant
            ENTRYPOINTS[_name] = _entrypoint(_name, _family, _arguments, adaptive=_prefix == "a_")
            if not timm.is_model(_name):
                _shipped = _shipped_cfgs(_name)
                _others = {tag: cfg for tag, cfg in _cfgs.items() if tag or not _shipped}
                _tagged: dict[str, Any] = {
                    f"{_name}.{tag}" if tag else _name: {**cfg, "architecture": None, "tag": None}
                    for tag, cfg in (_shipped | _others).items()
                }
                default_cfgs.update(generate_default_cfgs(_tagged))
                _register(ENTRYPOINTS[_name])


def _register_alias(alias: str, full: str) -> None:
    def entrypoint(pretrained: bool = False, **given: Any) -> nn.Module:
        return ENTRYPOINTS[full](pretrained, **given)

    entrypoint.__name__ = entrypoint.__qualname__ = alias
    _register(entrypoint)


for _alias, _full in ALIASES.items():
    if not timm.is_model(_alias):
        _register_alias(_alias, _full)


def list_models(
    filter: str | Sequence[str] = "", pretrained: bool = False, exclude_filters: str | Sequence[str] = ""
) -> list[str]:
    """Names of all models, adaptive ones (``a_...``) and ordinary ones.

    Args:
        filter: names to list, with ``*`` and ``?`` for any characters; of several, those that fit one. All if empty.
        pretrained: only models with weights, published ones or those that come with the package.
        exclude_filters: names to leave out, in the same way. None if empty.
    """
    names = [name for name in ENTRYPOINTS if not pretrained or _has_weights(name)]
    listed = [name for name in names if not filter or _fits_one(name, filter)]
    return sorted(name for name in listed if not _fits_one(name, exclude_filters))


def _fits_one(name: str, filters: str | Sequence[str]) -> bool:
    return any(fnmatch(name, each) for each in ([filters] if isinstance(filters, str) else filters))


def _has_weights(name: str) -> bool:
    return bool(tags_of(name)) or any(cfg.has_weights for cfg in get_arch_pretrained_cfgs(name).values())


def resolve_name(name: str) -> str:
    """The full name, without a tag; an unknown one is refused with those it may have meant."""
    full = ALIASES.get(name, name)
    if full not in ENTRYPOINTS:
        close = get_close_matches(name, [*ENTRYPOINTS, *ALIASES], n=3)
        meant = f"did you mean {', '.join(close)}?" if close else "trueshift.list_models() has them all"
        raise ValueError(f"no model is called {name!r}: {meant}")
    return full


def is_ours(name: str) -> bool:
    """Whether a name, with or without a tag, is one of these models."""
    base = name.partition(".")[0]
    return ALIASES.get(base, base) in ENTRYPOINTS


def create_model(name: str, pretrained: bool = False, **arguments: Any) -> Any:
    """Make a model by name.

    Args:
        name: ``"a_swin_tiny_patch4_window7_224"`` or shorter ``"a_swin_tiny"``; without ``a_`` the ordinary network.
            A tag after a dot chooses among published weights, as in timm; ``"hf_hub:user/name"`` and
            ``"local-dir:path"`` are passed on to timm.
        pretrained: load trained weights: those that come with the package, without a network, for the small models;
            elsewhere published ones of the ordinary network, which the adaptive one takes as well.
        arguments: ``num_classes``, ``in_chans``, ``img_size``, ``drop_path_rate``, ``grid_drop_rate``, ``criterion``,
            ``anchor``, ``padding``, ``align`` and whatever the family's ``Config`` has; ``features_only`` and
            ``out_indices``.

    Returns:
        a :class:`~trueshift.models.backbone.Backbone`, or timm's wrapper around one with ``features_only``.
    """
    if ":" in name:
        return timm.create_model(name, pretrained, **arguments)
    base, _, tag = name.partition(".")
    full = resolve_name(base)
    if tag:
        arguments["pretrained_cfg"] = tag
    given = {key: value for key, value in arguments.items() if value is not None}
    return ENTRYPOINTS[full](pretrained, **given)


_NOT_STRUCTURE = ("img_size", "drop_path_rate")


def name_of(model: Backbone) -> str:
    """The registered variant nearest to a model: its own, or one of its family that differs in the arguments alone."""
    prefix = "a_" if model.config.choices.adaptive("tokenize", "align", "merge", "pool") else ""
    variants = FAMILIES[type(model)]
    same = [
        name
        for name, arguments in variants.items()
        if all(getattr(model.config, key) == value for key, value in arguments.items() if key not in _NOT_STRUCTURE)
    ]
    return prefix + (same[0] if same else next(iter(variants)))
