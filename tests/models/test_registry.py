"""Every registered model: training and evaluation, features, copies, types, sizes, names and arguments."""

import inspect
import pickle
from copy import deepcopy
from typing import Any, get_type_hints

import pytest
import timm
import torch
from model_checks import narrow
from references import make_reference
from safetensors.torch import save_file

import trueshift as ts
from trueshift.models import registry
from trueshift.models.registry import ALIASES

# others differ in numbers alone: test_same_as_reference.py runs every one, test_model_shift_laws.py those of the paper
every_model = pytest.mark.parametrize("name", ts.list_models("*mini*"))
each_family = pytest.mark.parametrize("name", ts.list_models("a_*mini*"))  # what an ordinary network shares with it


def make(name: str, **arguments) -> tuple[ts.models.Backbone, torch.Tensor]:
    model = ts.create_model(name, num_classes=3, **narrow(name), **arguments).eval()
    return model, torch.randn(2, 3, *model.config.size)


@every_model
def test_training_with_and_without_checkpointing(name):
    """Every weight learns, on random grids too. Batch norms see a batch once, whatever is computed again."""
    model, images = make(name, **({"grid_drop_rate": 0.5} if name.startswith("a_") else {}))
    state = deepcopy(model.train().state_dict())

    def learned() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model.load_state_dict(state)
        model.zero_grad()
        model(images).square().sum().backward()
        gradients = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        return gradients | {key: buffer.clone() for key, buffer in model.named_buffers()}

    plain = learned()
    assert plain.keys() >= dict(model.named_parameters()).keys()
    assert all(value.isfinite().all() for value in plain.values())
    model.set_grad_checkpointing()
    assert all(torch.equal(value, plain[key]) for key, value in learned().items())


@every_model
@torch.no_grad()
def test_features_classifier_and_copies(name):
    model, images = make(name)
    wide = torch.cat([images, images.flip(3)], 3)
    logits, stages = model(wide), model.features(wide)
    assert logits.shape == (2, 3)
    for tokens, info in zip(stages, model.feature_info, strict=True):
        assert tokens.values.shape[3] == info["num_chs"]
        assert tokens.grid.stride == (info["reduction"], info["reduction"])
        assert tokens.grid.image_size == tuple(wide.shape[2:])
    pooled = model.forward_head(model.forward_features(wide), pre_logits=True)
    assert pooled.shape == (2, model.num_features)
    torch.testing.assert_close(model.get_classifier()(pooled), logits)
    model.set_input_size(model.config.img_size)  # its own: nothing changes
    other, _ = make(name)
    other.load_state_dict(model.state_dict(), strict=True)
    for copy in (model, other, pickle.loads(pickle.dumps(model))):
        assert torch.equal(copy(wide), logits)
    for dtype in (torch.float64, torch.bfloat16):
        found = other.to(dtype)(images.to(dtype))
        assert found.dtype == dtype
        assert found.isfinite().all()
    model.reset_classifier(6)
    assert model(images).shape == (2, model.num_classes) == (2, 6)
    model.reset_classifier(0, "")
    assert model(images).shape == model.forward_features(images).shape
    with pytest.raises(ValueError, match="global_pool"):
        model.reset_classifier(2, "max")


class Asking(ts.MaxNorm):
    """A criterion of a user's own that makes the host wait for a GPU."""

    def scores(self, candidates):
        scores = super().scores(candidates)
        return scores / scores.amax().item()


@each_family
def test_shapes_can_be_had_without_memory(name):
    """Nor does a network look at values while it learns."""
    with torch.device("meta"):
        model, images = make(name, drop_path_rate=0.2, grid_drop_rate=0.5)
        asking, _ = make("a_swin_mini", criterion=Asking())
    assert model(images).shape == (2, 3)
    model.train()(images).sum().backward()
    assert all(parameter.grad.is_meta for parameter in model.parameters())
    with pytest.raises(RuntimeError, match="item"):
        asking(torch.empty(2, 3, 32, 32, device="meta"))


