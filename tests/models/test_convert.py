"""adapt and revert: every weight stays, the ordinary output comes back, the adaptive one does not move."""

from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from model_checks import broken_pairs, everything, narrow, perturb_norms, random_shifts
from references import TransformersCvt
from timm.layers import freeze_batch_norm_2d
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2

import trueshift as ts
from trueshift.models.cvt import rename_cvt_keys
from trueshift.testing import photographs


def swin(kind=SwinTransformer, **sizes):
    return kind(embed_dim=32, num_heads=(2, 4), num_classes=6, **{"img_size": 64, "window_size": 8, **sizes})


def mvit(depths=(1, 2), **sizes):
    return MultiScaleVit(
        MultiScaleVitCfg(depths=depths, embed_dim=(32, 64), num_heads=(1, 2), **sizes), (64, 64), num_classes=6
    )


V2 = partial(swin, SwinTransformerV2)
SMALL = {
    "swin": partial(swin, img_size=32, patch_size=2, window_size=4, depths=(2, 2)),
    "swin, windows by stage": partial(
        swin, img_size=(32, 64), patch_size=2, window_size=(4, 8), depths=(2, 1), in_chans=1
    ),
    "swinv2": partial(V2, depths=(2, 2)),
    "swinv2, trained with another window": partial(V2, depths=(2, 1), pretrained_window_sizes=(4, 4)),
    "mvitv2": mvit,
    "mvitv2, late growth": partial(mvit, (2, 2), expand_attn=False),
    "mvitv2, class token": partial(mvit, use_cls_token=True),
    "cvt": lambda: TransformersCvt(num_classes=6, embed_dim=(32, 64, 64), depths=(1, 2, 3), num_heads=(1, 2, 2)),
}


def image_for(model: torch.nn.Module, batch: int = 2) -> torch.Tensor:
    size = getattr(getattr(model, "patch_embed", None), "img_size", (64, 64))
    channels = getattr(model, "in_chans", 3)
    return torch.randn(batch, channels, *size)


def trained_a_little(make) -> torch.nn.Module:
    torch.manual_seed(0)
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    images, labels = image_for(model, 6), torch.arange(6)
    for _ in range(2):
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def test_norms_that_are_frozen_stay_so():
    """As timm and torchvision freeze them; those in evaluation mode alone, and with an epsilon of their own, too."""
    source, images = trained_a_little(SMALL["cvt"]).model, torch.randn(2, 3, 64, 64)
    first, second = source.cvt.encoder.stages[:2]
    second.apply(lambda part: setattr(part, "eps", 0.1) if isinstance(part, torch.nn.BatchNorm2d) else None)
    freeze_batch_norm_2d(first)
    source.train()
    second.eval()
    reverted = ts.revert(ts.adapt(source))
    own = [part for part in reverted.modules() if hasattr(part, "running_mean")]
    theirs = [part for part in source.modules() if hasattr(part, "running_mean")]
    for norm, known in zip(own, theirs, strict=True):
        assert (type(norm), norm.eps, norm.training) == (type(known), known.eps, known.training)
        assert norm is not known
        assert torch.equal(norm.running_var, known.running_var)
    assert [type(norm).__name__ for norm in own[:4]] == ["FrozenBatchNorm2d"] * 3 + ["BatchNorm2d"]
    with torch.no_grad():
        expected = source.eval()(images).logits
        assert (reverted.eval()(images) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("kind", SMALL)
def test_there_and_back(kind):
    reference = trained_a_little(SMALL[kind])
    source = getattr(reference, "model", reference)
    images = image_for(reference)
    adapted = ts.adapt(source)
    assert not adapted.training
    original = rename_cvt_keys(source.state_dict())
    reverted = ts.revert(adapted)
    for model in (adapted, reverted):
        assert model.state_dict().keys() == original.keys()
        assert all(torch.equal(value, original[key]) for key, value in model.state_dict().items())
    with torch.no_grad():
        expected = reference(images)
        assert (reverted(images) - expected).abs().max() <= 1e-5 * expected.abs().max()
        assert (adapted(images) - expected).abs().max() > 1e-4 * expected.abs().max()  # and is not the same network
        broken, _ = broken_pairs(everything(adapted), images, random_shifts(images, 4))
        assert not broken
        for parameter in (*adapted.parameters(), *reverted.parameters()):  # nothing of the copies is shared
            parameter.zero_()
        assert torch.equal(reference(images), expected)


def test_mode_type_and_frozen_weights_are_kept():
    model = SMALL["swin"]().to(torch.bfloat16)
    model.patch_embed.requires_grad_(False)
    model.set_grad_checkpointing(True)
    adapted = ts.adapt(model.train(), criterion={"align": "fixed"}, feature_frame="pixel")
    assert adapted.training
    assert adapted.head.fc.weight.dtype == torch.bfloat16
    assert not adapted.patch_embed.proj.weight.requires_grad
    assert not adapted.patch_embed.norm.bias.requires_grad
    assert adapted.layers[0].blocks[0].attn.qkv.weight.requires_grad
    assert adapted.layers[0].grad_checkpointing
    assert adapted.config.feature_frame == "pixel"
    assert not adapted.layers[0].align.criterion.adaptive
    assert ts.adapt(timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1))).pretrained_cfg["mean"]


