"""Details of segmentation models in an audit: worst images, flip maps, regions."""

import numpy as np
import pytest
from known_models import SMALL, ByPixel, ByPlace, Constant, Scenes, noise, segmenter, subject

from trueshift.data import EmbeddedSample
from trueshift.data.source import WithoutTargets
from trueshift.data.transforms import ScenePreparation
from trueshift.eval import AuditOptions, find_protocols, run_audit
from trueshift.eval.audit.segmentation import (
    NOT_SHOWN,
    flip_map,
    label_regions,
    largest_regions,
    packed_labels,
    unpacked_labels,
)

QUICK = AuditOptions(limit=5, shifts=3, examples=3, worst=2, batch_size=4)
CIRCULAR, STANDARD = find_protocols(["ade20k"])


@pytest.fixture(scope="module")
def found():
    return run_audit([segmenter(ByPlace(), "place"), segmenter(ByPixel(), "pixel")], Scenes(noise(6)), QUICK)


def test_the_worst_images_are_reported_with_the_shift_that_shows_it(found):
    place, pixel = found["models"]
    assert pixel["worst_images"] == []
    worst = place["worst_images"]
    agreed = [share for _, share in place["consistency_of_images"]]
    assert [entry["consistency"] for entry in worst] == sorted(agreed)[:2]
    for entry in worst:
        down = entry["shift"][0] % 16
        assert entry["flipped"] == pytest.approx(2 * min(down, 16 - down) / 16)


def test_flip_maps_show_all_models_under_one_shift(found):
    place, pixel = found["models"]
    assert len(place["flips"]) == len(pixel["flips"]) == 3
    for before, after in zip(place["flips"], pixel["flips"], strict=True):
        assert (before["index"], before["shift"]) == (after["index"], after["shift"])
        assert after["flipped"] == 0
        assert after["regions"] == []
        assert after["before"] == after["after"]
    assert max(flip["flipped"] for flip in place["flips"]) > 0


def test_a_flip_map_is_that_of_a_reckoning_by_hand():
    flip = flip_map(segmenter(ByPlace()), Scenes(noise(1)), 0, CIRCULAR, [3, 5], "cpu")
    assert (flip["size"], flip["wraps"]) == ([16, 24], True)
    assert flip["flipped"] == 6 / 16
    # rows 5 to 7 were above and come to lie below, rows 13 to 15 the other way
    boxes = sorted(region["box"] for region in flip["regions"])
    assert boxes == [[5, 0, 8, 24], [13, 0, 16, 24]]
    before, after = unpacked_labels(flip["before"]), unpacked_labels(flip["after"])
    assert (before[:8] == 0).all()
    assert (np.flatnonzero((before != after).any(1)) == [5, 6, 7, 13, 14, 15]).all()


def test_a_standard_shift_leaves_a_band_that_is_not_shown():
    flip = flip_map(segmenter(ByPlace()), Scenes(noise(1)), 0, STANDARD, [2, -3], "cpu")
    after = unpacked_labels(flip["after"])
    assert (after[14:] == NOT_SHOWN).all()
    assert (after[:, :3] == NOT_SHOWN).all()
    assert (after[:14, 3:] != NOT_SHOWN).all()
    assert flip["flipped"] == 2 / 14
    assert not flip["wraps"]


def test_models_of_different_sizes_each_show_their_own_shift():
    other = ScenePreparation((96, 24), (8, 8), "resize", SMALL.mean, SMALL.std)
    models = [segmenter(ByPlace(), "small"), segmenter(ByPlace(), "large", other)]
    small, large = run_audit(models, Scenes(noise(2)), QUICK)["models"]
    assert [flip["size"] for flip in small["flips"]] == [[16, 24]] * 2
    assert [flip["size"] for flip in large["flips"]] == [[24, 40]] * 2


def test_images_alone_will_do():
    found = run_audit([segmenter(ByPlace())], WithoutTargets(EmbeddedSample()), QUICK)
    assert found["models"][0]["measured"]["ade20k-circular"]["mean_iou"] is None
    assert found["data"]["images"] == 5


def test_models_of_two_kinds_are_refused():
    with pytest.raises(ValueError, match="whole one answer for each image: needs models of one kind"):
        run_audit([segmenter(ByPlace()), subject(Constant(), "whole")], Scenes(noise(1)), QUICK)


def test_regions_are_those_that_touch():
    mask = np.array([list(row) for row in ["#..#.", ".#..#", "....#", "##...", "#..##"]]) == "#"
    assert label_regions(mask).tolist() == [
        [1, 0, 0, 2, 0], [0, 1, 0, 0, 2], [0, 0, 0, 0, 2], [3, 3, 0, 0, 0], [3, 0, 0, 4, 4],
    ]  # fmt: skip
    boxes = [(region["box"], region["pixels"]) for region in largest_regions(mask, most=3)]
    assert boxes == [([0, 3, 3, 5], 3), ([3, 0, 5, 2], 3), ([0, 0, 2, 2], 2)]
    assert largest_regions(np.zeros((4, 4), bool)) == []
    assert largest_regions(np.eye(1, dtype=bool)) == []  # a single pixel is no region


def test_regions_of_any_mask_are_those_of_a_slow_search():
    generator = np.random.default_rng(0)
    for share in (0.2, 0.5, 0.8):
        mask = generator.random((30, 41)) < share
        numbers, seen, count = label_regions(mask), np.zeros(mask.shape, int), 0
        for start in zip(*np.nonzero(mask), strict=True):
            if seen[start]:
                continue
            count += 1
            waiting = [start]
            while waiting:
                row, column = waiting.pop()
                if 0 <= row < 30 and 0 <= column < 41 and mask[row, column] and not seen[row, column]:
                    seen[row, column] = count
                    waiting += [(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
        assert (seen == numbers).all()


def test_a_long_winding_region_is_one():
    mask = np.zeros((101, 101), bool)
    mask[::2] = True
    mask[1::4, -1] = mask[3::4, 0] = True
    assert label_regions(mask).max() == 1


@pytest.mark.parametrize("most", [3, 255, 1000, 65534])
def test_labels_survive_being_packed(most):
    labels = np.random.default_rng(0).integers(-1, most + 1, (7, 5))
    labels[0, 0] = most
    assert (unpacked_labels(packed_labels(labels)) == labels).all()
