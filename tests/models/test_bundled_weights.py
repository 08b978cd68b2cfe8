"""Weights that come with the package: written as ``benchmarks/release`` writes them, found, checked, loaded."""

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest
import timm
import timm.data
import torch
from safetensors.torch import save_file

import trueshift as ts
from benchmarks.accuracy.runs import keep_weights
from benchmarks.release import ship_weights
from trueshift.cli import main
from trueshift.data import Preparation
from trueshift.data.arrays import CIFAR10_CLASSES, EmbeddedSample
from trueshift.data.subset import spread
from trueshift.eval import WeightsUnavailable, load_eval_model
from trueshift.models import bundled_weights as shipped
from trueshift.models import from_pretrained
from trueshift.models.bundled_weights import DamagedWeights, find_shipped, tags_of
from trueshift.models.registry import _shipped_cfgs, resolve_name

ROOT = Path(__file__).resolve().parents[2]
TRAINING = {"recipe": "r", "seed": 0, "commit": "c", "epochs": 1, "data": "CIFAR-10", "machine": "m", "date": "d"}
MEASURED = {"top1": 0.9, "c_cons": 1.0, "s_cons": None}
SHIPPED = sorted((ROOT / "trueshift" / "weights").glob("*.json"))
FULL = "a_swin_mini_patch2_window4_32"
IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
QUICK = {"images": 4, "shifts": 1, "allowed": 4}


def untrained(name, **arguments):
    model = ts.create_model(name, **arguments).eval()
    model.pretrained_cfg = {**model.pretrained_cfg, "label_names": CIFAR10_CLASSES, "num_classes": 10}
    return model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with weights, and the networks they were made from."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("weights")
    models = {
        "a_swin_mini": untrained("a_swin_mini", drop_path_rate=0.1, criterion={"name": "max_norm", "p": 4}),
        "a_cvt_mini": untrained("a_cvt_mini"),
        "mvitv2_mini": untrained("mvitv2_mini", padding="circular"),
    }
    for model in models.values():
        ship_weights.ship(model, folder, TRAINING, MEASURED, **QUICK)
    return folder, models


@pytest.fixture
def here(made, monkeypatch):
    """These weights in place of the package's, and no network."""

    def refuse(*arguments, **named):
        raise AssertionError("shipped weights must not need a network")

    monkeypatch.setattr(shipped, "FOLDER", made[0])
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return made[1]


@pytest.fixture
def copied(made, monkeypatch, tmp_path):
    """The same to be damaged."""
    folder = tmp_path / "weights"
    shutil.copytree(made[0], folder)
    monkeypatch.setattr(shipped, "FOLDER", folder)
    return folder


@pytest.mark.parametrize(
    ("package", "name", "short"),
    [(ts, "a_swin_mini", "a_swin_mini"), (timm, f"{FULL}.cifar10", "a_swin_mini"), (ts, "a_cvt_mini", "a_cvt_mini")],
)
def test_every_name_gives_the_rounded_weights_in_float32(here, package, name, short):
    model = package.create_model(name, pretrained=True)
    for key, value in here[short].state_dict().items():
        found = model.state_dict()[key]
        assert found.dtype == value.dtype
        assert torch.equal(found, value if "running" in key else value.half().to(value.dtype))
    assert model.config.criterion == here[short].config.criterion  # what the weights need comes with them
    assert model.config.drop_path_rate == 0  # how it was trained is the user's choice again


def test_images_are_prepared_as_in_training_also_when_saved_again(here, tmp_path):
    model = ts.create_model("a_swin_mini", pretrained=True)
    assert model.pretrained_cfg["label_names"] == CIFAR10_CLASSES
    assert "label_names" not in ts.create_model("a_swin_mini").pretrained_cfg
    data = timm.data.resolve_data_config({}, model=model)
    assert (data["input_size"], data["crop_pct"]) == ((3, 32, 32), 1.0)
    subject = load_eval_model("a_swin_mini")
    assert subject.preparation == Preparation.from_config(model.pretrained_cfg)
    assert (subject.classes, subject.weights) == (list(CIFAR10_CLASSES), "pretrained, cifar10")
    model.save_pretrained(tmp_path)
    assert str(shipped.FOLDER) not in (tmp_path / "config.json").read_text()
    assert from_pretrained(tmp_path).pretrained_cfg["label_names"] == list(CIFAR10_CLASSES)