@torch.no_grad()
def test_every_part_of_a_twin_has_the_type_of_its_source():
    """A table that is no weight, and criteria that the source has not, too."""
    segments = ts.UperNet("swinv2_mini", 3, channels=8, **narrow("swinv2_mini"))
    for source in (SMALL["swinv2"]().double(), segments.double()):
        adapted, image = ts.adapt(source.eval(), criterion="learned"), image_for(source, 1).double()
        for twin in (adapted, ts.revert(adapted)):
            types = {part.dtype for part in (*twin.parameters(), *twin.buffers()) if part.is_floating_point()}
            assert types == {torch.float64}
            assert twin(image).dtype == torch.float64


@pytest.mark.parametrize("kind", ["swin", "swinv2", "mvitv2"])
def test_the_classifier_that_a_network_has_now(kind):
    model = SMALL[kind]().eval()
    image = image_for(model, 1)
    for changed in ((0, ""), (3, "avg")):
        model.reset_classifier(*changed)
        assert ts.adapt(model)(image).shape == model(image).shape
    model.head.fc = torch.nn.Linear(model.num_features, 5)  # num_classes is still 3
    twin = ts.adapt(model)
    assert twin.num_classes == 5
    assert torch.equal(twin.head.fc.weight, model.head.fc.weight)


@pytest.mark.parametrize("name", ["swin_mini", "cvt_mini", "mvitv2_mini"])
@torch.no_grad()
def test_ours_can_be_adapted_and_reverted_too(name):
    """With the classifier that it has now."""
    ordinary = ts.create_model(name, **narrow(name)).eval()
    image = photographs(32)["rocket"][None]
    for changed in ((3,), (0, "")):
        ordinary.reset_classifier(*changed)
        adapted = ts.adapt(ordinary)
        assert adapted(image).shape == ordinary(image).shape
        assert torch.equal(adapted(image), adapted(ts.circular_shift(image, (5, 3), (2, 3))))
        assert torch.equal(ts.revert(adapted)(image), ordinary(image))


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("a_swin_mini", {"criterion": "spot", "border": "closed"}),
        ("a_swinv2_mini", {"criterion": "learned"}),
        ("a_cvt_mini", {"criterion": {"merge": "fixed"}, "anchor": False, "padding": "zeros"}),
        ("a_swin_mini", {"grids": 2, "circular": "width", "grid_drop_rate": 0.5}),
        ("a_mvitv2_mini", {"positions": "linear"}),
        ("a_mvitv2_mini", {"positions": "shortest"}),
    ],
    ids=str,
)
@torch.no_grad()
def test_an_adaptive_network_stays_as_it_is_but_for_what_is_asked(name, own):
    model = perturb_norms(ts.create_model(name, **own, **narrow(name))).eval()
    image = photographs(32)["rocket"][None]
    same = ts.adapt(model)
    assert same.config == model.config
    assert torch.equal(same(image), model(image))
    assert ts.adapt(model, feature_frame="pixel").config == replace(model.config, feature_frame="pixel")
    other = ts.adapt(model, criterion="input_norm")
    assert other.config == replace(model.config, criterion="input_norm")
    assert not torch.equal(other.eval()(image), model(image))


