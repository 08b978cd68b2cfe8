"""Two ways to feed a network, one answer: images that lie on the device, and images that are read by a loader."""

import signal

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import get_worker_info

from trueshift.data import EmbeddedSample, ImageFolder, Preparation
from trueshift.data.subset import Subset
from trueshift.train.config import AugmentConfig
from trueshift.train.data import on_device as resident_module
from trueshift.train.data.augment import ClassificationTransform
from trueshift.train.data.loader import AugmentedSamples, DirectFeed, LoaderFeed
from trueshift.train.data.on_device import ResidentImages, is_resident, needs_loader
from trueshift.train.data.sampler import ALONE, BatchOrder, Share

COUNT = 26
SAMPLE = Subset(EmbeddedSample(), np.arange(COUNT))
SMALL = Preparation((24, 24), 0.875)
EVERYTHING = AugmentConfig(0.5, 0.5, pad_crop=3, circular_shift=True, auto_augment="trivial", erasing=0.5)


def on_device(share=ALONE, accumulate=1, augment=EVERYTHING):
    read = ResidentImages(SAMPLE, SMALL, "cpu").augmented(ClassificationTransform(SMALL, augment, 3))
    return DirectFeed(read, BatchOrder(COUNT, 12, share, accumulate, seed=3))


def by_loader(share=ALONE, accumulate=1, augment=EVERYTHING, workers=0, source=SAMPLE):
    images = AugmentedSamples(source, ClassificationTransform(SMALL, augment, 3))
    return LoaderFeed(images, BatchOrder(COUNT, 12, share, accumulate, seed=3), "cpu", workers)


