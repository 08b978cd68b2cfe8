"""Models by name: ours with :func:`create_model`, and through timm wherever timm does not have the name already."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, overload

import timm
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._registry import get_arch_pretrained_cfgs
from torch import nn

from ..ops.geometry.shift import pair
from ..utils.deprecation import renamed_arguments, warn_deprecated
from .backbone import Backbone, FeatureMaps
from .bundled_weights import DamagedWeights, find_shipped, has_own_weights, tags_of, unpacked
from .config import check_one_grid
from .cvt import Cvt
from .hub import BUILDERS, OWN, saved_cfg
from .mvit_v2 import MvitV2
from .swin import Swin, SwinV2

# timm's register_model adds the names of models
__all__ = ["create_model", "is_ours", "list_models", "resolve_name"]

FAMILIES: tuple[type[Backbone], ...] = (Swin, SwinV2, Cvt, MvitV2)
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
WEIGHTS_OF_CVT = {
    "cvt_13": {"in1k": "microsoft/cvt-13"},
    "cvt_21": {"in1k": "microsoft/cvt-21"},
    "cvt_w24": {"in22k_ft_in1k_384": "microsoft/cvt-w24-384-22k"},
}
ALIASES: dict[str, str] = {}  # "swin_tiny" is the first variant that begins so; also ours of names that timm has
for _variant in (variant for family in FAMILIES for variant in family.variants):
    _short = "_".join(_variant.split("_")[:2])
    if _short != _variant and _short not in ALIASES:
        ALIASES |= {_short: _variant, f"a_{_short}": f"a_{_variant}"}
    if timm.is_model(_variant):
        ALIASES[OWN + _variant] = _variant


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
    # published by transformers: rename_cvt_keys reads that
    return {
        tag: {**common, **({"hf_hub_id": hub, "hf_hub_filename": "pytorch_model.bin"} if hub else {})}
        for tag, hub in WEIGHTS_OF_CVT.get(variant, {"": None}).items()
    }


def _shipped_cfgs(name: str) -> dict[str, dict[str, Any]]:
    """The bundled weights, by tag, without class names: those belong to a model that has loaded the weights."""
    try:
        found = {tag: find_shipped(name, tag) for tag in tags_of(name)}
    except DamagedWeights as error:  # one damaged file must not stop every import
        warnings.warn(str(error), stacklevel=2)
        return {}
    return {tag: each.pretrained_cfg(None) for tag, each in found.items() if each}


def _entrypoint(name: str, family: type[Backbone], arguments: dict[str, Any]) -> Callable[..., Any]:
    """What timm calls to make a model: ``entrypoint(pretrained, **arguments)``."""

    @renamed_arguments(align="feature_frame")
    def entrypoint(pretrained: bool = False, **given: Any) -> nn.Module:
        _refuse_unknown(name, family, given)
        overlay = given.get("pretrained_cfg_overlay") or {}
        shipped = find_shipped(name, given.get("pretrained_cfg"), overlay) if pretrained else None
        needed = _tupled(shipped.arguments) if shipped else {}
        criterion = "max_norm" if name.startswith("a_") else "fixed"
        merged = {**arguments, "criterion": criterion, **needed, **_tupled(given)}
        if given.get("features_only"):
            if isinstance(given.get("pretrained_cfg"), dict):  # of a classifier's folder, which may average
                merged["grids"] = 1
            check_one_grid(merged)
        if shipped:
            shipped.check()
            merged["pretrained_cfg"] = shipped.pretrained_cfg(merged.get("num_classes", shipped.num_classes))
        if "img_size" in given:  # by which data are prepared
            merged["pretrained_cfg_overlay"] = {**overlay, "input_size": (3, *pair(given["img_size"]))}
        out_indices = merged.pop("out_indices", tuple(range(len(merged["depths"]))))
        return build_model_with_cfg(
            lambda **fields: family(family.Config(**fields)),
            name,
            pretrained,
            pretrained_filter_fn=_fitting_weights,
            feature_cfg={"out_indices": out_indices, "feature_cls": FeatureMaps},
            **merged,
        )

    return entrypoint


def _fitting_weights(state: dict[str, Any], model: Backbone) -> dict[str, Any]:
    """Published or saved weights as the model needs them; of weights without a criterion the model keeps its own."""
    weights = model.read_weights(unpacked(state))
    if any("criterion." in key for key in weights):
        return weights
    return {**weights, **{key: value for key, value in model.state_dict().items() if "criterion." in key}}


def _tupled(value: Any) -> Any:
    """A configuration file has lists where ours have tuples."""
    if isinstance(value, dict):
        return {key: _tupled(entry) for key, entry in value.items()}
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def _refuse_unknown(name: str, family: type[Backbone], given: dict[str, Any]) -> None:
    for_timm = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "features_only", "out_indices")
    known = sorted(field.name for field in fields(family.Config))
    for key in given:
        if key not in known and key not in for_timm:
            close = get_close_matches(key, known)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise TypeError(f"{name} has no argument {key!r}: {hint}It takes {', '.join(known)}")


ENTRYPOINTS: dict[str, Callable[..., Any]] = {}
default_cfgs: dict[str, Any] = {}  # timm's register_model looks for this name


def __getattr__(name: str) -> Any:
    """Entrypoints as attributes, since timm writes their names into ``__all__``."""
    full = ALIASES.get(name, name)
    if full not in ENTRYPOINTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return ENTRYPOINTS[full]


def _register(name: str, entrypoint: Callable[..., Any], cfgs: dict[str, dict[str, Any]]) -> None:
    """Make a model known to folders, and to timm if timm has no model of this name."""
    BUILDERS[name] = partial(_build, name)
    if not timm.is_model(name):
        common = {"architecture": None, "tag": None}
        tagged: Any = {f"{name}.{tag}" if tag else name: {**cfg, **common} for tag, cfg in cfgs.items()}
        default_cfgs.update(generate_default_cfgs(tagged))
        entrypoint.__name__ = entrypoint.__qualname__ = name
        register_model(entrypoint)


def _build(name: str, config: dict[str, Any], **changes: Any) -> Backbone:
    """A model as its ``config.json`` describes it."""
    saved = dict(config.get("model_args", {}))
    if "align" in saved:  # written before the field was renamed
        saved["feature_frame"] = saved.pop("align")
    model = create_model(name, **{"num_classes": config.get("num_classes"), **saved, **changes})
    model.pretrained_cfg = {**model.pretrained_cfg, **saved_cfg(config, model.num_classes)}
    if "img_size" in changes:
        model.record_input_size()
    return model


for _family in FAMILIES:
    for _variant, _arguments in _family.variants.items():
        _published = _pretrained_cfgs(_variant, _arguments)
        for _name in (_variant, f"a_{_variant}"):
            ENTRYPOINTS[_name] = _entrypoint(_name, _family, _arguments)
            _shipped = {} if timm.is_model(_name) else _shipped_cfgs(_name)
            _others = {tag: cfg for tag, cfg in _published.items() if tag or not _shipped}
            _register(_name, ENTRYPOINTS[_name], _shipped | _others)
            for _alias in (alias for alias, full in ALIASES.items() if full == _name):
                _register(_alias, _entrypoint(_name, _family, _arguments), {})


def list_models(
    filter: str | Sequence[str] = "", pretrained: bool | str = False, exclude_filters: str | Sequence[str] = ""
) -> list[str]:
    """Names of all models, adaptive ones (``a_...``) and ordinary ones.

    Args:
        filter: names to list, with wildcards ``*`` and ``?``, or several such; all if empty.
        pretrained: only models with weights, published or bundled. ``"own"``: only those whose weights were trained as
            this very network. ``"converted"``: only adaptive networks that take the weights of their ordinary twin, and
            need fine-tuning.
        exclude_filters: names to leave out, in the same way.

    >>> list_models("a_*mini*", pretrained="own")  # doctest: +ELLIPSIS
    ['a_cvt_mini_32', ...]
    >>> list_models("a_cvt_1*", pretrained="converted")
    ['a_cvt_13']
    """
    if pretrained not in (False, True, "own", "converted"):
        raise ValueError(f"pretrained {pretrained!r}: needs True, False, 'own' or 'converted'")

    def has_weights(name: str) -> bool:
        found = bool(tags_of(name)) or any(cfg.has_weights for cfg in get_arch_pretrained_cfgs(name).values())
        own = not name.startswith("a_") or has_own_weights(name)
        return found and (pretrained is True or own == (pretrained == "own"))

    listed = timm.list_models(filter, exclude_filters=exclude_filters)  # type: ignore[arg-type]
    return sorted(name for name in listed if name in ENTRYPOINTS and (not pretrained or has_weights(name)))


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


@overload
def create_model(name: str, pretrained: bool = ..., *, features_only: Literal[True], **arguments: Any) -> nn.Module: ...
@overload
def create_model(name: str, pretrained: bool = ..., **arguments: Any) -> Backbone: ...
@renamed_arguments(align="feature_frame")
def create_model(name: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
    """Create a model by name.

    Args:
        name: ``"a_swin_tiny_patch4_window7_224"`` or shorter ``"a_swin_tiny"``; without ``a_`` the ordinary network.
            A tag after a dot chooses among published weights, as in timm; ``"hf_hub:user/name"`` and
            ``"local-dir:path"`` are passed on to timm.
        pretrained: load trained weights: bundled ones, which need no network, for the small models; elsewhere published
            ones of the ordinary network, which the adaptive one takes as well.
        arguments: ``num_classes``, ``in_chans``, ``img_size``, ``drop_path_rate``, ``grid_drop_rate``, ``criterion``,
            ``anchor``, ``circular``, ``grids``, ``padding``, ``feature_frame`` and whatever the family's ``Config``
            has; ``features_only`` and ``out_indices``.

    Returns:
        a :class:`~trueshift.models.backbone.Backbone`, or timm's wrapper around one with ``features_only``. Below
        another library's decoder the guarantee ends; :func:`~trueshift.canonicalize` around the whole restores it.

    >>> model = trueshift.create_model("a_swin_mini", pretrained=True).eval()
    >>> image = torch.rand(1, 3, 32, 32)
    >>> torch.equal(model(image), model(image.roll((5, 7), (2, 3))))
    True
    """
    if ":" in name:
        return timm.create_model(name, pretrained, **arguments)
    base, _, tag = name.partition(".")
    if tag:
        arguments["pretrained_cfg"] = tag
    given = {key: value for key, value in arguments.items() if value is not None}
    return ENTRYPOINTS[resolve_name(base)](pretrained, **given)


def name_of(model: Backbone) -> str:
    """Deprecated: ``model.architecture``."""
    warn_deprecated("trueshift.models.registry.name_of(model)", "model.architecture")
    return model.architecture
