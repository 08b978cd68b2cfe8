"""Chance that depends on seed, epoch and image, and on nothing that was drawn before."""

import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from trueshift.data import EmbeddedSample, Preparation, Sample
from trueshift.ops.geometry.shift import circular_shift
from trueshift.train.config import AugmentConfig
from trueshift.train.data.augment import ClassificationTransform, auto_augment, erase
from trueshift.utils.rng import hashed, seed_everything, seeded, uniform

COUNT = 100_000
SMALL = Preparation((24, 24), 0.875)
SAMPLE = EmbeddedSample()


def transform(preparation=SMALL, seed=0, **augment):
    return ClassificationTransform(preparation, AugmentConfig(**{"flip": 0.0, **augment}), seed)


def finished(change, image, epoch, index):
    """One image from reading to the network's input, as a run does it."""
    pixels, _ = change(Sample(image, "an image", 0), epoch, index)
    return change.finisher("cpu")(pixels[None], epoch, np.array([index]))[0]


@pytest.mark.parametrize("place", range(4))
def test_numbers_are_uniform_and_neighbours_are_independent_along_each_argument(place):
    def drawn(add):
        return uniform(*[np.arange(COUNT) + add if at == place else number for at, number in enumerate((7, 0, 3, 1))])

    numbers = drawn(0)
    assert 0 <= numbers.min() <= numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 5 / np.sqrt(12 * COUNT)
    found = np.histogram(numbers, bins=256, range=(0, 1))[0]
    chi_square = ((found - COUNT / 256) ** 2).sum() / (COUNT / 256)
    assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)
    for distance in (1, 64):
        assert abs(np.corrcoef(numbers, drawn(distance))[0, 1]) < 5 / np.sqrt(COUNT)


