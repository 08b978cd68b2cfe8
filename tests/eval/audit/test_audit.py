import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from known_models import SMALL, TINY, ByPixel, ByPlace, Constant, ReadsOnePixel, Scenes, noise, segmenter, subject
from PIL import Image

from trueshift.cli import main
from trueshift.data import EmbeddedSample, ImageFolder, Preparation, ScenePreparation
from trueshift.eval import AuditOptions, find_protocols, run_audit
from trueshift.eval.audit.run import shifts_of, usual_protocols
from trueshift.eval.audit.segmentation import (
    NOT_SHOWN,
    flip_map,
    label_regions,
    largest_regions,
    packed_labels,
    unpacked_labels,
)
from trueshift.report.images import flip_images

QUICK = AuditOptions(limit=12, shifts=4, examples=2, plane=6, batch_size=32)
SCENES = AuditOptions(limit=5, shifts=3, examples=3, worst=2, batch_size=4)
ADE20K = find_protocols(["ade20k"])


def of_classifiers():
    return run_audit([subject(ReadsOnePixel(), "pixel"), subject(Constant(), "constant")], EmbeddedSample(), QUICK)


def of_segmenters():
    return run_audit([segmenter(ByPlace(), "place"), segmenter(ByPixel(), "pixel")], Scenes(noise(12)), QUICK)


@pytest.fixture(scope="module")
def found():
    return of_classifiers()


@pytest.mark.parametrize(
    ("audited", "protocols"),
    [
        (
            of_classifiers,
            ["circular", "cifar-standard", "path-8", "crop-1", "crop-4"]
            + [f"magnitude-{pixels}" for pixels in (8, 16, 24, 32)],
        ),
        (of_segmenters, ["ade20k-circular", "ade20k-standard", "pixel-crop-1", "pixel-crop-8"]),
    ],
)
def test_models_see_the_same_images_and_all_is_plain_data(audited, protocols):
    found = audited()
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))
    assert {"command", "commit", "date", "machine", "versions", "seed", "settings", "protocols"} <= found.keys()
    assert found["task"] == ("segmentation" if audited is of_segmenters else "classification")
    assert not found["partial"]
    assert found["data"]["images"] == found["data"]["asked"] == 12
    assert list(found["protocols"]) == protocols
    changing, constant = found["models"]
    assert constant["measured"][protocols[0]]["consistency"]["rate"] == 1
    assert constant["measured"][protocols[1]]["bit_exact"]["rate"] == 1
    assert changing["measured"][protocols[0]]["consistency"]["rate"] < 1
    first, second = ([index for index, _ in model["consistency_of_images"]] for model in found["models"])
    assert first == second
    assert constant["worst_images"] == []


def test_classes_that_are_not_the_datas_have_no_accuracy(found):
    pixel, constant = found["models"]
    assert pixel["measured"]["circular"]["top1"] is None  # two classes, for data with ten
    assert constant["measured"]["circular"]["top1"]["images"] == 12


def test_the_worst_images_are_reported_with_shifts_that_show_it(found):
    worst = found["models"][0]["worst_images"]
    assert [entry["consistency"] for entry in worst] == sorted(entry["consistency"] for entry in worst)
    source = EmbeddedSample()
    for entry in worst:
        image = TINY.normalise(TINY.canvas(source[entry["index"]].image)).sum(0)
        for answer in entry["answers"]:
            down, right = answer["shift"]
            assert int(image[-down % 32, -right % 32] > 0) == answer["label"]


def test_the_worst_images_against_the_unshifted_are_reported_with_its_answer():
    source = EmbeddedSample()
    unshifted = torch.stack([TINY.normalise(TINY.canvas(source[index].image)) for index in (0, 100, 200, 300)])

    class KnowsTheUnshifted(torch.nn.Module):
        """One answer to the pictures as they are, another to every shift of them."""

        num_classes = 2

        def forward(self, images):
            known = (images[:, None] == unshifted).flatten(2).all(2).any(1).float()
            return torch.stack([known, 1 - known], 1)

    quick = replace(QUICK, examples=0, limit=4, shifts=8)
    (model,) = run_audit([subject(KnowsTheUnshifted())], source, quick, find_protocols(["magnitude"]))["models"]
    assert len(model["worst_images"]) == 4
    for entry in model["worst_images"]:
        assert entry["different_answers"] == 2
        assert {answer["label"]: answer["shift"] for answer in entry["answers"]}[0] == [0, 0]