@torch.no_grad()
def test_another_classifier_channels_and_features_as_timm_does_it(here):
    five = timm.create_model(FULL, pretrained=True, num_classes=5).eval()
    assert five(IMAGE).shape == (2, 5)
    assert "label_names" not in five.pretrained_cfg
    whole = ts.create_model(FULL, pretrained=True).eval()
    assert torch.equal(five.forward_features(IMAGE), whole.forward_features(IMAGE))
    grey = ts.create_model(FULL, pretrained=True, in_chans=1).eval()
    summed = whole.patch_embed.proj.weight.sum(1, keepdim=True)
    torch.testing.assert_close(grey.patch_embed.proj.weight, summed, rtol=0, atol=1e-6)
    maps = timm.create_model(FULL, pretrained=True, features_only=True, out_indices=(0, 1)).eval()
    for mine, wanted in zip(maps(IMAGE), whole.forward_intermediates(IMAGE, indices=[0, 1])[1], strict=True):
        assert torch.equal(mine.permute(0, 3, 1, 2), wanted)


@torch.no_grad()
def test_an_adaptive_network_without_its_own_takes_those_of_its_twin(here):
    ordinary = ts.create_model("mvitv2_mini", pretrained=True).eval()
    assert ordinary.config.padding == "circular"
    assert ts.create_model("mvitv2_mini", pretrained=True, padding="zeros").config.padding == "zeros"
    model = ts.create_model("a_mvitv2_mini", pretrained=True).eval()
    assert model.config.position_mode == "shortest"  # their tables are linear
    assert model.config.padding is None
    assert torch.equal(model(IMAGE), ts.adapt(ordinary)(IMAGE))
    assert {resolve_name(name) for name in (*here, "a_mvitv2_mini")} <= set(ts.list_models("*mini*", pretrained=True))


def test_its_own_come_before_those_of_its_twin(copied):
    assert find_shipped("cvt_mini_32") is None  # the ordinary one takes none of the adaptive one's
    for suffix in ("json", "safetensors"):
        shutil.copy(copied / f"a_cvt_mini_32.cifar10.{suffix}", copied / f"cvt_mini_32.cifar10.{suffix}")
    shutil.copy(copied / "cvt_mini_32.cifar10.json", copied / "cvt_mini_32.another.json")
    found = [path.name for path in tags_of("a_cvt_mini_32").values()]
    assert found == ["a_cvt_mini_32.cifar10.json", "cvt_mini_32.another.json"]
    assert not find_shipped("a_cvt_mini_32").borrowed
    assert find_shipped("a_cvt_mini_32", "another").borrowed