@pytest.mark.parametrize(
    "preparation",
    [
        Preparation((256, 256), 0.875),  # SwinV2: 292, an odd margin
        Preparation((32, 32), 1.0),
        Preparation((32, 24), 0.9),
        Preparation((48, 48), 1.0, interpolation="bilinear"),  # thirds: halves are rounded as Pillow's weights are
        Preparation((20, 20), 1.0, interpolation="lanczos"),
    ],
    ids=lambda preparation: f"{preparation.size[0]}-{preparation.crop_pct}-{preparation.interpolation}",
)
def test_images_on_the_device_are_pillows(preparation):
    # noise has the steepest edges, a photograph the usual ones
    noise = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    source = Subset(EmbeddedSample(), [0, 7, 11])
    source.pixels = np.concatenate([source.pixels, noise, noise // 128 * 255])
    source.labels = np.arange(9)
    found = ResidentImages(source, preparation, "cpu").resized(torch.arange(9))
    wanted = torch.stack([preparation.canvas(Image.fromarray(pixels)) for pixels in source.pixels])
    assert found.shape == wanted.shape
    assert torch.equal(found, wanted.float())  # without a resize, the very pixels


def assert_same(batches, others):
    """The same images in the same order, bit for bit: the same flips, shifts and rectangles."""
    batches, others = list(batches), list(others)
    assert len(batches) == len(others) > 0
    for batch, other in zip(batches, others, strict=True):
        assert batch.indices.tolist() == other.indices.tolist()
        assert batch.labels.tolist() == other.labels.tolist()
        assert batch.images.shape == (len(batch.indices), 3, 24, 24)
        assert torch.equal(batch.images, other.images)
        assert batch.unreadable == other.unreadable == []


class Signalled(Subset):
    """A worker that reads from it is told to stop, as all processes of a preempted job are."""

    def __getitem__(self, index):
        if get_worker_info():
            signal.raise_signal(signal.SIGTERM)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_both_feeds_give_the_same(workers):
    resident_feed, loader = on_device(), by_loader(workers=workers, source=Signalled(SAMPLE, range(COUNT)))
    for epoch, first_step in ((0, 0), (4, 1)):  # the same workers, asked twice
        assert_same(resident_feed.epoch(epoch, first_step), loader.epoch(epoch, first_step))


both_feeds = pytest.mark.parametrize("feed", [on_device, by_loader])


@both_feeds
@pytest.mark.parametrize(("processes", "accumulate"), [(2, 2), (1, 3)])
def test_shares_together_are_what_one_process_takes(feed, processes, accumulate):
    whole = list(feed().epoch(1))
    shares = [list(feed(Share(rank, processes), accumulate).epoch(1)) for rank in range(processes)]
    assert {len(share) for share in shares} == {len(whole) * accumulate}
    for step, batch in enumerate(whole):
        parts = [part for share in shares for part in share[step * accumulate : (step + 1) * accumulate]]
        assert {len(part.indices) for part in parts} == {12 // (processes * accumulate)}
        by_index = {int(at): image for part in parts for at, image in zip(part.indices, part.images, strict=True)}
        assert by_index.keys() == set(batch.indices.tolist())
        for at, image in zip(batch.indices, batch.images, strict=True):
            assert torch.equal(by_index[int(at)], image)


@both_feeds
def test_an_epoch_goes_on_with_the_same_bits(feed):
    feed = feed(Share(1, 2), accumulate=2)
    whole, rest = list(feed.epoch(2)), list(feed.epoch(2, first_step=1))
    assert len(rest) == len(whole) - 2 == 2
    assert_same(rest, whole[2:])
    assert not list(feed.epoch(2, first_step=2))


@pytest.fixture
def damaged(tmp_path):
    """Images in a folder, some of them damaged."""

    def make(*broken):
        for index in range(COUNT):
            file = tmp_path / "class" / f"{index:02d}.png"
            file.parent.mkdir(exist_ok=True)
            SAMPLE[index].image.save(file)
            if index in broken:
                file.write_bytes(file.read_bytes()[:60])
        return ImageFolder(tmp_path)

    return make


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_image_stands_in_for_one_that_cannot_be_read(damaged, workers):
    batches = list(by_loader(source=damaged(7, 8, 25), workers=workers).epoch(0))
    usual = list(by_loader().epoch(0))
    stand_ins = {7: 9, 8: 9, 25: 0}
    for batch, other in zip(batches, usual, strict=True):
        assert batch.indices.tolist() == [stand_ins.get(int(at), int(at)) for at in other.indices]
        for image, at in zip(batch.images, batch.indices, strict=True):  # changed as ever
            if at in other.indices:
                assert torch.equal(image, other.images[other.indices.tolist().index(at)])
    reported = [each for batch in batches for each in batch.unreadable]
    tried = {7: ["07", "08"], 8: ["08"], 25: ["25"]}
    expected = [name for batch in usual for at in batch.indices for name in tried.get(int(at), [])]
    assert [each.split(":")[0] for each in reported] == [f"class/{name}.png" for name in expected]
    assert all("Error" in each for each in reported)
    assert expected


def test_sixteen_in_a_row_are_too_many(damaged):
    samples = by_loader(source=damaged(*range(5, 21))).loader.dataset
    with pytest.raises(ValueError, match=r"16 images in a row could not be read, e.g. class/05.png: .*repair"):
        samples[0, 5]
    *_, index, unreadable = samples[0, 6]
    assert (index, len(unreadable)) == (21, 15)


def test_an_image_without_a_class_is_none_to_learn_from(damaged, tmp_path):
    SAMPLE[0].image.save(tmp_path / "0.png")  # beside the classes
    *_, index, unreadable = by_loader(source=damaged()).loader.dataset[0, 0]
    assert (index, unreadable) == (1, ["0.png: ValueError: it has no class"])


def test_few_pixels_in_memory_can_live_on_a_device_unless_the_loader_is_needed(damaged, monkeypatch):
    assert needs_loader(EVERYTHING) == []
    asked = AugmentConfig(crop_scale=(0.5, 1.0), auto_augment="original", color_jitter=0.4)
    assert needs_loader(asked) == ["crop_scale", "auto_augment", "color_jitter"]
    assert is_resident(EmbeddedSample())
    assert is_resident(SAMPLE)
    assert not is_resident(damaged())
    monkeypatch.setattr(resident_module, "LARGEST", SAMPLE.pixels.nbytes - 1)
    assert not is_resident(SAMPLE)


# -- which images a step takes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("images", "batch"), [(43, 8), (8, 8), (7, 1)])
def test_an_epoch_takes_no_image_twice_and_all_have_their_turn(images, batch):
    order = BatchOrder(images, batch)
    epochs = [order.passes(epoch) for epoch in range(12)]
    for epoch in epochs:
        assert epoch.shape == (order.steps, batch) == (images // batch, batch)
        assert len(np.unique(epoch)) == epoch.size
    assert set(np.concatenate(epochs).ravel()) == set(range(images))  # though a batch must be full
    others = [epochs[1], BatchOrder(images, batch, seed=1).passes(0)]
    assert not any(np.array_equal(epochs[0], other) for other in others)


@pytest.mark.parametrize(("batch", "parts", "sizes"), [(50, 4, "48 or 52"), (3, 4, "4")])
def test_a_batch_that_cannot_be_shared_is_refused_with_sizes_that_can(batch, parts, sizes):
    for order in ({"share": Share(0, parts)}, {"accumulate": parts}):
        with pytest.raises(ValueError, match=f"batch_size {batch} .* needs e.g. {sizes}$"):
            BatchOrder(1000, batch, **order)