@every_model
@torch.no_grad()
def test_another_input_size(name):
    model, images = make(name)
    with pytest.raises(ValueError, match=r"height 44: needs"):
        model.set_input_size(44)
    assert model(images).shape == (2, 3)  # nothing changed
    model.set_input_size(64)
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 3)
    sizes = {key: getattr(model.config, key) for key in ("img_size", "window_size") if hasattr(model.config, key)}
    make(name, **sizes)[0].load_state_dict(model.state_dict())


@every_model
def test_wrong_input_is_refused_with_what_would_be_right(name, our_errors):
    model, images = make(name)
    (rows, columns), (height, width) = model.size_multiple, images.shape[2:]
    for wrong, error, message in [
        (torch.randn(1, 3, height + 1, width), ValueError, f"height {height + 1}: needs a multiple of {rows}"),
        (torch.randn(1, 3, height, columns - 1), ValueError, f"width {columns - 1}: .* {columns}, e.g. {columns}"),
        (images[:, :1], ValueError, "1 channels: this layer was made for 3"),
        (images[0], ValueError, r"needs \[B, 3, H, W\]"),
        (images.to(torch.uint8), TypeError, r"image.float\(\) / 255"),
        *([(images.where(images < 1, torch.nan), ValueError, "NaN")] if name.startswith("a_") else []),
    ]:
        with pytest.raises(error, match=message):
            model(wrong)


def test_names():
    names = ts.list_models()
    assert {name.removeprefix("a_") for name in names} == {name for name in names if not name.startswith("a_")}
    assert all(map(timm.is_model, ("a_swin_tiny", "a_swinv2_tiny", "a_cvt_13", "a_mvitv2_tiny", *ALIASES)))
    with torch.device("meta"):
        for name in ts.list_models("*mini*"):
            assert 1e6 <= sum(p.numel() for p in ts.create_model(name).parameters()) <= 5e6


def test_names_by_filters_and_weights():
    assert ts.list_models(("a_cvt_1*", "a_*mini_32")) == ["a_cvt_13", "a_cvt_mini_32", "a_mvitv2_mini_32"]
    assert ts.list_models("a_cvt*", exclude_filters=["*_21", "*w24"]) == ["a_cvt_13", "a_cvt_mini_32"]
    assert ts.list_models(exclude_filters="*") == []
    assert ts.list_models([]) == ts.list_models()
    own, converted = (set(ts.list_models(pretrained=kind)) for kind in ("own", "converted"))
    assert own | converted == set(ts.list_models(pretrained=True))
    assert not own & converted
    assert {"a_swin_mini_patch2_window4_32", "swin_tiny_patch4_window7_224"} <= own
    assert "a_swin_tiny_patch4_window7_224" in converted


def test_timms_own_names_are_still_timms():
    for name in ("swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "mvitv2_tiny"):
        assert timm.models.model_entrypoint(name).__module__.startswith("timm.")
    with torch.device("meta"):
        assert type(timm.create_model("swin_tiny_patch4_window7_224")).__module__.startswith("timm.")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ts.create_model("a_swin_tny"), ValueError, "did you mean a_swin_tiny"),
        (lambda: ts.create_model("a_swin_mini", droppath_rate=0.1), TypeError, "did you mean 'drop_path_rate'"),
        (lambda: ts.create_model("a_swin_tiny.nonsense"), RuntimeError, "Invalid pretrained tag"),
        (lambda: ts.list_models(pretrained="mine"), ValueError, "needs True, False, 'own' or 'converted'"),
        (lambda: registry.a_swan, AttributeError, "no attribute 'a_swan'"),
        (lambda: ts.models.SwinConfig(num_heads=(3,) * 3), ValueError, r"num_heads \(3, 3, 3\): needs one .* 4 stages"),
        (lambda: ts.models.SwinConfig(window_size=(7,)), ValueError, r"window_size \(7,\): needs one value for each"),
        (lambda: ts.models.SwinV2Config(pretrained_window_sizes=(7,) * 5), ValueError, "pretrained_window_sizes"),
        (lambda: ts.models.CvtConfig(cls_token=(True,)), ValueError, r"cls_token \(True,\): needs one .* of depths"),
        (lambda: ts.models.CvtConfig(act_layer="relu"), ValueError, "act_layer 'relu': needs one of"),
        (lambda: make("swin_mini")[0].set_input_size(32, patch_size=4), ValueError, "patch_size 4: cannot be changed"),
        (lambda: make("swin_mini")[0].set_input_size(8), ValueError, "too small for windows of a 8-th"),
        (lambda: ts.models.MvitV2Config(stride_kv=(1,)), ValueError, r"stride_kv \(1,\): needs one value for each"),
    ],
)
def test_what_there_is_not_is_refused_with_what_may_have_been_meant(call, error, message):
    with pytest.raises(error, match=message):
        call()