def test_the_plane_has_the_answer_at_every_shift(found):
    plane = found["models"][0]["planes"][0]
    image = TINY.normalise(TINY.canvas(EmbeddedSample()[plane["index"]].image)).sum(0)
    assert plane["rows"] == plane["columns"] == [-3, 3]
    expected = [[int(image[-down % 32, -right % 32] > 0) for right in range(-3, 3)] for down in range(-3, 3)]
    assert plane["labels"] == expected


def test_consistency_by_class_adds_up(found):
    rows = found["models"][0]["by_class"]
    assert sum(row["images"] for row in rows) == 12
    mean = sum(row["images"] * row["consistency"] for row in rows) / 12
    assert mean == pytest.approx(found["models"][0]["measured"]["circular"]["consistency"]["rate"], abs=1e-9)


def test_the_protocol_follows_the_size_of_the_images(tmp_path):
    for index in range(3):
        Image.fromarray(np.full((300, 400, 3), 60 * index, np.uint8)).save(tmp_path / f"{index}.png")
    large = usual_protocols(subject(Constant(), preparation=Preparation()), ImageFolder(tmp_path))
    small = usual_protocols(subject(Constant()), EmbeddedSample())
    assert [protocols[1].name for protocols in (large, small)] == ["imagenet-standard", "cifar-standard"]


def test_magnitudes_share_one_portion_of_the_shifts():
    numbers = shifts_of(find_protocols(["circular", "magnitude"]), 8)
    assert numbers == {"circular": 8, "magnitude-8": 2, "magnitude-16": 2, "magnitude-24": 2, "magnitude-32": 2}
    assert set(shifts_of(find_protocols(["cifar"]), 0).values()) == {None}


class SometimesNan(torch.nn.Module):
    num_classes = 2

    def forward(self, images):
        return torch.where(images[:, :1, 0, 0] > 0.4, torch.nan, 1.0).expand(-1, 2)


class NanIfFlat(ByPixel):
    def forward(self, images):
        return torch.where(images.std((1, 2, 3), keepdim=True) < 0.1, torch.nan, super().forward(images))


