"""Ablations and criteria: what each choice is made by, and that every one of them matters."""

import pytest
import torch
from model_checks import narrow, perturb_norms, random_shifts
from unchecked import in_own_process

import trueshift as ts
from trueshift.models.config import PLACES, SelectionConfig, describe
from trueshift.testing import photographs


def images(size: int = 32) -> torch.Tensor:
    return torch.stack(list(photographs(size).values()))


@torch.no_grad()
def change_under_shifts(model: torch.nn.Module) -> float:
    """Largest relative change of a logit over some shifts."""
    x = images(model.config.size[0])
    model.eval()
    logits = model(x)
    moved = [ts.circular_shift(x, shift, (2, 3)) for shift in random_shifts(x, 2)]
    return max(((model(y) - logits).abs().max() / logits.abs().max()).item() for y in moved)


# windows of an odd size: even ones also settle between which tokens the merge behind them may choose
ODD = {"img_size": 24, "window_size": 3}
ABLATIONS = {
    "no A-token": ("a_swin_mini", {"criterion": {"tokenize": "fixed"}}),
    "no A-WSA": ("a_swin_mini", {"criterion": {"align": "fixed"}, "anchor": False}),
    "no A-PMerge": ("a_swin_mini", {"criterion": {"merge": "fixed"}, "anchor": False, **ODD}),
    "no A-PMerge, SwinV2": ("a_swinv2_mini", {"criterion": {"merge": "fixed"}, "anchor": False, **ODD}),
    "keys at a fixed phase": ("a_cvt_mini", {"criterion": {"pool": "fixed"}, "anchor": False}),
    "zero padding": ("a_cvt_mini", {"padding": "zeros", "anchor": False}),
    "linear positions": ("a_mvitv2_mini", {"positions": "linear", "anchor": False}),
}


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_every_part_is_needed(ablation):
    name, arguments = ABLATIONS[ablation]
    size = {key: value for key, value in arguments.items() if key in ODD}
    whole = perturb_norms(ts.create_model(name, anchor=False, **size, **narrow(name)))
    without = perturb_norms(ts.create_model(name, **arguments, **narrow(name)))
    assert change_under_shifts(whole) < 1e-5
    assert change_under_shifts(without) > 1e-4


@pytest.mark.parametrize("criterion", ["learned", "spot"])
@in_own_process
@torch.no_grad()
def test_a_network_in_use_makes_no_criteria(criterion):
    """They would draw random weights, which no graph can."""
    model = ts.create_model("a_swin_mini", criterion=criterion, **narrow("a_swin_mini")).eval()
    before = torch.get_rng_state()
    logits = model(images())
    assert torch.equal(torch.get_rng_state(), before)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images()), logits, rtol=0, atol=1e-4)


def test_a_function_makes_a_criterion_for_each_layer_and_a_criterion_is_copied():
    model = ts.create_model("a_swin_mini", criterion=lambda dim: ts.LearnedScore(dim, hidden=4))
    assert model.patch_embed.criterion.hidden.in_features == 64
    assert model.layers[2].align.criterion.hidden.in_features == 256
    model = ts.create_model("a_swin_mini", criterion=ts.MaxNorm())
    assert model.patch_embed.criterion is not model.layers[0].align.criterion
    by_place = SelectionConfig({"tokenize": "fixed", "merge": "input_norm"})  # a pool is chosen as a merge is
    assert [type(by_place.at(place, 1)).__name__ for place in PLACES] == [
        "FixedOffset", "MaxNorm", "InputNorm", "InputNorm"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"criterion": "largest"}, "needs one of"),
        ({"criterion": {"token": "fixed"}}, "'tokenize', 'align', 'merge', 'pool'"),
        ({"criterion": lambda dim: torch.nn.Identity()}, "needs a Criterion"),
        ({"padding": "reflect"}, "'circular', 'zeros'"),
        ({"positions": "sinusoidal"}, "'circular', 'shortest', 'linear'"),
        ({"feature_frame": "corner"}, "'stride', 'pixel'"),
        ({"num_classes": -1}, "at least"),
        ({"border": "closed", "anchor": False}, "needs anchor=True"),
        ({"border": "open"}, "'circular', 'closed'"),
        ({"anchor": False, "grids": 4}, "needs 1, or anchor=True"),
        (
            {"criterion": "fixed", "anchor": True, "grids": 4},
            r"needs 1, or canonicalize\(mean_over_grids\(model, 4\)\)",
        ),
        ({"grids": 3}, "3 grids.*needs one of 1, 2, 4"),
        ({"window_size": 0}, "window_size 0: needs at least 1"),
        ({"window_size": (4, (4, -1), 4)}, "at least 1"),
        ({"grid_drop_rate": "0.5"}, "grid_drop_rate '0.5': needs a probability, 0 to 1"),
        ({"grid_drop_rate": float("nan")}, "grid_drop_rate nan: needs a probability, 0 to 1"),
        ({"drop_path_rate": -0.1}, "drop_path_rate -0.1: needs a probability"),
        ({"attn_drop_rate": 1.5}, "attn_drop_rate 1.5: needs a probability"),
        ({"grids": 2, "global_pool": ""}, "2 grids without pooling: needs 1, or global_pool='avg'"),
    ],
)
def test_wrong_settings_are_refused(arguments, message, our_errors):
    with pytest.raises((ValueError, TypeError), match=message):
        ts.create_model("a_swin_mini", **arguments)


def test_a_criterion_can_be_written_down(tmp_path):
    spec = {"tokenize": ts.MaxNorm(1), "align": "fixed", "merge": ts.FixedOffset((1, 0)), "pool": ts.InputNorm()}
    written = {"tokenize": {"name": "max_norm", "p": 1}, "merge": {"name": "fixed", "offset": [1, 0]}}
    assert describe(spec) == {**written, "align": "fixed", "pool": "input_norm"}
    assert describe(ts.Spot()) == "spot"
    again = SelectionConfig(describe(spec))
    assert again.at("tokenize", 8).p == 1
    assert again.at("merge", 8).offset == (1, 0)
    criterion = ts.MaxNorm()
    criterion.grid_drop_rate = 0.7
    for own in (criterion, {"merge": criterion}):
        with pytest.raises(ValueError, match=r"grid_drop_rate 0.7 of its own.*: needs grid_drop_rate of the network"):
            ts.create_model("a_swin_mini", criterion=own).save_pretrained(tmp_path)
        saved = ts.create_model("a_swin_mini", criterion=own, grid_drop_rate=0.5).save_pretrained(tmp_path)
        assert ts.from_pretrained(saved).patch_embed.criterion.grid_drop_rate == 0.5
    with pytest.raises(ValueError, match="cannot be written"):
        describe(lambda dim: ts.MaxNorm())


@pytest.mark.parametrize("family", ["swin", "cvt", "mvitv2"])
def test_a_learned_criterion_starts_anew_beside_trained_weights(family):
    name = f"a_{family}_mini"
    model = ts.create_model(name, pretrained=True, criterion="learned")
    state, trained = model.state_dict(), ts.create_model(name, pretrained=True).state_dict()
    assert {key for key in state if "criterion." not in key} == trained.keys()
    assert all(torch.equal(state[key], value) for key, value in trained.items())
    assert all(value.isfinite().all() for value in state.values())
