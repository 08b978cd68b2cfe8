"""Where people use timm models today, ours work the same way."""

import pytest
import timm
import timm.data
import timm.optim
import torch
from model_checks import narrow

import trueshift as ts
from trueshift.testing import photographs

FAMILIES = ("swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "mvitv2_tiny")
MINI = ts.list_models("a_*mini*")


@pytest.mark.parametrize("name", FAMILIES)
def test_feature_info_groups_and_decay_are_timms(name):
    with torch.device("meta"):
        theirs, ours = timm.create_model(name), ts.create_model(name)
    for mine, other in zip(ours.feature_info, theirs.feature_info, strict=True):
        assert (mine["num_chs"], mine["reduction"]) == (other["num_chs"], other["reduction"])
    features = (timm.create_model(each, features_only=True, out_indices=(1, 3)) for each in (f"a_{name}", name))
    mine, other = (each.feature_info for each in features)
    assert (mine.channels(), mine.reduction()) == (other.channels(), other.reduction())
    assert ours.num_features == theirs.num_features
    assert ours.head_hidden_size == theirs.head_hidden_size
    parameters = [key for key, _ in theirs.named_parameters()]
    assert [key for key, _ in ours.named_parameters()] == parameters  # an optimizer's state fits, too
    undecayed = {
        key for key in parameters if any(key == name or key.startswith(name) for name in theirs.no_weight_decay())
    }
    assert ours.no_weight_decay() >= undecayed
    if "swinv2" not in name:  # timm misses its logit scales
        assert ours.no_weight_decay() == undecayed
    for coarse in (False, True):
        mine, other = (timm.models.group_parameters(model, model.group_matcher(coarse)) for model in (ours, theirs))
        assert {key: set(names) for key, names in mine.items()} == {key: set(names) for key, names in other.items()}


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_intermediates_are_timms(name):
    depths = {"depths": (1, 1, 1, 1)} if "swin" in name else {}
    theirs = timm.create_model(name, **depths).eval()
    ours = ts.create_model(name, **depths).eval()
    ours.load_state_dict(theirs.state_dict())
    image = torch.randn(1, 3, *ours.config.size)
    final, maps = ours.forward_intermediates(image, indices=2, norm=True)
    their_final, their_maps = theirs.forward_intermediates(image, indices=2, norm=True)
    torch.testing.assert_close(final, their_final, rtol=1e-4, atol=1e-4)
    for mine, other in zip(maps, their_maps, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_features_of_several_grids_are_refused(tmp_path):
    for create in (timm.create_model, ts.create_model):
        with pytest.raises(ValueError, match=r"grids=4: .* logits of classifiers; needs grids=1"):
            create("a_swin_mini", features_only=True, grids=4)
    several = ts.create_model("a_swin_mini", grids=4).eval()
    folder, image = several.save_pretrained(tmp_path), photographs(32)["rocket"][None]
    maps = timm.create_model(f"local-dir:{folder}", pretrained=True, features_only=True).eval()(image)
    expected = several.forward_intermediates(image, output_fmt="NHWC", intermediates_only=True)
    assert all(torch.equal(one, other) for one, other in zip(maps, expected, strict=True))


@pytest.mark.parametrize("name", MINI)
@torch.no_grad()
def test_features_only_stands_in_the_frame_of_the_image(name):
    """Moved by whole tokens the map moves by whole tokens; the rest of the position is in the grid."""
    wrapper = timm.create_model(name, features_only=True, out_indices=(0, 1), **narrow(name)).eval()
    image = photographs(32)["rocket"][None]
    maps, tokens = wrapper(image), wrapper.tokens(image)
    moved = ts.circular_shift(image, (8, 4), (2, 3))
    nhwc = "swin" in name
    for values, here, after in zip(maps, tokens, wrapper(moved), strict=True):
        assert torch.equal(values if nhwc else values.permute(0, 2, 3, 1), here.values)
        assert (here.grid.origin >= 0).all()
        assert (here.grid.origin < torch.tensor(here.grid.stride)).all()
        steps = (8 // here.grid.stride[0], 4 // here.grid.stride[1])
        assert torch.equal(torch.roll(values, [-n for n in steps], (1, 2) if nhwc else (2, 3)), after)
    for before, after in zip(tokens, wrapper.tokens(ts.circular_shift(image, (3, 5), (2, 3))), strict=True):
        assert torch.equal(ts.place(after), ts.circular_shift(ts.place(before), (3, 5)))
    model = ts.create_model(name, feature_frame="pixel", **narrow(name)).eval()
    for tokens, raw in zip(model.intermediate_tokens(image), model.features(image), strict=True):
        fixed = ts.TokenGrid(raw.grid.stride, torch.zeros_like(raw.grid.origin), (32, 32))
        assert not tokens.grid.origin.any()
        assert torch.equal(tokens.values, ts.resample(raw, fixed).values)


def test_timm_sees_what_it_needs():
    model = timm.create_model("a_swin_mini")
    data = timm.data.resolve_data_config({}, model=model)
    assert data["input_size"] == (3, 32, 32)
    optimizer = timm.optim.create_optimizer_v2(model, "adamw", lr=1e-3, layer_decay=0.8)
    assert len(optimizer.param_groups) > 4
    with pytest.raises(ValueError, match="output_fmt"):
        model.forward_intermediates(torch.randn(1, 3, 32, 32), output_fmt="NWHC")


@pytest.mark.parametrize("family", ["swin", "swinv2", "cvt", "mvitv2"])
@torch.no_grad()
def test_timm_reads_what_was_saved_of_other_arguments(family, tmp_path):
    for number, changes in enumerate(({"in_chans": 4}, {"num_classes": 0}, {"criterion": "learned"})):
        model = ts.create_model(f"a_{family}_mini", **narrow(family), **changes).eval()
        model.save_pretrained(tmp_path / str(number))
        read = timm.create_model(f"local-dir:{tmp_path / str(number)}", pretrained=True).eval()
        image = torch.rand(1, changes.get("in_chans", 3), 32, 32)
        assert torch.equal(read(image), model(image))
