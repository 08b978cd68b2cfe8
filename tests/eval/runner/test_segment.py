"""Labels of pixels under shifts: known answers, batches, and what is named or refused."""

import numpy as np
import pytest
import torch
from known_models import SMALL, ByPixel, ByPlace, Scenes, Watched, noise, segmenter
from PIL import Image

from trueshift.data import Unreadable
from trueshift.data.source import IGNORED
from trueshift.data.transforms import ScenePreparation
from trueshift.eval import Cropped, PixelTally, ShiftProtocol, find_protocols, measure_segmentation, read_scenes
from trueshift.eval.runner.segment import labels_at

CIRCULAR, STANDARD = find_protocols(["ade20k"])
BOTH = [CIRCULAR, STANDARD]


def measured(model, scenes=None, protocols=BOTH, shifts=2, batch_size=8, preparation=SMALL, **options):
    source = scenes if isinstance(scenes, Scenes) else Scenes(scenes or noise())
    read = read_scenes(source, range(len(source)), preparation, protocols)
    forward = segmenter(model).forward if isinstance(model, torch.nn.Module) else model
    return list(measure_segmentation(forward, read, protocols, preparation, shifts, batch_size=batch_size, **options))


def summaries(*arguments, **options):
    protocols = options.get("protocols", BOTH)
    tallies = {protocol.name: PixelTally(protocol, 3) for protocol in protocols}
    for record in measured(*arguments, **options):
        for tally in tallies.values():
            tally.add(record)
    return {name: tally.summary() for name, tally in tallies.items()}


def test_labels_that_move_with_the_image_are_consistent():
    for found in summaries(ByPixel(), shifts=4).values():
        assert found["consistency"]["rate"] == found["bit_exact"]["rate"] == 1
        assert found["largest_logit_change"] == 0
        assert found["consistency"]["images"] == 4
        assert found["mean_iou"] == found["pixel_accuracy"] == 1
        assert found["iou_by_class"] == [1, 1, 1]


def test_labels_that_stay_in_place_have_the_rate_of_their_shifts():
    found = summaries(ByPlace())["ade20k-circular"]
    expected = []
    for index in range(4):
        first, second = CIRCULAR.shifts(index, 2, (16, 24), 0)[:, 0].tolist()
        apart = (first - second) % 16
        expected.append(1 - 2 * min(apart, 16 - apart) / 16)  # rows that change sides
    assert found["consistency"]["rate"] == pytest.approx(sum(expected) / len(expected), abs=1e-9)
    assert found["bit_exact"]["rate"] < 1
    assert found["largest_logit_change"] == 1


def test_standard_shifts_leave_out_what_either_does_not_show():
    def sees_padding(images):  # another answer wherever zeros came in
        zero = (images == 0).all(1)
        return torch.stack([zero, ~zero, zero & ~zero], 1).float()

    (found,) = summaries(sees_padding, protocols=[STANDARD]).values()
    assert found["consistency"]["rate"] == found["bit_exact"]["rate"] == 1
    assert "without the bands that either leaves uncovered" in STANDARD.describe(None)


def test_iou_is_that_of_a_reckoning_by_hand():
    """A mask of another size than the input, with pixels that do not count."""
    image = Image.fromarray(np.array([[[255, 0, 0], [0, 255, 0]]] * 2, np.uint8))  # left red, right green
    mask = np.zeros((4, 8), np.int32)  # red everywhere, but for a column of blue and one that is ignored
    mask[:, 7], mask[:, 4] = 2, IGNORED
    four = ScenePreparation((4, 2), (1, 1), mean=(0, 0, 0), std=(1, 1, 1))
    found = summaries(ByPixel(), [(image, mask)], protocols=[CIRCULAR], preparation=four)["ade20k-circular"]
    # at the mask's size columns 0 to 3 are answered red, 4 to 7 green: 16 red of 24 are right, no blue, no green
    assert found["iou_by_class"] == [16 / 24, 0, 0]
    assert found["mean_iou"] == pytest.approx(16 / 24 / 3)
    assert found["pixel_accuracy"] == 16 / 28
    found = summaries(ByPlace(), [(image, None)])["ade20k-circular"]
    assert found["mean_iou"] is found["pixel_accuracy"] is found["iou_by_class"] is None
    assert found["consistency"]["images"] == 1


