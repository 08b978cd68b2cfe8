import json
from dataclasses import replace

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
from trueshift.eval.models.foreign import _from_processor
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
    assert subject.preparation.size == tuple(config["input_size"][1:])
    assert subject.preparation.mean == tuple(config["mean"])
    assert subject.classes is not None
    assert subject.classes[0] == "tench"
    assert subject.forward(IMAGES).shape == (2, 1000)
    assert len(token_errors(subject.maps, torch.randn(3, 64, 64))) == 4


def test_options_win():
    options = replace(RANDOM, img_size=96, crop_pct=0.5, mean=(0, 0, 0), std=(1, 1, 1))
    found = load_eval_model("resnet10t", options).preparation
    assert found == Preparation((96, 96), 0.5, (0, 0, 0), (1, 1, 1), found.interpolation)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        *(
            (name, WeightsUnavailable, "--random-weights")
            for name in ("a_swin_mini.nowhere", "a_swin_tiny", "resnet10t")
        ),
        ("someone/some-model", WeightsUnavailable, "local folder"),
        ("swin_tinny", ValueError, "did you mean swin_tiny"),
        ("nothing.like:it", ValueError, "cannot be imported"),
        ("math:nothing", ValueError, "has no nothing"),
        ("missing.onnx", FileNotFoundError, "there is no file"),
        ("missing.pth", FileNotFoundError, "there is no file"),
        ("", ValueError, "no model is called ''"),  # and no folder
        ("nowhere", ValueError, "no model is called 'nowhere', and no folder"),
        ("runs/nowhere", WeightsUnavailable, "runs/nowhere is no folder, and unavailable on the Hub"),
        ("runs/mine/final", FileNotFoundError, "there is no file or folder runs/mine/final"),
        ("./nowhere", FileNotFoundError, "there is no file or folder ./nowhere"),
        ("runs/nowhere/", FileNotFoundError, "there is no file or folder runs/nowhere/"),
        ("local-dir:nowhere", FileNotFoundError, "there is no file or folder nowhere"),
    ],
)
def test_what_cannot_be_loaded_names_the_way_out(name, error, message):
    with pytest.raises(error, match=message):
        load_eval_model(name)


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


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config.json is missing"):
        load_eval_model(str(tmp_path))
    for text, message in (('{"architecture', "cannot be read"), ("{}", "names no architecture")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            load_eval_model(str(tmp_path))


def test_a_transformers_classifier(tmp_path):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=32, patch_size=8, hidden_size=24, num_hidden_layers=5, num_attention_heads=2, intermediate_size=32
    )
    config.id2label = {0: "cat", 1: "dog", 2: "<b>"}
    config.label2id = {"cat": 0, "dog": 1, "<b>": 2}
    model = ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    processor = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "size": {"height": 32, "width": 32}, "resample": 2}
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({**processor, "image_processor_type": "ViTImageProcessor"})
    )
    subject = load_eval_model(str(tmp_path))
    assert subject.classes == ["cat", "dog", "<b>"]
    assert subject.preparation == Preparation((32, 32), 1.0, (0.5,) * 3, (0.25,) * 3, "bilinear")
    assert torch.equal(subject.forward(IMAGES), model(IMAGES).logits)
    errors = token_errors(subject.maps, IMAGES[0])
    assert [error.error.shape for error in errors] == [(4, 4)] * 4
    assert errors[-1].largest > 0


@pytest.mark.parametrize("name", ["a_swin_mini", "swinv2_tiny_window16_256"])
def test_the_size_a_model_has_changes_nothing(name):
    own = load_eval_model(name, RANDOM).preparation.size
    networks = [load_eval_model(name, replace(RANDOM, img_size=size)).module for size in (None, own[0])]
    images = torch.randn(1, 3, *own)
    with torch.no_grad():
        assert torch.equal(*[network.eval()(images) for network in networks])


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


def test_a_checkpoint_that_does_not_fit_is_reported(tmp_path):
    torch.save(trueshift.create_model("cvt_mini").state_dict(), tmp_path / "w.pth")
    with pytest.raises(ValueError, match="name their network with --architecture"):
        load_eval_model(str(tmp_path / "w.pth"))
    with pytest.raises(ValueError, match=r"w.pth does not fit swin_mini: missing layers.* more; unknown") as message:
        load_eval_model(str(tmp_path / "w.pth"), EvalOptions(architecture="swin_mini"))
    assert len(str(message.value)) < 1000
    (tmp_path / "torn.pth").write_bytes(b"PK torn")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    unread = "cannot be read as weights .*: needs a checkpoint"
    for name, message in (("torn.pth", unread), ("x.png", unread), ("none.pth", "holds no weights")):
        with pytest.raises(ValueError, match=message) as error:
            load_eval_model(str(tmp_path / name), EvalOptions(architecture="swin_mini"))
        assert len(str(error.value).splitlines()) == 1