def test_broken_images_and_nan_are_skipped_counted_and_named(tmp_path):
    for index in range(4):
        Image.fromarray(np.full((40, 40, 3), 40 + 40 * index, np.uint8)).save(tmp_path / f"{index}.png")
    (tmp_path / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    found = run_audit([subject(SometimesNan())], ImageFolder(tmp_path), QUICK, find_protocols(["circular"]))["data"]
    reasons = {entry["name"]: entry["reason"] for entry in found["skipped"]}
    assert (found["images"], found["asked"]) == (2, 4)
    assert "UnidentifiedImageError" in reasons["1.png"]
    assert "not numbers" in reasons["3.png"]
    flat = noise(1)[0][0].point(lambda value: 128)
    scenes = Scenes([*noise(1), (OSError("torn"), None), (flat, None)])
    found = run_audit([segmenter(ByPixel()), segmenter(NanIfFlat())], scenes, QUICK)
    assert [entry["name"] for entry in found["data"]["skipped"]] == ["scene 1", "scene 2"]
    assert found["data"]["images"] == 1
    assert [len(model["consistency_of_images"]) for model in found["models"]] == [1, 1]


@pytest.mark.parametrize(
    ("model", "source"), [(subject(ReadsOnePixel()), EmbeddedSample()), (segmenter(ByPlace()), Scenes(noise(6)))]
)
def test_an_interrupt_leaves_what_is_known(model, source):
    def interrupted(what, done, total):
        if done == 5:
            raise KeyboardInterrupt

    found = run_audit([model], source, QUICK, progress=interrupted)
    assert found["partial"]
    assert found["data"]["images"] == 5
    assert next(iter(found["models"][0]["measured"].values()))["consistency"]["images"] == 5


def test_ctrl_c_leaves_a_valid_partial_report(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    words = ["--img-size=32", "--crop-pct=1", "--limit=0", "--batch-size=13", f"--output={tmp_path / 'report'}"]
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests run in the background may ignore it
    try:
        assert main(["audit", "known_models:Interrupted", *words]) == 130
    finally:
        signal.signal(signal.SIGINT, heard)
    message = " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "report" / "audit.json").read_text())
    assert found["partial"]
    assert found["models"][0]["assumed"]
    assert "does not say how to prepare its images" in message
    assert 0 < found["data"]["images"] < 400
    assert f"Interrupted: {found['data']['images']} of 400" in (tmp_path / "report" / "report.html").read_text()
    assert "Interrupted" in message


MANY = """
import resource, sys, torch, trueshift
sys.path[:0] = ["tests", "tests/eval"]
from known_models import Constant, subject
from trueshift.data import ImageFolder, Preparation
from trueshift.eval import AuditOptions, run_audit
wanted = Preparation((96, 96), 1.0)
models = [subject(Constant(), name, wanted) for name in ("one", "other")]
settings = AuditOptions(limit=int(sys.argv[2]), shifts=16, examples=0, batch_size=32)
found = run_audit(models, ImageFolder(sys.argv[1]), settings)
assert found["data"]["images"] == int(sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_a_thousand_images_need_no_more_memory_than_fifty(tmp_path):
    generator = np.random.default_rng(0)
    for index in range(1000):
        Image.fromarray(generator.integers(0, 256, (96, 96, 3), dtype=np.uint8)).save(tmp_path / f"{index}.bmp")

    def peak(images):
        command = [sys.executable, "-c", MANY, str(tmp_path), str(images)]
        # what is freed goes back at once: by itself the C library keeps more of it the longer it runs
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        where = Path(__file__).parents[3]
        return int(subprocess.run(command, cwd=where, env=environment, capture_output=True, check=True).stdout)

    batch = 32 * 3 * 96 * 96 * 4
    assert peak(1000) - peak(50) < 6 * batch  # all views at once would be 1500 batches


# details of segmentation models: worst images, flip maps, regions


@pytest.fixture(scope="module")
def found_scenes():
    return run_audit([segmenter(ByPlace(), "place"), segmenter(ByPixel(), "pixel")], Scenes(noise(6)), SCENES)


def test_the_worst_scenes_are_reported_with_the_shift_that_shows_it(found_scenes):
    place, pixel = found_scenes["models"]
    assert pixel["worst_images"] == []
    worst = place["worst_images"]
    agreed = [share for _, share in place["consistency_of_images"]]
    assert [entry["consistency"] for entry in worst] == sorted(agreed)[:2]
    for entry in worst:
        down = entry["shift"][0] % 16
        assert entry["flipped"] == pytest.approx(2 * min(down, 16 - down) / 16)


def test_flip_maps_show_all_models_under_one_shift(found_scenes):
    place, pixel = found_scenes["models"]
    assert len(place["flips"]) == len(pixel["flips"]) == 3
    for before, after in zip(place["flips"], pixel["flips"], strict=True):
        assert (before["index"], before["shift"]) == (after["index"], after["shift"])
        assert after["flipped"] == 0
        assert after["regions"] == []
        assert after["before"] == after["after"]
    assert max(flip["flipped"] for flip in place["flips"]) > 0


def test_a_flip_map_is_that_of_a_reckoning_by_hand():
    flip = flip_map(segmenter(ByPlace()), Scenes(noise(1)), 0, ADE20K[0], [3, 5], "cpu")
    assert (flip["size"], flip["wraps"]) == ([16, 24], True)
    assert flip["flipped"] == 6 / 16
    # rows 5 to 7 were above and come to lie below, rows 13 to 15 the other way
    boxes = sorted(region["box"] for region in flip["regions"])
    assert boxes == [[5, 0, 8, 24], [13, 0, 16, 24]]
    before, after = unpacked_labels(flip["before"]), unpacked_labels(flip["after"])
    assert (before[:8] == 0).all()
    assert (np.flatnonzero((before != after).any(1)) == [5, 6, 7, 13, 14, 15]).all()


def test_a_standard_shift_leaves_a_band_that_is_not_shown():
    flip = flip_map(segmenter(ByPlace()), Scenes(noise(1)), 0, ADE20K[1], [2, -3], "cpu")
    after = unpacked_labels(flip["after"])
    assert (after[14:] == NOT_SHOWN).all()
    assert (after[:, :3] == NOT_SHOWN).all()
    assert (after[:14, 3:] != NOT_SHOWN).all()
    assert flip["flipped"] == 2 / 14
    assert not flip["wraps"]


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_a_crop_shows_what_comes_in(batch_size):
    (crops,) = find_protocols(["pixel-crop-4"])
    scenes, model = Scenes(noise(1)), replace(segmenter(ByPixel()), batch_size=batch_size)
    flip = flip_map(model, scenes, 0, crops, [2, -1], "cpu")
    assert (flip["size"], flip["margin"], flip["flipped"]) == ([16, 24], [2, 2], 0)
    after = unpacked_labels(flip["after"])
    assert (after[14:] == NOT_SHOWN).all()
    assert (after[:, :1] == NOT_SHOWN).all()
    whole = np.asarray(scenes[0].image.resize((28, 20), SMALL.filter)).argmax(2)
    assert (unpacked_labels(flip["before"]) == whole[2:18, 2:26]).all()
    assert (flip_map(segmenter(ByPlace()), scenes, 0, crops, [2, -1], "cpu")["flipped"]) == 2 / 14
    drawn = flip_images(flip, scenes)
    shown = np.asarray(scenes[0].image.resize((28, 20)))
    assert (drawn["image"] == shown[2:18, 2:26]).all()
    assert (drawn["shifted"] == shown[:16, 3:27]).all()
    found = run_audit([model], scenes, SCENES, find_protocols(["pixel-motion"]))
    assert len(found["models"][0]["flips"]) == 1


def test_models_of_different_sizes_each_show_their_own_shift():
    other = ScenePreparation((96, 24), (8, 8), "resize", SMALL.mean, SMALL.std)
    models = [segmenter(ByPlace(), "small"), segmenter(ByPlace(), "large", other)]
    small, large = run_audit(models, Scenes(noise(2)), SCENES)["models"]
    assert [flip["size"] for flip in small["flips"]] == [[16, 24]] * 2
    assert [flip["size"] for flip in large["flips"]] == [[24, 40]] * 2


def test_models_of_two_kinds_are_refused():
    with pytest.raises(ValueError, match="whole one answer for each image: needs models of one kind"):
        run_audit([segmenter(ByPlace()), subject(Constant(), "whole")], Scenes(noise(1)), SCENES)


def test_the_largest_regions_come_first():
    mask = np.array([list(row) for row in ["#..#.", ".#..#", "....#", "##...", "#..##"]]) == "#"
    boxes = [(region["box"], region["pixels"]) for region in largest_regions(mask, most=3)]
    assert boxes == [([0, 3, 3, 5], 3), ([3, 0, 5, 2], 3), ([0, 0, 2, 2], 2)]
    assert largest_regions(np.zeros((4, 4), bool)) == []
    assert largest_regions(np.eye(1, dtype=bool)) == []  # a single pixel is no region


WINDING = np.zeros((101, 101), bool)  # one long region
WINDING[::2] = True
WINDING[1::4, -1] = WINDING[3::4, 0] = True
NOISE = np.random.default_rng(0).random((30, 41))


@pytest.mark.parametrize("mask", [WINDING, *(share > NOISE for share in (0.2, 0.5, 0.8))])
def test_regions_of_any_mask_are_those_of_a_slow_search(mask):
    numbers, seen, count = label_regions(mask), np.zeros(mask.shape, int), 0
    for start in zip(*np.nonzero(mask), strict=True):
        if seen[start]:
            continue
        count += 1
        waiting = [start]
        while waiting:
            row, column = waiting.pop()
            if 0 <= row < len(mask) and 0 <= column < len(mask[0]) and mask[row, column] and not seen[row, column]:
                seen[row, column] = count
                waiting += [(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    assert (seen == numbers).all()


@pytest.mark.parametrize("most", [3, 255, 1000, 65534])
def test_labels_survive_being_packed(most):
    labels = np.random.default_rng(0).integers(-1, most + 1, (7, 5))
    labels[0, 0] = most
    assert (unpacked_labels(packed_labels(labels)) == labels).all()