SIZES_REFUSED = [  # and those that are named instead, each of which is taken
    ("a_swin_mini", 36, "32 or 40"),
    ("swin_mini", 40, "32 or 64"),
    ("swin_mini", 24, "16 or 32"),  # windows are cut down to a small grid: not 48
    ("a_swin_mini", 1, "8"),
    ("a_swinv2_mini", 100, "96 or 104"),
    ("a_cvt_mini", 40, "32 or 48"),
    ("a_mvitv2_mini", 20, "16 or 24"),
]


@pytest.mark.parametrize(("name", "size", "near"), SIZES_REFUSED)
@torch.no_grad()
def test_a_size_that_no_image_could_have_is_refused(name, size, near):
    with pytest.raises(ValueError, match=rf"height {size}: .*, e\.g\. {near}($|;)"):
        make(name, img_size=size)
    for fitting in map(int, near.split(" or ")):
        model, images = make(name, img_size=fitting)
        assert model(images).shape == (2, 3)
    with pytest.raises(ValueError, match=rf"width {size}: "):
        make(name, img_size=(fitting, size))


def test_an_entrypoint_is_an_attribute_of_its_module():
    """timm's register_model writes its name into ``__all__``."""
    for name in ("a_swin_tiny_patch4_window7_224", "a_swin_mini"):
        assert name in registry.__all__
        assert callable(getattr(registry, name))


def test_arguments_reach_the_model():
    model = ts.create_model("a_swin_mini", num_classes=0, in_chans=1, img_size=64, drop_path_rate=0.2, drop_rate=0.1)
    assert isinstance(model.get_classifier(), torch.nn.Identity)
    assert model.head.drop.p == 0.1
    assert model.layers[-1].blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)
    assert model(torch.randn(1, 1, 64, 64)).shape == (1, 256)
    assert ts.create_model("a_swin_mini", num_classes=None).num_classes == 10


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("swin_tiny_patch4_window7_224", {"depths": (1, 1, 1, 1)}),
        pytest.param("cvt_13", {}, marks=pytest.mark.slow),  # of MViTv2: test_position_tables.py
    ],
)
@torch.no_grad()
def test_pretrained_weights_of_the_ordinary_network_load_into_both(tmp_path, name, arguments):
    """As published: timm's file under timm's names, and transformers' CvT."""
    reference = make_reference(name, **arguments)
    path = tmp_path / f"{name}.safetensors"
    published = getattr(reference, "model", reference)
    save_file(published.state_dict(), path)
    cfg = {"file": str(path), "num_classes": 1000, "input_size": (3, 224, 224), "classifier": "head.fc"}
    image = torch.randn(1, 3, 224, 224)
    ordinary = ts.create_model(name, pretrained=True, pretrained_cfg=cfg, **arguments).eval()
    torch.testing.assert_close(ordinary(image), reference(image), rtol=1e-4, atol=1e-4)
    adaptive = ts.create_model(f"a_{name}", pretrained=True, pretrained_cfg=cfg, **arguments).eval()
    for key, value in adaptive.state_dict().items():
        assert torch.equal(value, ordinary.state_dict()[key])
    other = ts.create_model(f"a_{name}", pretrained=True, pretrained_cfg=cfg, num_classes=7, **arguments)
    assert other(image).shape == (1, 7)


def test_public_functions_say_what_they_give():
    functions = [thing for name in ts.__all__ if inspect.isfunction(thing := getattr(ts, name))]
    assert {ts.create_model, ts.adapt, ts.revert} <= set(functions)
    assert [function.__name__ for function in functions if get_type_hints(function).get("return", Any) is Any] == []