def test_weights_from_elsewhere_are_still_taken(here, tmp_path):
    other = ts.create_model("a_swin_mini")
    save_file(other.state_dict(), tmp_path / "mine.safetensors")
    for key in ("pretrained_cfg", "pretrained_cfg_overlay"):
        cfg = {"file": str(tmp_path / "mine.safetensors"), "num_classes": 10}
        model = timm.create_model(FULL, pretrained=True, **{key: cfg})
        assert torch.equal(model.head.fc.weight, other.head.fc.weight)
        assert "label_names" not in model.pretrained_cfg


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize(
    ("suffix", "damage", "message"),
    [
        ("safetensors", cut, "is damaged"),
        ("safetensors", Path.unlink, "is missing"),
        ("json", cut, "cannot be read"),
        ("json", lambda path: path.write_text("{}"), "has no architecture"),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(copied, suffix, damage, message, capsys):
    assert list(_shipped_cfgs(FULL)) == ["cifar10"]
    damage(copied / f"{FULL}.cifar10.{suffix}")
    with pytest.raises(DamagedWeights, match=rf"{FULL}\.cifar10\.{suffix} {message}.*install"):
        timm.create_model("a_swin_mini", pretrained=True)
    assert main(["audit", "a_swin_mini", "--output", str(copied / "audit")]) == 2
    assert message in capsys.readouterr().err
    ts.create_model("a_cvt_mini", pretrained=True)  # others are as they were
    if suffix == "json":  # which is read while the package is imported
        with pytest.warns(UserWarning, match=message):
            assert _shipped_cfgs(FULL) == {}


def test_without_weights_nothing_is_offered(monkeypatch, tmp_path):
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    assert find_shipped(FULL) is None
    with pytest.raises(WeightsUnavailable, match="--random-weights"):
        load_eval_model("a_swin_mini.none")


# -- how they are written ---------------------------------------------------------------------------------------------


def test_what_must_not_be_shipped_is_refused_and_nothing_is_written(monkeypatch, tmp_path):
    def refused(model, message, **changes):
        with pytest.raises(ship_weights.Refused, match=message):
            ship_weights.ship(model, tmp_path, TRAINING, MEASURED, **{**QUICK, **changes})
        assert not list(tmp_path.iterdir())

    model = untrained("a_swin_mini")
    with monkeypatch.context() as patch:
        answers = iter([torch.eye(4, 10), torch.eye(4, 10).flip(1)])
        patch.setattr(ship_weights, "logits_of", lambda model, images: next(answers))
        refused(model, "answers 4 of 4 images differently: allowed are 2", allowed=2)
    flawed = untrained("a_swin_mini", criterion={"align": "fixed"}, anchor=False)  # adaptive by name alone
    refused(flawed, "changes its logits")
    for value, message in ((1e6, "holds 1e.06: half precision ends"), (torch.nan, "not numbers")):
        torch.nn.init.constant_(model.norm.weight, value)
        refused(model, f"norm.weight .*{message}")
    model = untrained("a_swin_mini")
    model.pretrained_cfg["label_names"] = ("cat",)
    refused(model, "10 classes, but 1 names")


EVALUATED = {"circular": {"top1": {"rate": 0.92, "images": 10_000}, "consistency": {"rate": 1.0}}}
RUN = {"recipe": "a/swin", "config": {"schedule": {"epochs": 200}}, "evaluation": EVALUATED}


@pytest.mark.parametrize("kept", [False, True], ids=["folder", "one file"])
def test_a_run_is_shipped_by_one_command(kept, made, monkeypatch, tmp_path, capsys):
    run, target = tmp_path / "a_swin_mini", tmp_path / "target"
    target.mkdir()
    made[1]["a_swin_mini"].save_pretrained(run / "final", num_classes=10, label_names=list(CIFAR10_CLASSES))
    source = keep_weights(run / "final", tmp_path / "swin_seed3.safetensors") if kept else run
    result = tmp_path / ("swin_seed3.json" if kept else "a_swin_mini.json")
    result.write_text(json.dumps({"commit": "abc", "seed": 3, "result": RUN}))
    verified = json.loads((made[0] / f"{FULL}.cifar10.json").read_text())["verified"]
    monkeypatch.setattr(ship_weights, "compare", lambda *given, **limits: verified)
    words = ["ship_weights.py", str(source), str(tmp_path / "nothing"), "--folder", str(target)]
    monkeypatch.setattr(sys, "argv", words)
    assert ship_weights.main() == 1  # there is no second run, and the first is shipped all the same
    message = capsys.readouterr()
    assert f"{FULL}.cifar10.json" in message.out
    assert "not shipped: " in message.err
    about, card = json.loads((target / f"{FULL}.cifar10.json").read_text()), target / f"{FULL}.cifar10.md"
    assert card.read_text() == ship_weights.card(about)
    assert about["weights"]["bytes"] == card.with_suffix(".safetensors").stat().st_size
    assert about["training"].items() >= {"recipe": "a/swin", "seed": 3, "commit": "abc", "epochs": 200}.items()
    assert about["measured"].items() >= {"top1": 0.92, "s_cons": None, "data": "10,000 test images"}.items()
    assert about["verified"]["compared_with"] == ("float16" if kept else "float32")


# -- whatever is shipped ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_card_agrees_with_the_description(path):
    about = json.loads(path.read_text())
    assert path.stem == f"{about['architecture']}.{about['tag']}"
    assert path.with_suffix(".md").read_text() == ship_weights.card(about)
    measured, training = about["measured"], about["training"]
    assert measured.get("several", []) == ship_weights.over_grids(training["recipe"], training["seed"])
    assert path.with_suffix(".safetensors").stat().st_size <= ship_weights.LIMIT
    assert path.stem in timm.list_pretrained()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("images", [40, pytest.param(400, marks=pytest.mark.slow)])
@torch.inference_mode()
def test_it_knows_real_images_and_the_adaptive_one_never_changes_its_answer(path, images):
    model = ts.create_model(path.stem, pretrained=True).eval()
    source, preparation = EmbeddedSample(), Preparation.from_config(model.pretrained_cfg)
    taken = spread(len(source), images)
    photos = torch.stack([preparation.normalise(preparation.canvas(source[index].image)) for index in taken])
    still = model(photos)
    assert (still.argmax(1).numpy() == source.labels[taken]).mean() > 0.8
    assert torch.equal(still, model(torch.roll(photos, (1, 13), (2, 3)))) == path.name.startswith("a_")
