"""The network that is trained: by name, from another run, and back from the folder it is written to."""

import json
from dataclasses import replace

import pytest
import timm
import torch
from training_runs import same as same_weights

import trueshift
from trueshift.data import Preparation
from trueshift.eval.models.load import load_eval_model
from trueshift.eval.options import EvalOptions
from trueshift.models.foreign import is_adapted
from trueshift.train.config import DataConfig, ModelConfig, TrainConfig
from trueshift.train.network import build_network, is_ours, preparation_for, save_network

SMALL = {"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2]}
CLASSES = ["ant", "bee", "cat", "dog", "eel"]


def configured(name, data=None, **model):
    return TrainConfig(model=ModelConfig(name=name, **model), data=data or DataConfig())


def built(name, classes=5, data=None, **model):
    arguments = {**SMALL, **model.pop("arguments", {})} if "swin_mini" in name else model.pop("arguments", {})
    return build_network(configured(name, data, arguments=arguments, **model), classes)


def same(one, other):
    return same_weights(one.state_dict(), other.state_dict())


@pytest.fixture
def ordinary(tmp_path):
    """An ordinary network in a folder, with weights of its own."""
    model = built("swin_mini")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model, str(model.save_pretrained(tmp_path / "ordinary"))


def test_what_is_asked_for_is_passed_on():
    model = built("swin_mini", padding="circular", drop_path_rate=0.3, data=DataConfig(img_size=64))
    assert model.config.padding_mode == "circular"
    assert model.config.drop_path_rate == 0.3
    assert model.config.size == (64, 64)
    assert built("swin_mini").config.padding_mode == "zeros"
    ablation = {"criterion": {"align": "fixed"}, "anchor": False}
    choices = built("a_swin_mini", arguments=ablation).config
    assert not choices.anchored
    assert not choices.adaptive("align")
    assert built("test_vit", drop_path_rate=0.2).blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)
    # ours wins where timm has the name too
    assert all(map(is_ours, ("swin_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224.ms_in1k")))
    assert not is_ours("resnet18")


both = pytest.mark.parametrize("name", ["swin_mini", "a_swin_mini"])


@both
def test_a_network_from_a_folder_is_adapted_if_asked_for_and_has_what_is_asked_for(ordinary, name):
    model, folder = ordinary
    assert same(built(name, start_from=folder), model)
    again = built(name, start_from=folder, padding="circular", drop_path_rate=0.25)
    assert same(again, model)
    assert again.training
    assert type(again) is type(model)
    config = again.config
    assert config.adaptive("tokenize", "align", "merge") == (name == "a_swin_mini")
    assert (config.depths, config.drop_path_rate, config.padding_mode) == ((1, 1), 0.25, "circular")
    images, again = torch.rand(2, 3, 32, 32), again.eval()
    assert torch.equal(again(images), again(images.roll((3, 5), (2, 3)))) == (name == "a_swin_mini")


@pytest.mark.parametrize("arguments", [{}, {"criterion": "max_norm"}])
def test_one_of_timms_starts_from_a_folder_by_its_name(tmp_path, arguments):
    model = built("test_vit", arguments=arguments)
    folder = save_network(model, tmp_path, Preparation((160, 160)), list("abcde"))
    with pytest.raises(ValueError, match=f"needs --model.name local-dir:{folder} --model.pretrained true"):
        built("test_vit", start_from=str(folder), arguments=arguments)
    again = built(f"local-dir:{folder}", pretrained=True, arguments=arguments)
    assert type(again) is type(model)
    assert same(again, model)


def test_another_number_of_classes_has_a_new_head(ordinary):
    model, folder = ordinary
    again = built("a_swin_mini", classes=7, start_from=folder)
    assert again.num_classes == 7
    assert again(torch.rand(1, 3, 32, 32)).shape == (1, 7)
    assert again.head.fc.weight.abs().max() < 1  # those of the folder are normal
    for key, value in model.state_dict().items():
        if not key.startswith("head.fc"):
            assert torch.equal(again.state_dict()[key], value)


def test_an_adaptive_network_is_no_start_for_an_ordinary_one_nor_for_another(tmp_path):
    folder = str(built("a_swin_mini").save_pretrained(tmp_path))
    assert built("a_swin_mini", start_from=folder)
    for name in ("swin_mini", "a_cvt_mini", "swinv2_mini"):
        with pytest.raises(ValueError, match=rf"holds a a_swin_\S+: needs {name}\S*, or the ordinary network to adapt"):
            build_network(configured(name, start_from=folder), 5)
    ordinary = trueshift.create_model("swin_mini", num_classes=5)  # of the usual sizes: its name is enough
    folder = str(ordinary.save_pretrained(tmp_path))
    assert same(build_network(configured("a_swin_mini", start_from=folder), 5), ordinary)


