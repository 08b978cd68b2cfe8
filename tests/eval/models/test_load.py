import json
from dataclasses import replace

import known_models
import pytest
import torch
from known_models import save_onnx
from PIL import Image

import trueshift
from trueshift.data import Preparation, ScenePreparation
from trueshift.eval import (
    EvalOptions,
    WeightsUnavailable,
    adapted_twin,
    canonical_twin,
    load_eval_model,
    steady_twin,
    token_errors,
)
from trueshift.eval.runner.tasks import open_source
from trueshift.models import Backbone
from trueshift.models.registry import CIFAR_MEAN, CIFAR_STD

import timm  # isort: skip

RANDOM = EvalOptions(random_weights=True)
IMAGES = torch.randn(2, 3, 32, 32)


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_one_of_ours_with_random_weights_by_the_seed():
    one, again, other = (load_eval_model("a_swin_mini", replace(RANDOM, seed=seed)) for seed in (3, 3, 4))
    assert isinstance(one.module, Backbone)
    assert (one.random, one.weights, one.num_classes) == (True, "random, seed 3", 10)
    assert one.preparation == Preparation((32, 32), 1.0, CIFAR_MEAN, CIFAR_STD, "bicubic")
    assert torch.equal(one.forward(IMAGES), again.forward(IMAGES))
    assert not torch.equal(one.forward(IMAGES), other.forward(IMAGES))


