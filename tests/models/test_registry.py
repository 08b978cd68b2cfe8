"""Every registered model: forward, backward, train and eval, features, state, dtype, sizes."""

import re

import jaxtyping
import pytest
import timm
import torch
from references import make_reference
from safetensors.torch import save_file

import trueshift as ts
from trueshift.models import registry
from trueshift.models.registry import ALIASES

# The small ones by default, the paper's among the slow; of larger ones test_same_as_reference runs every one once.
SIZES = ("mini", "tiny_patch4", "tiny_window8", "cvt_13", "mvitv2_tiny")
MODELS = [
    pytest.param(name, marks=() if "mini" in name else pytest.mark.slow)
    for name in ts.list_models()
    if any(size in name for size in SIZES)
]


def make(name: str, **arguments) -> tuple[ts.models.Backbone, torch.Tensor]:
    model = ts.create_model(name, num_classes=3, **arguments)
    return model, torch.randn(2, 3, *model.config.size)


@pytest.mark.parametrize("name", MODELS)
def test_forward_backward_train_and_eval(name):
    model, images = make(name)
    model.train()
    model(images).sum().backward()
    missing = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing
    model.eval()
    with torch.no_grad():
        logits = model(images)
        assert logits.shape == (2, 3)
        assert torch.equal(logits, model(images))
        assert torch.equal(logits, model.forward_head(model.forward_features(images)))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_features_stand_where_they_say(name):
    model, images = make(name)
    model.eval()
    stages = model.features(images)
    assert len(stages) == len(model.feature_info)
    for tokens, info in zip(stages, model.feature_info, strict=True):
        assert tokens.values.shape[3] == info["num_chs"]
        assert tokens.grid.stride == (info["reduction"], info["reduction"])
        assert tokens.grid.image_size == tuple(images.shape[2:])
    normed = model.norm(stages[-1].values)
    assert normed.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_state_goes_into_a_new_model(name):
    model, images = make(name)
    other, _ = make(name)
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(model.eval()(images), other.eval()(images))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@torch.no_grad()
def test_other_types(name, dtype):
    model, images = make(name)
    model.to(dtype).eval()
    logits = model(images.to(dtype))
    assert logits.dtype == dtype
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_an_image_twice_as_wide(name):
    model, images = make(name)
    wide = torch.cat([images, images.flip(3)], 3)
    model.eval()
    assert model(wide).shape == (2, 3)
    assert [tokens.grid.image_size for tokens in model.features(wide)] == [tuple(wide.shape[2:])] * len(
        model.feature_info
    )