def test_an_onnx_file(tmp_path):
    save_onnx(tmp_path / "m.onnx", torch.eye(3).repeat_interleave(32 * 32, 0) / 32**2, batch=4)  # the mean colour
    subject = load_eval_model(str(tmp_path / "m.onnx"))
    assert subject.preparation.size == (32, 32)
    assert (subject.num_classes, subject.batch_size) == (3, 4)
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(subject.forward(images), images.mean((2, 3)))
    with pytest.raises(ValueError, match="needs a network in torch"):
        load_eval_model(str(tmp_path / "m.onnx"), EvalOptions(precision="bf16"))
    (tmp_path / "torn.onnx").write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot be run by onnxruntime"):
        load_eval_model(str(tmp_path / "torn.onnx"))
    with pytest.raises(ValueError, match="has no twin"):
        adapted_twin(subject)


def test_a_factory_beside_the_command(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(
        "import torch\n"
        "def network():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 2))\n"
        "def function():\n    return lambda images: images.mean((2, 3))\n"
        "def number():\n    return 3\n"
        "def scaled(scale):\n    return lambda images: scale * images\n"
    )
    monkeypatch.chdir(tmp_path)
    request = EvalOptions(img_size=16)
    network = load_eval_model("own_models:network", request)
    assert network.preparation.size == (16, 16)
    assert network.num_classes == canonical_twin(network).num_classes == 2
    assert load_eval_model("own_models:network").num_classes is None  # it takes no image that is tried
    function = load_eval_model("own_models:function", request)
    assert function.forward(torch.ones(2, 3, 4, 4)).shape == (2, 3)
    assert function.num_classes == 3
    with pytest.raises(TypeError, match="gave a int"):
        load_eval_model("own_models:number")
    with pytest.raises(TypeError, match="own_models:scaled takes arguments: needs a function without any that gives a"):
        load_eval_model("own_models:scaled")


@pytest.mark.parametrize("name", ["mixer_s32_224", "levit_128s"])
def test_a_size_that_a_network_does_not_take_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name} does not take images of 64 x 64 \(.*\): needs no --img-size"):
        load_eval_model(name, replace(RANDOM, img_size=64))


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


def test_a_model_that_does_not_say_how_it_wants_its_images_is_reported_apart():
    silent = load_eval_model("torch.nn:Flatten")
    assert silent.assumed
    assert canonical_twin(silent).assumed
    assert not load_eval_model("torch.nn:Flatten", EvalOptions(mean=(0, 0, 0), std=(1, 1, 1))).assumed
    ordinary = load_eval_model("swin_mini", RANDOM)
    assert not ordinary.assumed
    assert not canonical_twin(ordinary).assumed


@pytest.mark.parametrize(("number", "name"), [(0, "nearest"), (None, "bicubic"), (4, "box")])
def test_transformers_resampling_is_read(number, name):
    assert _from_processor({"resample": number}, None).interpolation == name


def test_the_steady_twin_sees_what_the_crop_would_cut_away():
    cut = load_eval_model("resnet10t", RANDOM)
    kept = cut.preparation.crop_pct
    assert kept < 1
    twin = steady_twin(cut)
    assert twin.preparation.size == tuple(int(length / kept) for length in cut.preparation.size)
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
    assert not load_eval_model("torch.nn:Flatten").dense
    with pytest.raises(ValueError, match="adapt"):
        adapted_twin(subject)
    twin = canonical_twin(subject)
    assert torch.equal(torch.roll(twin.forward(IMAGES), (5, -9), (2, 3)), twin.forward(MOVED))


def test_what_it_says_of_itself_counts_and_what_the_request_says_wins():
    name = "known_models:half_size_that_says_how"
    subject = load_eval_model(name)
    assert not subject.assumed
    assert subject.preparation == ScenePreparation((96, 48), (8, 8))
    asked = load_eval_model(name, EvalOptions(img_size=40, mean=(0, 0, 0), std=(1, 1, 1))).preparation
    assert asked == ScenePreparation((160, 40), (8, 8), mean=(0, 0, 0), std=(1, 1, 1))


def test_bf16_is_what_it_says():
    name = "known_models:ByPixel"
    whole, exact = (load_eval_model(name, EvalOptions(precision=kind)) for kind in ("bf16", "float32"))
    assert (whole.forward(IMAGES).dtype, exact.forward(IMAGES).dtype) == (torch.bfloat16, torch.float32)


def test_a_transformers_segmenter(tmp_path):
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2],
        num_attention_heads=[1, 1], mlp_ratios=[1, 1], decoder_hidden_size=8, num_labels=4,
    )  # fmt: skip
    model = SegformerForSemanticSegmentation(config).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_processor_type": "SegformerImageProcessor", "size": {"height": 64, "width": 64}, '
        '"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25], "resample": 2}'
    )
    subject = load_eval_model(str(tmp_path))
    assert (subject.dense, subject.num_classes, subject.classes) == (True, 4, [f"LABEL_{label}" for label in range(4)])
    assert subject.preparation == ScenePreparation((256, 64), (32, 32), "resize", (0.5,) * 3, (0.25,) * 3)
    with torch.inference_mode():
        smaller = model(IMAGES).logits
        assert smaller.shape == (2, 4, 8, 8)
        larger = torch.nn.functional.interpolate(smaller, (32, 32), mode="bilinear")
        assert torch.equal(subject.forward(IMAGES), larger)
        twin = canonical_twin(subject)
        assert torch.equal(torch.roll(twin.forward(IMAGES), (5, -9), (2, 3)), twin.forward(MOVED))


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
