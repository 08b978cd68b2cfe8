"""Segmentation models on whole data sets: known answers, going on after an interrupt, processes, what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from known_models import Constant, Watched, evaluated_by, subject
from PIL import Image
from small_segmenters import SMALL, ByPixel, ByPlace, Scenes, noise, segmenter

import trueshift
from trueshift.cli import main
from trueshift.data import EmbeddedSample
from trueshift.data.source import WithoutTargets
from trueshift.eval import EvalOptions, find_protocols, make_eval_model, run_evaluation

SETTINGS = EvalOptions(shifts=3, batch_size=3, workers=2)
ADE20K = find_protocols(["ade20k"])


def evaluated(model=None, source=None, output=None, progress=None, **changes):
    source = source or Scenes(noise(6, (16, 21)))
    return run_evaluation(model or segmenter(ByPlace()), source, ADE20K, replace(SETTINGS, **changes), output, progress)


def test_a_convolution_of_single_pixels_is_exact():
    found = evaluated(segmenter(ByPixel()))
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))
    assert found["task"] == "segmentation"
    assert found["data"] == {"title": "made up", "images": 6, "skipped": [], "classes": ["red", "green", "blue"]}
    assert found["model"]["preparation"] == SMALL.to_dict()
    for measured in found["measured"].values():
        assert measured["consistency"] == {**measured["consistency"], "rate": 1.0, "high": 1.0, "images": 6}
        assert measured["bit_exact"]["rate"] == 1
        assert measured["largest_logit_change"] == 0


def test_answers_on_disk_change_nothing(tmp_path):
    assert evaluated(output=tmp_path)["measured"] == evaluated()["measured"]


def test_interrupted_it_goes_on_where_it_was(tmp_path):
    def interrupted(what, done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluated(output=tmp_path, progress=interrupted)
    (file,) = (tmp_path / "answers").iterdir()
    with file.open("a") as torn:  # as a killed process may leave it
        torn.write('{"index": 5, "name"')

    model = segmenter(ByPlace())
    counting = Watched(model.forward)
    assert evaluated(replace(model, forward=counting), output=tmp_path)["measured"] == evaluated()["measured"]
    assert counting.shown == 2 * 9  # two scenes, of 1 + 3 + 3 views in batches of 3
    evaluated(replace(model, forward=counting), output=tmp_path)
    assert counting.shown == 2 * 9  # all known: nothing is asked again


def test_answers_to_another_question_are_refused(tmp_path):
    evaluated(output=tmp_path)
    with pytest.raises(ValueError, match=r"preparation was.*is.*needs another --output"):
        evaluated(segmenter(ByPlace(), scenes=replace(SMALL, scale=(64, 24))), output=tmp_path)
    with pytest.raises(ValueError, match="another question"):
        evaluated(segmenter(ByPixel()), output=tmp_path)


def test_what_could_not_be_measured_is_named():
    class SometimesNan(ByPixel):
        def forward(self, images):
            return torch.where(images.mean((1, 2, 3), keepdim=True) > 1.5, torch.nan, super().forward(images))

    white = (Image.new("RGB", (24, 16), "white"), np.zeros((16, 24), np.int32))
    source = Scenes([*noise(2), (OSError("torn"), None), white])
    found = evaluated(segmenter(SometimesNan()), source)
    assert found["data"]["skipped"] == [
        {"name": "scene 2", "reason": "OSError: torn"},
        {"name": "scene 3", "reason": "the model's logits are not numbers (NaN)"},
    ]
    assert found["measured"]["ade20k-circular"]["consistency"]["images"] == 2


def test_pictures_without_masks_have_consistency_alone():
    found = evaluated(source=WithoutTargets(EmbeddedSample()), limit=2)["measured"]["ade20k-circular"]
    assert found["mean_iou"] is None
    assert found["consistency"]["images"] == 2


def test_classes_that_are_not_the_datas_have_no_iou():
    found = evaluated(source=Scenes(noise(2), ("red", "green", "blue", "grey")))["measured"]["ade20k-circular"]
    assert found["mean_iou"] is found["iou_by_class"] is None
    assert evaluated(source=Scenes(noise(2), None))["measured"]["ade20k-circular"]["mean_iou"] is not None


@pytest.mark.parametrize(
    ("model", "names", "told"),
    [
        (segmenter(ByPixel()), ["circular"], "model is a segmentation model.*needs ade20k-circular"),
        (segmenter(ByPixel()), ["ade20k", "cifar"], "in one.*needs only those for segmentation"),
        (subject(Constant()), ["ade20k"], "one answer per image.*needs a segmentation model"),
        (subject(Constant()), ["ade20k", "circular"], "in one.*needs only those for one answer per image"),
    ],
)
def test_models_and_protocols_of_two_kinds_are_refused(model, names, told):
    with pytest.raises(ValueError, match=told):
        run_evaluation(model, Scenes(noise(1)), find_protocols(names), SETTINGS)


def test_all_shifts_are_too_many():
    with pytest.raises(ValueError, match="0 shifts: needs at least 2"):
        evaluated(shifts=0)


@pytest.mark.parametrize(
    "backbone",
    ["a_swin_mini", *(pytest.param(f"a_{name}_mini", marks=pytest.mark.slow) for name in ("swinv2", "cvt", "mvitv2"))],
)
def test_the_equivariant_network_keeps_every_label_and_every_bit(backbone):
    network = trueshift.UperNet(backbone, 3, channels=16, auxiliary=False)
    network.pretrained_cfg["scene"] = {"scale": [64, 32]}
    model = make_eval_model(network, backbone, "random")
    assert model.preparation.multiple == network.size_multiple
    found = evaluated(model, Scenes(noise(1, (24, 40))), shifts=2)["measured"]["ade20k-circular"]
    assert found["consistency"]["rate"] == found["bit_exact"]["rate"] == 1
    assert found["largest_logit_change"] == 0


FACTORY = """
import torch
class Place(torch.nn.Module):
    def forward(self, images):
        logits = torch.zeros(len(images), 3, *images.shape[2:])
        logits[:, 0, : images.shape[2] // 2] = logits[:, 1, images.shape[2] // 2 :] = 1
        return logits
"""
OPTIONS = ["--data", "scenes", "--protocols", "ade20k", "--img-size", "16", "--device", "cpu", "--output"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model of one's own, and scenes in one's own layout."""
    (tmp_path / "by_place.py").write_text(FACTORY)
    for kind in ("images", "masks"):
        (tmp_path / "scenes" / kind).mkdir(parents=True)
    for number, (image, mask) in enumerate(noise(5)):
        image.save(tmp_path / "scenes" / "images" / f"{number}.png")
        Image.fromarray(mask.astype(np.uint8)).save(tmp_path / "scenes" / "masks" / f"{number}.png")
    (tmp_path / "scenes" / "masks" / "3.png").write_bytes(b"torn")
    (tmp_path / "scenes" / "classes.txt").write_text("red\ngreen\n[b]lue\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_prints_a_table_and_writes_everything(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["eval", "by_place:Place", *OPTIONS, "out"]) == 0
    told = capsys.readouterr().out
    for words in ("mIoU", "mASCC", "mASSC", "IoU by class: red", "[b]lue 0.00", "1 images skipped", "at most 64 x 16"):
        assert words in told
    found = json.loads((folder / "out" / "eval.json").read_text())
    assert found["settings"]["batch_size"] == 2
    assert found["measured"]["ade20k-circular"]["consistency"]["images"] == 4
    assert main(["eval", "by_place:Place", *OPTIONS, "again", "--crop-pct", "1"]) == 2
    assert "shown whole images" in capsys.readouterr().err
    assert main(["eval", "by_place:Place", "--data", "by_place.py", *OPTIONS[2:], "again"]) == 2


@pytest.mark.slow
def test_processes_share_the_scenes_and_the_result_is_that_of_one(folder):
    words = ["by_place:Place", *OPTIONS[:-1]]
    results = [evaluated_by(count, folder, f"with-{count}", *words) for count in (1, 2, 3)]
    assert results[2]["processes"] == 3
    assert results[0]["measured"] == results[1]["measured"] == results[2]["measured"]
    assert all(result["data"]["skipped"] == results[0]["data"]["skipped"] for result in results)
