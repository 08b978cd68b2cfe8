import pytest
import torch

from trueshift.eval import find_protocols, measure_segmentation

CIRCULAR, STANDARD = find_protocols(["ade20k"])


def by_pixel(images):
    """Each pixel's own brightest colour: it moves with the image."""
    return images


def by_place(images):
    """The upper half is one class, the lower another, whatever is there."""
    logits = torch.zeros(len(images), 3, *images.shape[2:])
    logits[:, 0, : images.shape[2] // 2] = logits[:, 1, images.shape[2] // 2 :] = 1
    return logits


def pairs(count=4, size=(16, 24)):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(3, *size, generator=generator), torch.randint(3, size, generator=generator)) for _ in range(count)
    ]


@pytest.mark.parametrize("protocol", [CIRCULAR, STANDARD])
@pytest.mark.parametrize("shifts", [2, 4])
def test_labels_that_move_with_the_image_are_consistent(protocol, shifts):
    result = measure_segmentation(by_pixel, pairs(), protocol, 3, shifts)
    assert result["consistency"]["rate"] == 1
    assert result["images"] == 4


def test_labels_that_stay_in_place_have_the_rate_of_their_shifts():
    images = pairs()
    result = measure_segmentation(by_place, images, CIRCULAR, 3)
    expected = []
    for index in range(len(images)):
        first, second = CIRCULAR.shifts(index, 2, (16, 24), 0)[:, 0].tolist()
        apart = (first - second) % 16
        expected.append(1 - 2 * min(apart, 16 - apart) / 16)  # rows that change sides
    assert result["consistency"]["rate"] == pytest.approx(sum(expected) / len(expected), abs=1e-9)


def test_standard_shifts_leave_out_what_either_does_not_show():
    def sees_padding(images):  # another answer wherever zeros came in
        return torch.stack([images[:, 0] == 0, images[:, 0] != 0], 1).float()

    result = measure_segmentation(sees_padding, pairs(), STANDARD, 3)
    assert result["consistency"]["rate"] == 1
    assert "without the bands that either leaves uncovered" in result["protocol"]


def test_iou_is_that_of_the_unshifted_images():
    images = [(image, image.argmax(0)) for image, _ in pairs()]
    assert measure_segmentation(by_pixel, images, CIRCULAR, 3)["mean_iou"] == 1
    images[0][1][:8] = 255
    assert measure_segmentation(by_pixel, images, CIRCULAR, 3, ignore_index=255)["mean_iou"] == 1


def test_images_may_have_any_sizes():
    mixed = [*pairs(1), *pairs(1, (32, 8))]
    assert measure_segmentation(by_pixel, mixed, CIRCULAR, 3)["images"] == 2


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="one answer per image"):
        measure_segmentation(by_pixel, pairs(), find_protocols(["circular"])[0], 3)
    with pytest.raises(ValueError, match="at least 2"):
        measure_segmentation(by_pixel, pairs(), CIRCULAR, 3, shifts=1)
    with pytest.raises(ValueError, match=r"answered with \(8, 12\) pixels"):
        measure_segmentation(lambda images: images[..., ::2, ::2], pairs(), CIRCULAR, 3)
