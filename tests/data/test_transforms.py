"""From files to pixels: timm's evaluation transform exactly, room to move in, and reading ahead of the network."""

import threading
from time import sleep

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform

from trueshift.data import ImageFolder, Preparation, Prepared, Sample, Unreadable, read_ahead


def photo(width, height, seed=0):
    """Large areas with edges and a little noise."""
    random = np.random.default_rng(seed)
    areas = Image.fromarray(random.integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize((width, height))
    noisy = np.asarray(areas).astype(int) + random.integers(-20, 21, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def timms(preparation):
    return create_transform(
        input_size=(3, *preparation.size),
        is_training=False,
        interpolation=preparation.interpolation,
        crop_pct=preparation.crop_pct,
        mean=preparation.mean,
        std=preparation.std,
        separate=False,
    )


def assert_same_as_timm(preparation, picture):
    ours = preparation.normalise(preparation.canvas(picture))
    assert ours.shape == (3, *preparation.size)
    assert (ours - timms(preparation)(picture)).abs().max() <= 1e-6, picture.size


@pytest.mark.parametrize("size", [224, 96, 32])
@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 1.0])
def test_the_pixels_are_those_of_timm(size, crop_pct):
    preparation = Preparation((size, size), crop_pct)
    for width, height in [
        (320, 240),
        (240, 320),
        (333, 250),
        (200, 31),
        (32, 32),
        (256, 256),
        (size, size),
        (257, 256),
    ]:
        assert_same_as_timm(preparation, photo(width, height))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_the_pixels_are_those_of_timm_at_many_sizes(interpolation):
    # sides and crops are rounded, and a pixel to one side would go unnoticed at one size
    random = np.random.default_rng(0)
    preparation = Preparation((24, 24), 0.875, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), interpolation)
    for width, height in random.integers(5, 120, (60, 2)).tolist():
        assert_same_as_timm(preparation, photo(width, height))


def test_a_picture_of_the_right_size_is_left_alone():
    picture = photo(32, 32)
    canvas = Preparation((32, 32), 1.0).canvas(picture)
    assert np.array_equal(canvas.permute(1, 2, 0), np.asarray(picture))


def test_an_input_that_is_not_square_cuts_but_does_not_distort():
    preparation = Preparation((20, 40), 1.0, interpolation="nearest")
    stripes = np.zeros((40, 40, 3), np.uint8)
    stripes[10:30] = 200
    canvas = preparation.canvas(Image.fromarray(stripes))
    assert canvas.shape == (3, 20, 40)
    assert (canvas == 200).all()


def test_normalising_undoes_mean_and_deviation():
    preparation = Preparation((1, 1), 1.0, (0.1, 0.2, 0.3), (0.5, 0.25, 2.0))
    canvas = torch.tensor([0, 255, 51], dtype=torch.uint8).view(3, 1, 1)
    assert preparation.normalise(canvas).flatten().tolist() == pytest.approx([-0.2, 3.2, -0.05])


# margins


@pytest.mark.parametrize("margin", [(0, 0), (1, 1), (2, 3), (3, 0), (0, 4), (4, 4)])
def test_a_margin_adds_pixels_around_the_same_middle(margin):
    preparation, (rows, columns) = Preparation((56, 56), 0.875), margin
    # resized to 64 x 64 up to 69 x 64: even and odd differences to 56
    for picture in [photo(100, 100), *(photo(100 + extra, 100) for extra in range(1, 9))]:
        for turned in (picture, picture.transpose(Image.Transpose.TRANSPOSE)):
            canvas = preparation.canvas(turned, margin)
            assert canvas.shape == (3, 56 + 2 * rows, 56 + 2 * columns)
            middle = canvas[:, rows : rows + 56, columns : columns + 56]
            assert torch.equal(middle, preparation.canvas(turned))


