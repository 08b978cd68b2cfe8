"""What an audit finds: everything it says of a model is so, and what cannot be read is named."""

import json
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from known_models import SMALL, TINY, ByPixel, ByPlace, Constant, ReadsOnePixel, Scenes, noise, segmenter, subject
from PIL import Image

from trueshift.data import EmbeddedSample, ImageFolder, Preparation
from trueshift.eval import SUITES, AuditOptions, find_protocols, run_audit
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


@pytest.fixture(scope="module")
def found():
    return run_audit([subject(ReadsOnePixel(), "pixel"), subject(Constant(), "constant")], EmbeddedSample(), QUICK)


@pytest.fixture(scope="module")
def found_scenes():
    return run_audit([segmenter(ByPlace(), "place"), segmenter(ByPixel(), "pixel")], Scenes(noise(6)), SCENES)


@pytest.mark.parametrize(("which", "task"), [("found", "classification"), ("found_scenes", "segmentation")])
def test_models_see_the_same_images_and_all_is_plain_data(request, which, task):
    found = request.getfixturevalue(which)
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))
    assert {"command", "commit", "date", "machine", "versions", "seed", "settings", "protocols"} <= found.keys()
    assert (found["task"], found["partial"]) == (task, False)
    assert found["data"]["images"] == found["data"]["asked"] > 0
    changing, constant = found["models"]
    first, second = list(found["protocols"])[:2]
    assert constant["measured"][first]["consistency"]["rate"] == 1
    assert constant["measured"][second]["bit_exact"]["rate"] == 1
    assert changing["measured"][first]["consistency"]["rate"] < 1
    images, others = ([index for index, _ in model["consistency_of_images"]] for model in found["models"])
    assert images == others
    assert constant["worst_images"] == []


def test_details_of_a_classifier(found):
    pixel, constant = found["models"]
    assert pixel["measured"]["circular"]["top1"] is None  # two classes, for data with ten
    assert constant["measured"]["circular"]["top1"]["images"] == 12
    agreed = sum(row["images"] * row["consistency"] for row in pixel["by_class"])
    assert agreed / 12 == pytest.approx(pixel["measured"]["circular"]["consistency"]["rate"], abs=1e-9)

    source = EmbeddedSample()

    def answer(entry, down, right):
        image = TINY.normalise(TINY.canvas(source[entry["index"]].image)).sum(0)
        return int(image[-down % 32, -right % 32] > 0)

    worst, plane = pixel["worst_images"], pixel["planes"][0]
    assert [entry["consistency"] for entry in worst] == sorted(entry["consistency"] for entry in worst)
    for entry in worst:
        for shown in entry["answers"]:
            assert answer(entry, *shown["shift"]) == shown["label"]
    assert plane["rows"] == plane["columns"] == [-3, 3]
    assert plane["labels"] == [[answer(plane, down, right) for right in range(-3, 3)] for down in range(-3, 3)]


def test_details_of_a_segmentation_model(found_scenes):
    place, pixel = found_scenes["models"]
    worst, agreed = place["worst_images"], [share for _, share in place["consistency_of_images"]]
    assert [entry["consistency"] for entry in worst] == sorted(agreed)[:2]
    for entry in worst:
        down = entry["shift"][0] % 16
        assert entry["flipped"] == pytest.approx(2 * min(down, 16 - down) / 16)
    assert len(place["flips"]) == len(pixel["flips"]) == 3
    for before, after in zip(place["flips"], pixel["flips"], strict=True):
        assert (before["index"], before["shift"]) == (after["index"], after["shift"])  # the same for all models
        assert (after["flipped"], after["regions"]) == (0, [])
        assert after["before"] == after["after"]
    assert max(flip["flipped"] for flip in place["flips"]) > 0


def test_the_first_flip_map_is_of_the_image_that_changes_most_in_any_model():
    found = run_audit([segmenter(ByPixel()), segmenter(ByPlace())], Scenes(noise(6)), replace(SCENES, seed=3))
    steady, changing = found["models"]
    consistency = [rate for _, rate in changing["consistency_of_images"]]
    assert consistency[0] > min(consistency)
    assert steady["flips"][0]["index"] == changing["consistency_of_images"][np.argmin(consistency)][0]


def test_protocols_and_shifts_by_default(tmp_path):
    for index in range(3):
        Image.fromarray(np.full((300, 400, 3), 60 * index, np.uint8)).save(tmp_path / f"{index}.png")
    large = usual_protocols(subject(Constant(), preparation=Preparation()), ImageFolder(tmp_path))
    small = usual_protocols(subject(Constant()), EmbeddedSample())
    assert [protocols[1].name for protocols in (large, small)] == ["imagenet-standard", "cifar-standard"]
    numbers = shifts_of(find_protocols(["circular", "magnitude"]), 8)
    assert numbers == {"circular": 8, **dict.fromkeys(SUITES["magnitude"], 2)}  # they share one portion
    assert set(shifts_of(find_protocols(["cifar"]), 0).values()) == {None}


def test_models_of_different_sizes_and_of_two_kinds():
    large = segmenter(ByPlace(), "large", replace(SMALL, scale=(96, 24)))
    models = run_audit([segmenter(ByPlace()), large], Scenes(noise(2)), SCENES)["models"]
    assert [[flip["size"] for flip in model["flips"]] for model in models] == [[[16, 24]] * 2, [[24, 40]] * 2]
    with pytest.raises(ValueError, match="whole one answer for each image: needs models of one kind"):
        run_audit([segmenter(ByPlace()), subject(Constant(), "whole")], Scenes(noise(1)), SCENES)


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


def test_memory_holds_a_few_batches_whatever_the_number_of_images():
    alive, most = [], []

    class Followed(Preparation):
        def canvas(self, *arguments):
            made = super().canvas(*arguments)
            alive.append(weakref.ref(made))
            return made

    class Counting(Constant):
        def forward(self, images):
            most.append(sum(canvas() is not None for canvas in alive))
            return super().forward(images)

    models = [subject(Counting(), preparation=Followed((32, 32), 1.0)) for _ in range(2)]
    options = replace(QUICK, limit=200, shifts=7, examples=0, workers=0)
    assert run_audit(models, EmbeddedSample(), options, find_protocols(["circular"]))["data"]["images"] == 200
    assert 0 < max(most) < 130  # itertools.tee keeps up to 57 at a time


# flip maps and their regions


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


def test_a_crop_shows_what_comes_in():
    (crops,) = find_protocols(["pixel-crop-4"])
    scenes, model = Scenes(noise(1)), replace(segmenter(ByPixel()), batch_size=3)
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


def test_the_largest_regions_come_first():
    mask = np.array([list(row) for row in ["#..#.", ".#..#", "....#", "##...", "#..##"]]) == "#"
    boxes = [(region["box"], region["pixels"]) for region in largest_regions(mask, most=3)]
    assert boxes == [([0, 3, 3, 5], 3), ([3, 0, 5, 2], 3), ([0, 0, 2, 2], 2)]
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


@pytest.mark.parametrize("most", [3, 255, 65534])
def test_labels_survive_being_packed(most):
    labels = np.random.default_rng(0).integers(-1, most + 1, (7, 5))
    labels[0, 0] = most
    assert (unpacked_labels(packed_labels(labels)) == labels).all()