def test_any_of_timms():
    subject = load_eval_model("resnet10t", RANDOM)
    config = timm.create_model("resnet10t").pretrained_cfg
    assert (subject.preparation.size, subject.preparation.mean) == (config["input_size"][1:], config["mean"])
    assert subject.classes[0] == "tench"
    assert subject.forward(IMAGES).shape == (2, 1000)
    assert len(token_errors(subject.maps, torch.randn(3, 64, 64))) == 4
    options = replace(RANDOM, img_size=96, crop_pct=0.5, mean=(0, 0, 0), std=(1, 1, 1))
    found = load_eval_model("resnet10t", options).preparation  # options win
    assert found == Preparation((96, 96), 0.5, (0, 0, 0), (1, 1, 1), found.interpolation)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A folder of what cannot be loaded."""
    folder = tmp_path_factory.mktemp("broken")
    torch.save(trueshift.create_model("cvt_mini").state_dict(), folder / "w.pth")
    torch.save({"epoch": 3}, folder / "none.pth")
    for name, text in {
        "torn.pth": "PK torn",
        "torn.onnx": "torn",
        "torn/config.json": '{"architecture',
        "other/config.json": "{}",
        "empty/model.txt": "",
        "broken_models.py": "number = lambda: 3\nscaled = lambda scale: lambda images: scale * images\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


OURS, SMALL = {"architecture": "swin_mini"}, {"img_size": 64, "random_weights": True}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a_swin_mini.nowhere", {}, "--random-weights"),
        ("a_swin_tiny", {}, "--random-weights"),
        ("resnet10t", {}, "--random-weights"),
        ("runs/nowhere", {}, "runs/nowhere is no folder, and unavailable on the Hub .* or a local folder"),
        ("swin_tinny", {}, "did you mean swin_tiny"),
        ("", {}, "no model is called ''"),  # and no folder
        ("nowhere", {}, "no model is called 'nowhere', and no folder"),
        ("nothing.like:it", {}, "cannot be imported"),
        ("math:nothing", {}, "has no nothing"),
        ("broken_models:number", {}, "gave a int"),
        ("broken_models:scaled", {}, "takes arguments: needs a function without any that gives a model"),
        ("missing.onnx", {}, "there is no file"),
        ("missing.pth", {}, "there is no file"),
        ("runs/mine/final", {}, "there is no file or folder runs/mine/final"),
        ("./nowhere", {}, "there is no file or folder ./nowhere"),
        ("runs/nowhere/", {}, "there is no file or folder runs/nowhere/"),
        ("local-dir:nowhere", {}, "there is no file or folder nowhere"),
        ("empty", {}, "config.json is missing"),
        ("torn", {}, "cannot be read"),
        ("other", {}, "names no architecture"),
        ("torn.onnx", {}, "cannot be run by onnxruntime"),
        ("w.pth", {}, "name their network with --architecture"),
        ("w.pth", {"architecture": "nothing"}, "needs a name of trueshift's or timm's"),
        ("w.pth", OURS, "w.pth does not fit swin_mini: missing layers.* more; unknown"),
        ("none.pth", OURS, "holds no weights"),
        ("torn.pth", OURS, "cannot be read as weights .*: needs a checkpoint"),
        ("broken_models.py", OURS, "cannot be read as weights .*: needs a checkpoint"),
        ("mixer_s32_224", SMALL, r"does not take images of 64 x 64 \(.*\): needs no --img-size"),
        ("levit_128s", SMALL, r"does not take images of 64 x 64 \(.*\): needs no --img-size"),
    ],
)
def test_what_cannot_be_loaded_names_the_way_out(broken, monkeypatch, name, options, message):
    monkeypatch.chdir(broken)
    with pytest.raises((ValueError, TypeError, FileNotFoundError, WeightsUnavailable), match=message) as raised:
        load_eval_model(name, EvalOptions(**options))
    assert len(str(raised.value).splitlines()) == 1
    assert len(str(raised.value)) < 1000


def test_a_folder_has_its_trained_weights(tmp_path):
    ours = trueshift.create_model("a_swin_mini", num_classes=4).eval()
    ours.save_pretrained(tmp_path / "ours")
    timms = timm.create_model("resnet10t", num_classes=5).eval()
    timm.models.save_for_hf(timms, tmp_path / "timms", model_args={"num_classes": 5})
    for model, folder in ((ours, tmp_path / "ours"), (timms, tmp_path / "timms")):
        found = load_eval_model(str(folder))
        assert not found.random
        assert torch.equal(found.forward(IMAGES), model(IMAGES))
        assert not torch.equal(load_eval_model(str(folder), replace(RANDOM, seed=5)).forward(IMAGES), model(IMAGES))


def save_processor(folder, kind, side, resample=2):
    colours = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "resample": resample}
    made = {"image_processor_type": kind, "size": {"height": side, "width": side}, **colours}
    (folder / "preprocessor_config.json").write_text(json.dumps(made))


def test_a_transformers_classifier(tmp_path):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=32, patch_size=8, hidden_size=24, num_hidden_layers=5, num_attention_heads=2, intermediate_size=32
    )
    config.id2label = {0: "cat", 1: "dog", 2: "<b>"}
    model = ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    save_processor(tmp_path, "ViTImageProcessor", 32)
    subject = load_eval_model(str(tmp_path))
    assert subject.classes == ["cat", "dog", "<b>"]
    assert subject.preparation == Preparation((32, 32), 1.0, (0.5,) * 3, (0.25,) * 3, "bilinear")
    assert torch.equal(subject.forward(IMAGES), model(IMAGES).logits)
    errors = token_errors(subject.maps, IMAGES[0])
    assert [error.error.shape for error in errors] == [(4, 4)] * 4
    assert errors[-1].largest > 0
    for number, interpolation in ((0, "nearest"), (None, "bicubic"), (4, "box")):
        save_processor(tmp_path, "ViTImageProcessor", 32, resample=number)
        assert load_eval_model(str(tmp_path)).preparation.interpolation == interpolation


def test_an_onnx_file(tmp_path):
    save_onnx(tmp_path / "m.onnx", torch.eye(3).repeat_interleave(32 * 32, 0) / 32**2, batch=4)  # the mean colour
    subject = load_eval_model(str(tmp_path / "m.onnx"))
    assert (subject.preparation.size, subject.num_classes, subject.batch_size) == ((32, 32), 3, 4)
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(subject.forward(images), images.mean((2, 3)))
    with pytest.raises(ValueError, match="needs a network in torch"):
        load_eval_model(str(tmp_path / "m.onnx"), EvalOptions(precision="bf16"))
    with pytest.raises(ValueError, match="has no twin"):
        adapted_twin(subject)


def test_a_factory_beside_the_command(tmp_path, monkeypatch):
    (tmp_path / "own_makers.py").write_text(
        "import torch\n"
        "def network():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 2))\n"
        "def function():\n    return lambda images: images.mean((2, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    request = EvalOptions(img_size=16)
    network = load_eval_model("own_makers:network", request)
    assert network.preparation.size == (16, 16)
    assert network.num_classes == canonical_twin(network).num_classes == 2
    assert load_eval_model("own_makers:network").num_classes is None  # it takes no image that is tried
    function = load_eval_model("own_makers:function", request)
    assert function.forward(torch.ones(2, 3, 4, 4)).shape == (2, 3)
    assert function.num_classes == 3


def test_what_a_model_does_not_say_is_assumed():
    silent, ordinary = load_eval_model("torch.nn:Flatten"), load_eval_model("swin_mini", RANDOM)
    told = load_eval_model("torch.nn:Flatten", EvalOptions(mean=(0, 0, 0), std=(1, 1, 1)))
    assert (silent.assumed, canonical_twin(silent).assumed, told.assumed) == (True, True, False)
    assert (ordinary.assumed, canonical_twin(ordinary).assumed) == (False, False)


def test_the_size_a_model_has_changes_nothing():
    name, images = "swinv2_tiny_window16_256", torch.randn(1, 3, 256, 256)
    with torch.no_grad():
        assert torch.equal(
            *(load_eval_model(name, replace(RANDOM, img_size=side)).forward(images) for side in (None, 256))
        )


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {key.replace("module.", "module._orig_mod.", 1): value for key, value in state.items()},
    ],
)
def test_a_checkpoint_with_its_architecture(tmp_path, wrapped):
    model = trueshift.create_model("swin_mini", num_classes=7).eval()
    torch.save(wrapped({f"module.{key}": value for key, value in model.state_dict().items()}), tmp_path / "w.pth")
    subject = load_eval_model(str(tmp_path / "w.pth"), EvalOptions(architecture="swin_mini"))
    assert torch.equal(subject.forward(IMAGES), model(IMAGES))
    assert "w.pth" in subject.weights
    assert ("its state_dict" in subject.weights) == ("epoch" in torch.load(tmp_path / "w.pth", weights_only=True))


def test_twins_do_not_change_their_answer_and_keep_the_rest():
    ordinary = load_eval_model("swin_mini", RANDOM)
    moved = torch.roll(IMAGES, (3, 5), (2, 3))
    assert not torch.equal(ordinary.forward(IMAGES), ordinary.forward(moved))
    for twin in (adapted_twin(ordinary, RANDOM), canonical_twin(ordinary, RANDOM)):
        assert torch.equal(twin.forward(IMAGES), twin.forward(moved))
        assert twin.preparation == ordinary.preparation
        assert twin.random
        assert max(error.largest for error in token_errors(twin.maps, IMAGES[0])) == 0
    assert max(error.largest for error in token_errors(ordinary.maps, IMAGES[0])) > 0


def test_the_steady_twin_sees_what_the_crop_would_cut_away():
    cut = load_eval_model("resnet10t", RANDOM)
    twin = steady_twin(cut)
    assert cut.preparation.crop_pct < 1
    assert twin.module.size == cut.preparation.size
    assert twin.preparation.resized(300, 400) == cut.preparation.resized(300, 400)  # the same scale
    whole = load_eval_model("swin_mini", EvalOptions())
    assert steady_twin(whole).preparation.size == (40, 40)
    assert steady_twin(whole).forward(torch.rand(2, 3, 40, 40)).shape == (2, 10)


# segmentation models

MOVED = torch.roll(IMAGES, (5, -9), (2, 3))


def test_a_folder_of_ours_and_its_twins(tmp_path):
    network = trueshift.UperNet("swin_mini", 3, channels=16, auxiliary=False).eval()
    wanted = ScenePreparation((128, 32), (32, 32), "pad", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    network.pretrained_cfg |= {"scene": wanted.to_dict(), "label_names": ["a", "b", "c"]}
    network.save_pretrained(tmp_path)
    subject = load_eval_model(str(tmp_path))
    assert (subject.dense, subject.assumed, subject.num_classes) == (True, False, 3)
    assert subject.preparation == wanted
    assert subject.classes == ["a", "b", "c"]
    with torch.inference_mode():
        assert torch.equal(subject.forward(IMAGES), network(IMAGES))
        assert subject.forward(IMAGES[..., :30]).shape == (2, 3, 32, 30)
        assert not torch.equal(torch.roll(subject.forward(IMAGES), (5, -9), (2, 3)), subject.forward(MOVED))
        for twin in (adapted_twin(subject), canonical_twin(subject)):
            assert (twin.dense, twin.preparation, twin.classes) == (True, wanted, ["a", "b", "c"])
            assert torch.equal(torch.roll(twin.forward(IMAGES), (5, -9), (2, 3)), twin.forward(MOVED))
            assert twin.forward(IMAGES[..., :30]).shape == (2, 3, 32, 30)
    with pytest.raises(ValueError, match="needs no --random-weights"):
        load_eval_model(str(tmp_path), EvalOptions(random_weights=True))


def test_a_network_of_ones_own_is_known_by_its_answer():
    subject = load_eval_model("known_models:HalfSize")
    assert (subject.dense, subject.assumed, subject.num_classes) == (True, True, 5)
    assert subject.forward(IMAGES).shape == (2, 5, 32, 32)
    with pytest.raises(ValueError, match="adapt"):
        adapted_twin(subject)
    twin = canonical_twin(subject)
    assert torch.equal(torch.roll(twin.forward(IMAGES), (5, -9), (2, 3)), twin.forward(MOVED))
    whole, exact = (
        load_eval_model("known_models:ByPixel", EvalOptions(precision=kind)) for kind in ("bf16", "float32")
    )
    assert (whole.forward(IMAGES).dtype, exact.forward(IMAGES).dtype) == (torch.bfloat16, torch.float32)


def test_what_it_says_of_itself_counts_and_what_the_request_says_wins(monkeypatch):
    for name, value in (("num_classes", 5), ("size_multiple", 8), ("pretrained_cfg", {"scene": {"scale": [96, 48]}})):
        monkeypatch.setattr(known_models.HalfSize, name, value, raising=False)
    subject = load_eval_model("known_models:HalfSize")
    assert not subject.assumed
    assert subject.preparation == ScenePreparation((96, 48), (8, 8))
    asked = load_eval_model("known_models:HalfSize", EvalOptions(img_size=40, mean=(0, 0, 0), std=(1, 1, 1)))
    assert asked.preparation == ScenePreparation((160, 40), (8, 8), mean=(0, 0, 0), std=(1, 1, 1))


def test_a_transformers_segmenter(tmp_path):
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2],
        num_attention_heads=[1, 1], mlp_ratios=[1, 1], decoder_hidden_size=8, num_labels=4,
    )  # fmt: skip
    model = SegformerForSemanticSegmentation(config).eval()
    model.save_pretrained(tmp_path)
    save_processor(tmp_path, "SegformerImageProcessor", 64)
    subject = load_eval_model(str(tmp_path))
    assert (subject.dense, subject.num_classes, subject.classes) == (True, 4, [f"LABEL_{label}" for label in range(4)])
    assert subject.preparation == ScenePreparation((256, 64), (32, 32), "resize", (0.5,) * 3, (0.25,) * 3)
    with torch.inference_mode():
        smaller = model(IMAGES).logits
        assert smaller.shape == (2, 4, 8, 8)
        larger = torch.nn.functional.interpolate(smaller, (32, 32), mode="bilinear")
        assert torch.equal(subject.forward(IMAGES), larger)


def test_images_stand_in_for_scenes_only_where_there_is_no_layout(tmp_path):
    assert open_source("sample", dense=True).classes is None
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    for where in (tmp_path, tmp_path / "one.png"):
        assert open_source(where, dense=True)[0].target is None
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / kind / f"one of {kind}.png")
    with pytest.raises((ValueError, OSError), match="needs"):  # no label file, no names
        open_source(tmp_path, dense=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="nor are there images without masks"):
        open_source(tmp_path / "empty", dense=True)
    with pytest.raises(FileNotFoundError):
        open_source(tmp_path / "nothing", dense=True)