def test_bits_of_neighbours_are_independent_and_arrays_are_the_same_numbers_at_once():
    bits = np.bitwise_count(hashed(5, np.arange(COUNT)) ^ hashed(5, np.arange(COUNT) + 1))
    assert abs(bits.mean() - 32) < 5 * 4 / np.sqrt(COUNT)
    epochs, images = np.meshgrid(np.arange(3), np.arange(50))
    together = hashed(11, epochs, images, 2)
    alone = [int(hashed(11, int(epoch), int(at), 2)) for epoch, at in zip(epochs.flat, images.flat, strict=True)]
    assert together.ravel().tolist() == alone
    # the order of the numbers counts
    assert len({int(hashed(*key)) for key in [(1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (1,), (1, 0), (0, 1)]}) == 7


def generators():
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state().tolist()


def draw():
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002


def test_generators_are_put_back_exactly_after_an_error_too():
    draw()
    before = generators()
    with suppress(KeyError), seeded(1, 2, 3):
        first = draw()
        assert generators() != before
        raise KeyError
    assert generators() == before
    with seeded(1, 2, 4):
        assert not set(draw()) & set(first)
        within = generators()
        with seeded(1, 2, 3):
            assert draw() == first
        assert generators() == within
    seed_everything(1, 2, 3)  # the same for good
    assert draw() == first


def test_places_are_equally_likely_and_all_that_is_drawn_is_independent():
    change = transform(Preparation((8, 12), 1.0), flip=0.5, vertical_flip=0.5, pad_crop=4, circular_shift=True)
    drawn = change.drawn(2, np.arange(COUNT))
    assert (abs(drawn[:, :2].mean(0) - 0.5) < 5 / np.sqrt(4 * COUNT)).all()
    for places, sides in ((drawn[:, 2:4], (9, 9)), (drawn[:, 4:], (8, 12))):
        found = np.histogram2d(*places.T, bins=sides, range=[(0, side) for side in sides])[0]
        assert found.sum() == COUNT
        assert abs(found - COUNT / np.prod(sides)).max() < 5 * np.sqrt(COUNT / np.prod(sides))
    both = np.concatenate([drawn, change.drawn(3, np.arange(COUNT))], 1)
    assert abs(np.corrcoef(both.T) - np.eye(12)).max() < 5 / np.sqrt(COUNT)
    assert [transform(flip=rate).drawn(2, np.arange(9))[:, 0].sum() for rate in (0.0, 1.0)] == [0, 9]


WAYS = [
    {"flip": 0.5, "vertical_flip": 0.5, "circular_shift": True, "pad_crop": 2, "erasing": 0.5},
    {"crop_scale": (0.3, 1.0)},
    {"auto_augment": "rand-m9-mstd0.5-inc1"},
    {"auto_augment": "augmix-m3-w3"},
    {"auto_augment": "original"},
    {"auto_augment": "trivial"},
    {"color_jitter": 0.4},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_an_image_is_changed_by_its_epoch_and_number_alone(way):
    def epochs(change, numbers=(12,)):
        changed = [finished(change, SAMPLE[12].image, epoch, number) for epoch in range(6) for number in numbers]
        return changed[:: len(numbers)]

    change = transform(**way)
    state = generators()
    change(SAMPLE[12], 0, 12)  # in a worker
    assert generators() == state
    before = epochs(transform(**way))
    assert {tuple(pixels.shape) for pixels in before} == {(3, 24, 24)}
    assert len({pixels.numpy().tobytes() for pixels in before}) > 2  # timm leaves some images as they are
    random.seed(torch.seed())
    for again in (epochs(transform(**way)), epochs(transform(**way), numbers=(12, 0, 7))):
        assert all(map(torch.equal, before, again))
    for other in (epochs(transform(**way), (13,)), epochs(transform(seed=1, **way))):
        assert not all(map(torch.equal, before, other))


@pytest.mark.parametrize("preparation", [SMALL, Preparation((32, 32), 1.0)])
@pytest.mark.parametrize("size", [(32, 32), (50, 37)])
def test_without_any_change_it_is_what_is_measured_on_and_flips_are_flips(preparation, size):
    image = SAMPLE[3].image.resize(size)
    wanted = preparation.normalise(preparation.canvas(image))
    assert torch.equal(finished(transform(preparation), image, 1, 3), wanted)
    assert torch.equal(finished(transform(preparation, flip=1.0), image, 1, 3), wanted.flip(2))
    assert torch.equal(finished(transform(preparation, vertical_flip=1.0), image, 1, 3), wanted.flip(1))


def test_crops_of_the_padded_image_and_circular_shifts_only_move_it():
    crop, shift = transform(pad_crop=5), transform(circular_shift=True)
    image = SAMPLE[0].image
    still = SMALL.normalise(SMALL.canvas(image))[None]
    padded = torch.nn.functional.pad(still[0], [5] * 4)  # by the mean colour, which is zero
    for epoch in range(5):
        *_, top, left, _, _ = crop.drawn(epoch, np.array(0)).tolist()
        *_, rows, columns = shift.drawn(epoch, np.array(0)).tolist()
        assert torch.equal(finished(crop, image, epoch, 0), padded[:, top : top + 24, left : left + 24])
        assert torch.equal(finished(shift, image, epoch, 0), circular_shift(still, (rows, columns), (2, 3))[0])
    # as often as asked, by what it would be anyway
    some, every = (transform(circular_shift=often).drawn(2, np.arange(2000))[:, 4:] for often in (0.25, True))
    assert abs(some.any(1).mean() - 0.25) < 0.04
    assert np.array_equal(some[some.any(1)], every[some.any(1)])


def test_trivial_augment_draws_one_of_torchvisions_changes_for_each_group_and_an_image_does_not_feel_the_others():
    change, indices = transform(auto_augment="trivial"), np.arange(200)
    pixels = torch.from_numpy(np.stack([SAMPLE.pixels[at % len(SAMPLE)] for at in indices])).permute(0, 3, 1, 2)
    changed = change.trivial(pixels, 3, indices)
    some = np.random.default_rng(0).permutation(200)[:50]
    assert torch.equal(change.trivial(pixels[some], 3, indices[some]), changed[some])
    possible = []
    for group in range(64):
        with seeded(0, 3, group, 11):
            fill = list(map(float, SMALL.mean_pixel))
            possible.append(v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR, fill=fill)(pixels))
    fits = torch.stack([(each == changed).flatten(1).all(1) for each in possible])
    assert bool(fits.any(0).all())
    assert len(set(fits.int().argmax(0).tolist())) > 30  # most groups are met


def test_a_random_crop_takes_the_part_asked_for():
    """The smaller the part of noise, the smoother it is when it fills the same pixels."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    changes = (transform(Preparation((64, 64), 1.0), crop_scale=(part, part)) for part in (0.25, 1.0))
    part, whole = (finished(change, noise, 0, 0).diff(dim=2).std() for change in changes)
    assert part < whole


def test_names_of_timms_or_none():
    for name in ("rand-q9", "augmix-m3-q3", "autoaugment"):
        with pytest.raises(ValueError, match=f"augment.auto_augment '{name}'"):
            auto_augment(name, SMALL)
    strongest = auto_augment("rand-m10-n99-p1-inc1", SMALL)
    with seeded(0):  # Pillow makes all of these changes
        assert strongest(SAMPLE[0].image).size == SAMPLE[0].image.size


def erased(images, seeds, probability=1.0):
    return erase(images.clone(), seeds, probability)


def test_a_rectangle_of_noise_and_the_rest_bit_for_bit():
    count = 100
    images = torch.full((count, 3, 40, 40), 100.0)
    found = erased(images, range(count))
    changed = found != images
    assert torch.equal(changed.any(1), changed.all(1))  # all colours of a pixel, or none
    for mask in changed[:, 0]:
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns)
        for side in (rows, columns):  # without a gap
            assert side.int().diff().abs().sum() <= 2
    parts = changed[:, 0].float().mean((1, 2))
    assert 0.015 < parts.min() < 0.05
    assert 0.25 < parts.max() < 0.35
    assert abs(found[changed].mean()) < 0.03
    assert abs(found[changed].std() - 1) < 0.03


def test_as_often_as_asked_and_never_where_there_is_no_room():
    images = torch.randn(1000, 1, 8, 8)
    for probability in (0.0, 0.3, 1.0):
        changed = (erased(images, hashed(9, np.arange(1000)).tolist(), probability) != images).flatten(1).any(1)
        assert abs(changed.float().mean() - probability) <= 5 * np.sqrt(probability * (1 - probability) / 1000)
    small = torch.randn(4, 3, 1, 1)
    assert torch.equal(erased(small, range(4)), small)
