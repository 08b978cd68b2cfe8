"""Segmentation models by what a user calls them, and their twins."""

import pytest
import torch
from PIL import Image

import trueshift
from trueshift.data.transforms import ScenePreparation
from trueshift.eval import EvalOptions, adapted_twin, canonical_twin, load_eval_model
from trueshift.eval.runner.tasks import open_source

IMAGES = torch.randn(2, 3, 32, 32)
MOVED = torch.roll(IMAGES, (5, -9), (2, 3))
OWN = """
import torch
class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Conv2d(3, 5, 3, 2, 1)
    def forward(self, images):
        return {"out": self.mix(images)}
def labelled():
    made = Half()
    made.num_classes, made.size_multiple, made.pretrained_cfg = 5, 8, {"scene": {"scale": [96, 48]}}
    return made
def whole():
    return torch.nn.Conv2d(3, 5, 1)
def classifier():
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_segmenters.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_segmenters"


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


def test_a_network_of_ones_own_is_known_by_its_answer(own):
    subject = load_eval_model(f"{own}:Half")
    assert (subject.dense, subject.assumed, subject.num_classes) == (True, True, 5)
    assert subject.forward(IMAGES).shape == (2, 5, 32, 32)
    assert not load_eval_model(f"{own}:classifier").dense
    with pytest.raises(ValueError, match="adapt"):
        adapted_twin(subject)
    twin = canonical_twin(subject)
    assert torch.equal(torch.roll(twin.forward(IMAGES), (5, -9), (2, 3)), twin.forward(MOVED))


def test_what_it_says_of_itself_counts_and_what_the_request_says_wins(own):
    subject = load_eval_model(f"{own}:labelled")
    assert not subject.assumed
    assert subject.preparation == ScenePreparation((96, 48), (8, 8))
    asked = load_eval_model(f"{own}:labelled", EvalOptions(img_size=40, mean=(0, 0, 0), std=(1, 1, 1))).preparation
    assert asked == ScenePreparation((160, 40), (8, 8), mean=(0, 0, 0), std=(1, 1, 1))


def test_bf16_is_what_it_says(own):
    whole, exact = (load_eval_model(f"{own}:whole", EvalOptions(precision=kind)) for kind in ("bf16", "float32"))
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
    assert open_source(tmp_path, dense=True)[0].target is None
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