@torch.no_grad()
def test_what_follows_from_a_change():
    """Positions of MViTv2 follow its border, as far as its tables can; an anchored fixed grid is an ordinary one."""
    closed = ts.create_model("a_mvitv2_mini", border="closed", **narrow("a_mvitv2_mini")).eval()
    assert ts.adapt(closed, border="circular").config.positions == "shortest"
    circle = ts.create_model("a_mvitv2_mini", **narrow("a_mvitv2_mini"))
    assert ts.adapt(circle, border="closed").config.positions == "circular"
    assert ts.revert(circle).config.positions == "circular"  # cannot become linear
    anchored = ts.adapt(ts.create_model("swin_mini", anchor=True, border="circular")).config
    assert (anchored.criterion, anchored.anchor, anchored.border) == ("max_norm", None, None)
    several = ts.create_model("a_swin_mini", criterion="learned", grids=4, grid_drop_rate=0.4)
    ordinary = ts.revert(several)
    assert (ordinary.config.grids, ordinary.config.grid_drop_rate) == (1, 0)
    assert not any("criterion" in key for key in ordinary.state_dict())
    segments = ts.UperNet("a_swin_mini", 3, channels=8, criterion="learned", border="closed").eval()
    same, image = ts.adapt(segments), torch.rand(1, 3, 32, 32)
    assert same.encoder.config == segments.encoder.config
    assert torch.equal(same(image), segments(image))
    with torch.device("meta"):
        twin = ts.revert(ts.create_model("a_cvt_mini"))  # of what has no storage
    assert all(weight.is_meta for weight in twin.parameters())


def test_microsofts_checkpoint():
    """The same weights under Microsoft's names, from their shapes alone; trained with another activation."""
    patches = {"patch_sizes": (7, 3, 3), "patch_strides": (4, 2, 2), "patch_paddings": (2, 1, 1)}
    sizes = {"embed_dim": (64, 128, 192), "num_heads": (1, 2, 3), "img_size": 64, **patches}
    ours = ts.create_model("cvt_mini", num_classes=6, act_layer="quick_gelu", **sizes)
    renamed = {}
    for key, value in ours.state_dict().items():
        key = key.replace("patch_embed.", "stage0.patch_embed.", 1) if key.startswith("patch_embed.") else key
        key = key.replace("downsample.", "patch_embed.").replace("stages.", "stage").replace("head.fc.", "head.")
        renamed[key] = value
    assert "stage2.blocks.0.attn.conv_proj_k.bn.running_var" in renamed
    assert "head.weight" in renamed
    adapted = ts.adapt(renamed).eval()
    assert all(torch.equal(value, ours.state_dict()[key]) for key, value in adapted.state_dict().items())
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ts.revert(adapted).eval()(image), ours.eval()(image))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: torch.nn.Linear(3, 3), TypeError, r"timm's SwinTransformer.*CvtForImageClassification.*canonicalize"),
        (lambda: {"a.weight": torch.ones(1)}, TypeError, "keys like 'a.weight' .* needs timm's SwinTransformer"),
        (lambda: mvit((1, 1), use_abs_pos=True), ValueError, "absolute positions"),
        (lambda: mvit((1, 1), mode="max"), ValueError, "'max'"),
    ],
)
def test_what_cannot_be_adapted_is_refused_with_what_can(make, error, message, our_errors):
    with pytest.raises(error, match=message):
        ts.adapt(make())
    with pytest.raises(TypeError, match="trueshift's own"):
        ts.revert(make())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: setattr(model, "head", torch.nn.Identity()), "its head was replaced: needs reset_classifier"),
        (lambda model: setattr(model.layers[1].blocks[0].mlp, "act", torch.nn.ReLU()), "its activation is not GELU"),
        (lambda model: model.reset_classifier(3, "max"), "global_pool 'max': needs one of"),
    ],
)
def test_what_a_twin_would_not_have_is_refused(change, message):
    model = SMALL["swin"]()
    change(model)
    with pytest.raises(ValueError, match=message):
        ts.adapt(model)


class Louder(SwinTransformer):
    def forward_features(self, x):
        return 2 * super().forward_features(x)


class Named(SwinTransformer):
    title = "with timm's forward"


def test_code_of_ones_own_which_a_twin_would_not_have_is_refused():
    with pytest.raises(ValueError, match=r"its Louder has code of its own.*trueshift.canonicalize"):
        ts.adapt(swin(Louder, depths=(1, 1)))
    assert ts.adapt(swin(Named, depths=(1, 1))).num_classes == 6