@pytest.mark.parametrize("crop_pct", [1.0, 0.95])
@pytest.mark.parametrize(("width", "height"), [(100, 100), (150, 100), (100, 150), (20, 30)])
def test_without_room_the_picture_grows_until_the_margin_is_filled(crop_pct, width, height):
    picture = photo(width, height)
    canvas = Preparation((56, 56), crop_pct).canvas(picture, (8, 8))
    assert canvas.shape == (3, 72, 72)
    # the very pixels of a larger network that keeps all of the shorter side
    assert torch.equal(canvas, Preparation((72, 72), 1.0).canvas(picture))


@pytest.mark.parametrize("crop_pct", [0.8, 0.875, 0.9, 1.0])
def test_with_room_no_picture_grows_for_its_margin(crop_pct):
    preparation = Preparation((56, 56), crop_pct)
    assert preparation.has_room((4, 4)) == (crop_pct <= 0.875)
    assert preparation.has_room((0, 0))
    for width, height in ((70, 70), (90, 60), (60, 90), (33, 300)):
        picture = photo(width, height)
        middle = preparation.canvas(picture, (4, 4))[:, 4:-4, 4:-4]
        assert torch.equal(middle, preparation.canvas(picture)) == preparation.has_room((4, 4))


def test_a_margin_may_be_wider_than_high():
    canvas = Preparation((32, 32), 1.0).canvas(photo(32, 32), (0, 6))
    assert canvas.shape == (3, 32, 44)


# settings


