"""Position tables of MViTv2 among weights: never stretched into something else, whoever loads them."""

import pytest
import timm
import torch
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg, checkpoint_filter_fn

import trueshift as ts

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LARGE = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
NAME = "mvitv2_mini_32"
NARROW = {"embed_dim": (16, 32, 64)}
SMALL = MultiScaleVitCfg(depths=(1, 2), embed_dim=(32, 64), num_heads=(1, 2))


def with_strong_positions(name: str, **arguments) -> ts.models.MvitV2:
    """A network in which positions count, as they do once it is trained."""
    torch.manual_seed(0)
    model = ts.create_model(name, num_classes=7, **{**NARROW, **arguments}).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "rel_pos" in key:
                value.normal_()
    return model


def from_file(model: torch.nn.Module, name: str, path, **arguments) -> ts.models.MvitV2:
    """Its weights through timm's ``pretrained_cfg``."""
    torch.save(model.state_dict(), path / "weights.pth")
    cfg = {"file": str(path / "weights.pth"), "num_classes": 7, "input_size": (3, 32, 32), "classifier": "head.fc"}
    return timm.create_model(name, pretrained=True, pretrained_cfg=cfg, num_classes=7, **{**NARROW, **arguments}).eval()


@pytest.mark.parametrize(
    ("name", "positions"), [(f"a_{NAME}", "circular"), (f"a_{NAME}", "shortest"), (NAME, "circular"), (NAME, "linear")]
)
@torch.no_grad()
def test_of_a_network_without_positions_they_stay_what_they_are(name, positions, tmp_path):
    model = with_strong_positions(name, positions=positions)
    again = from_file(model, name, tmp_path)
    assert again.config.position_mode == positions
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in again.state_dict().items())
    wrapper = from_file(model, name, tmp_path, features_only=True)
    assert torch.equal(wrapper(IMAGES)[-1], model.forward_intermediates(IMAGES)[1][-1])


@pytest.mark.parametrize(
    ("name", "trained", "wanted"),
    [
        (f"a_{NAME}", "circular", "shortest"),
        (f"a_{NAME}", "shortest", "circular"),
        (NAME, "circular", "linear"),
        (NAME, "shortest", "circular"),
    ],
)
@torch.no_grad()
def test_read_in_another_way_and_for_another_size_they_are_equivalent(name, trained, wanted, tmp_path):
    """Around the image a table of the circle and a linear one, read at the shortest distance, hold the same."""
    model = with_strong_positions(name, positions=trained)
    again = from_file(model, name, tmp_path, positions=wanted)
    assert again.config.positions == wanted
    torch.testing.assert_close(again(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-5)
    for positions in (trained, wanted) if name.startswith("a_") else ():
        larger = from_file(model, name, tmp_path, positions=positions, img_size=64)
        torch.testing.assert_close(larger(LARGE), model(LARGE), rtol=1e-5, atol=1e-5)  # which interpolates as it reads
        resized = with_strong_positions(name, positions=trained)
        resized.set_input_size(64)
        torch.testing.assert_close(larger(LARGE), resized(LARGE), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_timms_weights_for_another_size_become_what_timm_makes_of_them(tmp_path):
    theirs = MultiScaleVit(SMALL, (64, 64), num_classes=7)
    larger = MultiScaleVit(SMALL, (128, 128), num_classes=7)
    expected = checkpoint_filter_fn(dict(theirs.state_dict()), larger)
    sizes = {key: getattr(SMALL, key) for key in ("depths", "embed_dim", "num_heads")}
    strides = {"stride_q": (1, 2), "stride_kv": (4, 2), "patch_kernel": 7, "patch_stride": 4, "patch_padding": 3}
    wanted = {**sizes, **strides, "img_size": 128}
    for name, positions in ((NAME, "linear"), (f"a_{NAME}", "shortest")):
        ours = from_file(theirs, name, tmp_path, **wanted)
        assert ours.config.position_mode == positions
        assert all(torch.equal(value, expected[key]) for key, value in ours.state_dict().items())


def test_facebooks_names_are_read(tmp_path):
    """As published before timm: blocks counted through all stages."""
    model = with_strong_positions(NAME)
    numbers = {"stages.0.blocks.0": 0, "stages.1.blocks.0": 1, "stages.1.blocks.1": 2, "stages.2.blocks.0": 3}
    numbers["stages.2.blocks.1"] = 4
    published = {}
    for key, value in model.state_dict().items():
        start = ".".join(key.split(".")[:4])
        key = key.replace(start, f"blocks.{numbers[start]}") if start in numbers else key
        key = key.replace("shortcut_proj_attn", "proj").replace("head.fc", "head.projection")
        published[key] = value
    torch.save({"model_state": published}, tmp_path / "published.pyth")
    cfg = {"file": str(tmp_path / "published.pyth"), "num_classes": 7, "classifier": "head.fc"}
    again = ts.create_model(NAME, pretrained=True, pretrained_cfg=cfg, num_classes=7, **NARROW)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in again.state_dict().items())


def test_of_a_single_stage_their_own_size_tells_what_they_are(tmp_path):
    """Nothing else does: 7 rows may be 7 steps around, or distances of up to 3 steps to both sides."""
    stage = {"depths": (1,), "embed_dim": (32,), "num_heads": (1,), "stride_q": (1,), "stride_kv": (1,)}
    model = with_strong_positions(f"a_{NAME}", img_size=14, **stage)
    again = from_file(model, f"a_{NAME}", tmp_path, img_size=14, **stage)
    assert again.config.position_mode == "circular"
    with pytest.raises(RuntimeError, match="size mismatch"):
        from_file(model, f"a_{NAME}", tmp_path, img_size=32, **stage)


def ours(name=f"a_{NAME}", **arguments):
    return ts.create_model(name, **arguments)


def segmenter(name):
    return ts.UperNet(name, 3, channels=16)


@pytest.mark.parametrize(
    ("model", "other", "message"),
    [
        (
            ours,
            lambda: ts.adapt(ours(NAME)),
            r"='shortest'.* this model has .*'circular'.*: create it with .*='shortest'",
        ),
        (lambda: ts.adapt(ours(NAME)), ours, "create it with positions='circular'"),
        (lambda: ours(NAME, positions="circular"), lambda: ours(NAME), "create it with positions='linear'"),
        (lambda: ours(img_size=64), ours, r"with img_size=\(32, 32\), load them, then set_input_size\(\(64, 64\)\)"),
        (lambda: segmenter(f"a_{NAME}"), lambda: ts.adapt(segmenter(NAME)), "create it with positions='shortest'"),
        (ours, lambda: ours(num_classes=4), r"^((?!positions).)*$"),  # another mistake is not blamed on positions
    ],
)
def test_tables_that_do_not_fit_are_refused_with_what_would(model, other, message):
    with pytest.raises(RuntimeError, match=f"(?s){message}"):
        model().load_state_dict(other().state_dict())


def test_a_folder_with_other_tables_is_refused(tmp_path):
    with pytest.raises(ValueError, match="create it with positions='circular'"):
        ts.from_pretrained(ours().save_pretrained(tmp_path), positions="shortest")