def test_labels_at_another_size_are_those_of_all_logits_at_once():
    logits = torch.randn(37, 9, 7)
    larger = torch.nn.functional.interpolate(logits[None], (20, 23), mode="bilinear", align_corners=False)[0]
    assert torch.equal(labels_at(logits, (20, 23)), larger.argmax(0))
    assert torch.equal(labels_at(torch.zeros(20, 2, 2), (3, 3)), torch.zeros(3, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("batch_size", "fixed", "batches"),
    [(1, False, [1] * 5), (3, False, [3] * 2), (64, False, [5]), (4, True, [4] * 2), (64, True, [64])],
)
def test_every_batch_of_a_scene_has_one_size_which_changes_nothing(batch_size, fixed, batches):
    watched = Watched(ByPlace())
    found = measured(watched, noise(1), batch_size=batch_size, fixed_batch=fixed)
    assert [len(batch) for batch in watched.batches] == batches  # the unshifted image once, 2 shifts of 2 protocols
    assert [record.to_plain() for record in found] == [record.to_plain() for record in measured(ByPlace(), noise(1))]


def test_a_network_that_pads_is_shown_full_frames_on_the_circle_only():
    padded = ScenePreparation((64, 16), (8, 8), "pad", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    (record,) = measured(ByPixel(), noise(1, (16, 21)), preparation=padded)
    assert record.answers["ade20k-circular"].size == (16, 24)
    standard = record.answers["ade20k-standard"]
    assert (standard.size, standard.agreement, standard.counts is None) == ((16, 21), 1, False)
    assert type(record).from_plain(record.to_plain()).to_plain() == record.to_plain()


def test_what_cannot_be_measured_is_named():
    good, strange = noise(2)
    strange[1][0, 0] = 7
    scenes = [good, (OSError("torn"), None), strange]
    one, torn, unknown = measured(ByPixel(), scenes)
    assert isinstance(torn, Unreadable)
    assert (torn.name, torn.reason) == ("scene 1", "OSError: torn")
    assert unknown.reason == "its mask has labels 0 to 7: needs 0 to 2, or -100 to ignore"
    assert one.answers.keys() == {"ade20k-circular", "ade20k-standard"}
    for view in (0, 1, 4):

        def sometimes_nan(images, view=view):
            return torch.where(torch.arange(len(images))[:, None, None, None] == view, torch.nan, images)

        (message,) = measured(sometimes_nan, noise(1))
        assert "not numbers" in message.reason


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (ByPixel(), {"protocols": find_protocols(["circular"])}, "one answer per image"),
        (ByPixel(), {"protocols": [ShiftProtocol("crops", "", Cropped(1 / 8), dense=True)]}, "cannot be done pixel"),
        (ByPixel(), {"shifts": 1}, "at least 2"),
        (lambda images: images[..., ::2, ::2], {}, r"answered with \(8, 12\) pixels"),
        (lambda images: images.mean((2, 3)), {}, r"needs logits of shape \[5, classes, height, width\]"),
    ],
)
def test_what_cannot_be_measured_is_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        measured(model, **options)


def test_crops_of_an_image_are_compared_where_they_overlap():
    crops = find_protocols(["pixel-motion"])
    for found in summaries(ByPixel(), protocols=crops).values():
        assert found["consistency"]["rate"] == found["bit_exact"]["rate"] == 1
        assert found["mean_iou"] is None  # a mask is that of the whole image
    (record,) = measured(ByPlace(), noise(1), [crops[2]], shifts=25)
    said = record.answers["pixel-crop-4"]
    assert said.size == (16, 24)
    np.testing.assert_allclose(said.flipped, abs(said.shifts[:, 0]) / (16 - abs(said.shifts[:, 0])))
    together = summaries(ByPlace(), protocols=[CIRCULAR, *crops])
    for protocol in (CIRCULAR, crops[3]):
        assert summaries(ByPlace(), protocols=[protocol])[protocol.name] == together[protocol.name]