def test_settings_come_from_timms_configuration():
    model = timm.create_model("vit_tiny_patch16_384", pretrained=False)
    preparation = Preparation.from_config(model.pretrained_cfg)
    assert preparation == Preparation((384, 384), 1.0, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic")
    assert Preparation.from_config({}) == Preparation()
    assert Preparation.from_config({"interpolation": "bilinear"}).interpolation == "bilinear"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": (0, 224)}, "needs positive sizes"),
        ({"crop_pct": 0.0}, "0 < crop_pct <= 1"),
        ({"crop_pct": 1.2}, "0 < crop_pct <= 1"),
        ({"mean": (0.5,)}, "needs three values each"),
        ({"std": (0.5, 0.5)}, "needs three values each"),
        ({"std": (0.5, 0.5, 0.0)}, "std above 0"),
        ({"interpolation": "cubic"}, "'cubic': needs one of nearest, bilinear, bicubic, lanczos"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Preparation(**settings)


# reading ahead

TINY = Preparation((4, 4), 1.0)


class Counted:
    """Numbered pictures that remember who was asked for, and wait where they are told to."""

    title = "counted"
    classes = None

    def __init__(self, holds=()):
        self.asked, self.holds, self.go, self.threads = [], set(holds), threading.Event(), set()

    def __len__(self):
        return 10**9

    def name(self, index):
        return f"number {index}"

    def __getitem__(self, index):
        self.asked.append(index)
        self.threads.add(threading.current_thread())
        if index in self.holds:
            assert self.go.wait(20)
        return Sample(Image.new("RGB", (4, 4), (index % 256, 0, 0)), self.name(index), index)


def wait_for(condition):
    for _ in range(400):
        if condition():
            return
        sleep(0.02)
    raise AssertionError("it never came true")


def test_pictures_come_in_order_each_once():
    source = Counted(holds={3})
    release = threading.Timer(0.1, source.go.set)  # number 3 is ready long after those behind it
    release.start()
    indices = [5, 3, 9, 0, 7, 3, *range(40)]
    read = list(read_ahead(source, indices, TINY, workers=4, ahead=8))
    release.join()
    assert [picture.index for picture in read] == indices
    assert sorted(source.asked) == sorted(indices)
    for picture in read:
        assert isinstance(picture, Prepared)
        assert (picture.name, picture.label) == (f"number {picture.index}", picture.index)
        assert (picture.canvas[0] == picture.index).all()


def test_the_margin_is_passed_on():
    (picture,) = read_ahead(Counted(), [1], TINY, margin=(1, 2))
    assert picture.canvas.shape == (3, 6, 8)


@pytest.mark.parametrize(("workers", "ahead"), [(1, 0), (1, 4), (4, 4), (4, 1), (2, 16)])
def test_never_more_than_a_few_are_read_before_their_use(workers, ahead):
    source = Counted()
    reading = read_ahead(source, range(10**9), TINY, workers=workers, ahead=ahead)  # all at once would hang
    for used in range(30):
        assert next(reading).index == used
        assert len(source.asked) <= used + 1 + ahead
    reading.close()


def test_it_does_read_ahead():
    source = Counted(holds={0})
    reading = read_ahead(source, range(20), TINY, workers=2, ahead=6)
    first = []
    user = threading.Thread(target=lambda: first.append(next(reading)))
    user.start()
    wait_for(lambda: sorted(source.asked) == list(range(7)))  # those behind number 0, which is held
    assert not first
    source.go.set()
    user.join(20)
    assert first[0].index == 0
    reading.close()


def test_closing_early_reads_no_more():
    source = Counted(holds=range(1, 100))
    reading = read_ahead(source, range(100), TINY, workers=2, ahead=20)
    assert next(reading).index == 0
    wait_for(lambda: len(source.asked) == 3)  # both workers are held
    reading.close()
    source.go.set()
    for thread in source.threads:
        thread.join(20)
        assert not thread.is_alive()
    assert sorted(source.asked) == [0, 1, 2]


def test_a_picture_that_cannot_be_read_is_told_and_the_rest_is_read(tmp_path):
    for name in ("a", "c", "e", "f"):
        photo(60, 40).save(tmp_path / f"{name}.jpg")
    (tmp_path / "b.jpg").write_bytes(b"no image at all")
    (tmp_path / "d.jpg").write_bytes((tmp_path / "c.jpg").read_bytes()[:700])
    (tmp_path / "e.jpg").write_bytes(b"")
    read = list(read_ahead(ImageFolder(tmp_path), range(6), TINY))
    assert [(type(picture), picture.index, picture.name) for picture in read] == [
        (Prepared, 0, "a.jpg"),
        (Unreadable, 1, "b.jpg"),
        (Prepared, 2, "c.jpg"),
        (Unreadable, 3, "d.jpg"),
        (Unreadable, 4, "e.jpg"),
        (Prepared, 5, "f.jpg"),
    ]
    assert read[1].reason.startswith("UnidentifiedImageError: cannot identify image file")
    assert read[3].reason.startswith("OSError: ")
    assert "truncated" in read[3].reason or "broken" in read[3].reason


def test_a_file_that_went_away_is_told(tmp_path):
    photo(8, 8).save(tmp_path / "a.png")
    source = ImageFolder(tmp_path)
    (tmp_path / "a.png").unlink()
    (told,) = read_ahead(source, [0], TINY)
    assert told.name == "a.png"
    assert told.reason.startswith("FileNotFoundError: ")


def test_nothing_to_read_is_nothing_read():
    assert list(read_ahead(Counted(), [], TINY)) == []


def test_processes_read_what_threads_read(tmp_path):
    for index in range(40):
        Image.new("RGB", (6, 5), (index, 0, 0)).save(tmp_path / f"{index:02d}.png")
    (tmp_path / "07.png").write_bytes(b"torn")
    source = ImageFolder(tmp_path)
    here = list(read_ahead(source, range(40), TINY, margin=(1, 0)))
    there = list(read_ahead(source, range(40), TINY, margin=(1, 0), workers=2, for_gpu=True))
    for one, other in zip(here, there, strict=True):
        assert (one.index, one.name) == (other.index, other.name)
        if isinstance(one, Unreadable):
            assert one == other
        else:
            assert one.label == other.label
            assert torch.equal(one.canvas, other.canvas)
    assert sum(isinstance(one, Unreadable) for one in here) == 1