def test_images_are_prepared_as_the_network_wants_or_as_told():
    model = built("a_swin_mini")
    own = preparation_for(configured("a_swin_mini"), model)
    assert own == Preparation.from_config(model.pretrained_cfg)
    assert own.size == (32, 32)
    asked = preparation_for(configured("a_swin_mini", DataConfig(crop_pct=0.5, img_size=64)), model)
    assert asked == replace(own, crop_pct=0.5, size=(64, 64))
    assert preparation_for(configured("test_resnet"), built("test_resnet")).size == (160, 160)


ASKED = Preparation((32, 32), 0.6, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bilinear")


@both
def test_ours_come_back_with_the_preparation_of_images(tmp_path, name):
    model = built(name, padding="circular", drop_path_rate=0.3)
    assert came_back(model, tmp_path / "final", ASKED)
    again = trueshift.from_pretrained(tmp_path / "final")
    assert same(again, model)
    assert (again.config.padding_mode, again.config.drop_path_rate) == ("circular", 0.3)
    assert Preparation.from_config(again.pretrained_cfg) == ASKED
    save_network(built(name), tmp_path / "final", ASKED, CLASSES)  # over itself, as the best is
    assert not same(trueshift.from_pretrained(tmp_path / "final"), model)


def came_back(model, folder, preparation):
    """By timm, and for evaluation; saving leaves the network as it was."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    save_network(model, folder, preparation, CLASSES)
    assert model.training
    assert same_weights(before, model.state_dict())
    subject = load_eval_model(str(folder))
    assert (subject.preparation, subject.classes) == (preparation, CLASSES)
    again = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert same(again, model)
    return again


@pytest.mark.parametrize(
    ("name", "data", "arguments"),
    [
        ("test_resnet", None, {}),
        ("test_vit", DataConfig(img_size=64), {"depth": 2, "global_pool": "avg"}),
    ],
)
def test_timms_come_back_with_the_preparation_of_images(tmp_path, name, data, arguments):
    model = built(name, data=data, arguments=arguments)
    asked = replace(ASKED, size=preparation_for(configured(name, data), model).size)
    again, images = came_back(model, tmp_path / "final", asked), torch.rand(2, 3, *asked.size)
    assert torch.equal(again.eval()(images), model.eval()(images))
    assert Preparation.from_config(again.pretrained_cfg) == asked
    config = json.loads((tmp_path / "final" / "config.json").read_text())
    assert (config["num_classes"], config["label_names"]) == (5, CLASSES)


def test_a_network_of_timms_that_chooses_its_grid(tmp_path):
    """It is trained adapted, and comes back adapted from its folder; timm reads the ordinary one there."""
    changes = {"depth": 1, "criterion": "max_norm"}
    model = built("test_vit", grid_drop_rate=0.5, data=DataConfig(img_size=32), arguments=changes)
    part = next(part for part in model.modules() if hasattr(part, "criterion"))
    assert part.criterion.grid_drop_rate == 0.5
    assert built("test_vit", data=DataConfig(img_size=32), arguments={"depth": 1}).state_dict().keys() == (
        model.state_dict().keys()
    )
    preparation = Preparation.from_config(dict(model.pretrained_cfg))
    folder = save_network(model, tmp_path / "vit", replace(preparation, size=(32, 32)), CLASSES)
    image = torch.rand(1, 3, 32, 32)
    loaded = load_eval_model(str(folder), EvalOptions())
    assert same(loaded.module, model)
    assert torch.equal(loaded.forward(image), model.eval()(image))
    assert torch.equal(loaded.forward(image), loaded.forward(image.roll((3, 1), (2, 3))))
    assert not is_adapted(timm.create_model(f"local-dir:{folder}", pretrained=True))


@pytest.mark.parametrize(
    ("name", "given", "error", "message"),
    [
        ("a_swin_minni", {}, ValueError, "no model is called 'a_swin_minni'"),
        ("a_resnet18", {}, ValueError, "no model is called 'a_resnet18'"),
        ("test_vit", {"grid_drop_rate": 0.5}, ValueError, "needs a criterion that chooses"),
        ("swin_mini", {"start_from": "nowhere/at/all"}, FileNotFoundError, "nowhere"),
    ],
)
def test_what_cannot_be_built_is_refused(name, given, error, message):
    with pytest.raises(error, match=message):
        built(name, **given)