@pytest.mark.parametrize("name", MODELS)
def test_wrong_input_is_refused_with_what_would_be_right(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model, images = make(name)
    rows, columns = model.size_multiple
    with pytest.raises(ValueError, match=f"height {images.shape[2] + 1}: needs a multiple of {rows}"):
        model(torch.randn(1, 3, images.shape[2] + 1, images.shape[3]))
    with pytest.raises(ValueError, match=f"width {columns - 1}: needs a multiple of {columns}, e.g. {columns}"):
        model(torch.randn(1, 3, images.shape[2], columns - 1))
    with pytest.raises(ValueError, match="1 channels: this layer was made for 3"):
        model(images[:, :1])
    with pytest.raises(ValueError, match=r"needs \[B, 3, H, W\]"):
        model(images[0])
    with pytest.raises(TypeError, match=r"image.float\(\) / 255"):
        model(images.to(torch.uint8))
    if name.startswith("a_"):
        with pytest.raises(ValueError, match="NaN"):
            model(images.where(images < 1, torch.nan))


def test_names():
    names = ts.list_models()
    assert len(names) == len(set(names))
    assert {name.removeprefix("a_") for name in names} == {name for name in names if not name.startswith("a_")}
    assert set(ALIASES.values()) <= set(names)
    assert ts.list_models("a_cvt*") == ["a_cvt_13", "a_cvt_21", "a_cvt_mini_32", "a_cvt_w24"]
    assert "a_swin_tiny_patch4_window7_224" in ts.list_models(pretrained=True)
    for short in ("a_swin_tiny", "a_swinv2_tiny", "a_cvt_13", "a_mvitv2_tiny"):
        assert timm.is_model(short)


def test_names_by_several_filters_as_timm_takes_them():
    assert ts.list_models(["a_cvt*", "a_swin_mini*"]) == sorted(
        [*ts.list_models("a_cvt*"), *ts.list_models("a_swin_mini*")]
    )
    assert ts.list_models(("*mini*", "*mini_32"), exclude_filters="a_*") == [
        name for name in ts.list_models("*mini*") if not name.startswith("a_")
    ]
    assert ts.list_models("a_cvt*", exclude_filters=["*_21", "*w24"]) == ["a_cvt_13", "a_cvt_mini_32"]
    assert ts.list_models(exclude_filters="*") == []
    assert ts.list_models([]) == ts.list_models()
    ours = set(ts.list_models())
    for filters in ("a_*", ["a_swin*", "a_mvit*"]):
        for excluded in ("", "*mini*", ["*tiny*", "*mini*"]):
            theirs = [name for name in timm.list_models(filters, exclude_filters=excluded) if name in ours]
            assert sorted(theirs) == ts.list_models(filters, exclude_filters=excluded)


def test_timms_own_names_are_still_timms():
    for name in ("swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "mvitv2_tiny"):
        assert timm.models.model_entrypoint(name).__module__.startswith("timm.")
    with torch.device("meta"):
        assert type(timm.create_model("swin_tiny_patch4_window7_224")).__module__.startswith("timm.")


def test_small_models_are_small():
    for name in ts.list_models("*mini*"):
        assert 1e6 <= sum(p.numel() for p in ts.create_model(name).parameters()) <= 5e6


def test_unknown_names_and_arguments_are_refused_with_those_that_may_have_been_meant():
    with pytest.raises(ValueError, match="did you mean a_swin_tiny"):
        ts.create_model("a_swin_tny")
    with pytest.raises(TypeError, match="did you mean 'drop_path_rate'"):
        ts.create_model("a_swin_mini", droppath_rate=0.1)
    with pytest.raises(RuntimeError, match="Invalid pretrained tag"):
        ts.create_model("a_swin_tiny.nonsense")


SIZES_REFUSED = [  # and those that are named instead, each of which is taken
    ("a_swin_mini", 40, {}, "32 or 64"),
    ("swin_mini", 24, {}, "16 or 32"),  # windows are cut down to a small grid: not 48
    ("a_swin_mini", 1, {}, "8"),
    ("a_swinv2_mini", 100, {}, "96 or 128"),
    ("a_cvt_mini", 40, {}, "32 or 48"),
    ("a_mvitv2_mini", 20, {}, "16 or 24"),
    ("swin_tiny", 256, {"depths": (1, 1, 1, 1)}, "224 or 448"),
]


@pytest.mark.parametrize(("name", "size", "arguments", "near"), SIZES_REFUSED)
def test_a_size_that_no_image_could_have_is_refused_from_the_start(name, size, arguments, near):
    with pytest.raises(ValueError, match=rf"height {size}: .*, e\.g\. {near}$"):
        ts.create_model(name, img_size=size, **arguments)
    fitting = int(near.split()[-1])
    with pytest.raises(ValueError, match=rf"width {size}: "):
        ts.create_model(name, img_size=(fitting, size), **arguments)
    for fitting in map(int, near.split(" or ")):
        model = ts.create_model(name, img_size=fitting, num_classes=3, **arguments).eval()
        with torch.no_grad():
            assert model(torch.randn(1, 3, fitting, fitting)).shape == (1, 3)


def test_an_entrypoint_is_an_attribute_of_its_module():
    """timm's register_model writes its name into ``__all__``."""
    for name in ("a_swin_tiny_patch4_window7_224", "a_swin_mini"):
        assert name in registry.__all__
        assert callable(getattr(registry, name))
    with pytest.raises(AttributeError, match="no attribute 'a_swan'"):
        registry.a_swan  # noqa: B018


def test_a_size_that_no_image_could_have_is_refused_later_too():
    model = ts.create_model("a_swin_mini").eval()
    with pytest.raises(ValueError, match=r"height 40: .* windows .*, e\.g\. 32 or 48"):
        model.set_input_size(40)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 10)  # and nothing was changed


PER_STAGE = [
    ("a_swin_mini", "num_heads", (2, 4)),
    ("a_swin_mini", "window_size", (4, 4)),
    ("a_swinv2_mini", "pretrained_window_sizes", (0, 0, 0, 0)),
    ("a_cvt_mini", "embed_dim", (64, 128)),
    ("a_cvt_mini", "num_heads", (1, 2)),
    ("a_cvt_mini", "cls_token", (False, True)),
    ("a_cvt_mini", "patch_sizes", (3, 3, 3, 3)),
    ("a_cvt_mini", "patch_strides", (2, 2)),
    ("a_cvt_mini", "patch_paddings", (1, 1)),
    ("a_mvitv2_mini", "embed_dim", (64, 128, 256, 512)),
    ("a_mvitv2_mini", "num_heads", (1, 2)),
    ("a_mvitv2_mini", "stride_q", (1, 2, 2, 2)),
    ("a_mvitv2_mini", "stride_kv", (4, 2)),
]


@pytest.mark.parametrize(("name", "field", "value"), PER_STAGE)
def test_one_value_for_each_stage_is_needed(name, field, value):
    depths = ts.create_model(name).config.depths
    message = f"{field} {value}: needs one value for each of the {len(depths)} stages of depths {depths}"
    with pytest.raises(ValueError, match=re.escape(message)):
        ts.create_model(name, **{field: value})


@pytest.mark.parametrize("name", ["swin_tiny", "swinv2_tiny", "cvt_13", "mvitv2_tiny"])
def test_fewer_stages_need_fewer_values(name):
    with pytest.raises(ValueError, match=r"needs one value for each of the 2 stages of depths \(1, 1\)"):
        ts.create_model(name, depths=(1, 1))


def test_arguments_reach_the_model():
    model = ts.create_model("a_swin_mini", num_classes=0, in_chans=1, img_size=64, drop_path_rate=0.2, drop_rate=0.1)
    assert isinstance(model.get_classifier(), torch.nn.Identity)
    assert model.head.drop.p == 0.1
    assert model.layers[-1].blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)
    assert model(torch.randn(1, 1, 64, 64)).shape == (1, 256)
    assert ts.create_model("a_swin_mini", num_classes=None).num_classes == 10


PUBLISHED = [
    ("swin_tiny_patch4_window7_224", {"depths": (1, 1, 1, 1)}),
    pytest.param("mvitv2_tiny", {"depths": (1, 2, 5, 2)}, marks=pytest.mark.slow),
    pytest.param("cvt_13", {}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "arguments"), PUBLISHED)
@torch.no_grad()
def test_pretrained_weights_of_the_ordinary_network_load_into_both(tmp_path, name, arguments):
    """As published: timm's file under timm's names, and transformers' CvT."""
    reference = make_reference(name, **({} if name in ("mvitv2_tiny", "cvt_13") else arguments))
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
