"""Reading ahead of the network: in order, never too far, and nothing lost."""

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic, sleep

import pytest
import torch
from PIL import Image
from torch.utils.data import get_worker_info

from trueshift.data import ImageFolder, Preparation, Prepared, Sample, Unreadable, read_ahead

TINY = Preparation((4, 4), 1.0)


class Counted:
    """Numbered images that record which were asked for, and wait where they should."""

    title, classes = "counted", None

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
    end = monotonic() + 20
    while not condition():
        assert monotonic() < end, "it never came true"
        sleep(0.02)


def test_images_come_in_order_each_once():
    source = Counted(holds={3})
    release = threading.Timer(0.1, source.go.set)  # number 3 is ready long after those behind it
    release.start()
    indices = [5, 3, 9, 0, 7, 3, *range(40)]
    read = list(read_ahead(source, indices, TINY, workers=4, ahead=8))
    release.join()
    assert sorted(source.asked) == sorted(indices)
    for index, image in zip(indices, read, strict=True):
        assert isinstance(image, Prepared)
        assert (image.index, image.name, image.label) == (index, f"number {index}", index)
        assert (image.canvas[0] == index).all()


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
    with ThreadPoolExecutor(1) as user:
        first = user.submit(next, reading)
        wait_for(lambda: sorted(source.asked) == list(range(7)))  # those behind number 0, which is held
        assert not first.done()
        source.go.set()
        assert first.result(20).index == 0
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


def test_an_image_that_cannot_be_read_is_reported_and_the_rest_is_read(tmp_path):
    for name in ("a", "c", "e", "f"):
        Image.effect_noise((60, 40), 50).save(tmp_path / f"{name}.jpg")
    (tmp_path / "b.jpg").write_bytes(b"no image at all")
    (tmp_path / "d.jpg").write_bytes((tmp_path / "c.jpg").read_bytes()[:700])
    (tmp_path / "e.jpg").write_bytes(b"")
    source = ImageFolder(tmp_path)
    (tmp_path / "f.jpg").unlink()
    read = list(read_ahead(source, range(6), TINY))
    assert [(image.index, image.name) for image in read] == [(at, f"{name}.jpg") for at, name in enumerate("abcdef")]
    assert [image.index for image in read if isinstance(image, Unreadable)] == [1, 3, 4, 5]
    assert read[1].reason.startswith("UnidentifiedImageError: cannot identify image file")
    assert read[3].reason.startswith("OSError: ")
    assert read[5].reason.startswith("FileNotFoundError: ")
    assert list(read_ahead(source, [], TINY)) == []


class Signalled(ImageFolder):
    """A process that reads from it is told to stop, as a group of processes is by Ctrl-C."""

    def __getitem__(self, index):
        if get_worker_info():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        return super().__getitem__(index)


def test_processes_read_what_threads_read(tmp_path):
    for index in range(40):
        Image.new("RGB", (6, 5), (index, 0, 0)).save(tmp_path / f"{index:02d}.png")
    (tmp_path / "07.png").write_bytes(b"torn")
    read = partial(read_ahead, Signalled(tmp_path), range(40), TINY, margin=(1, 0))
    for index, (one, other) in enumerate(zip(read(), read(workers=2, for_gpu=True), strict=True)):
        assert (one.index, one.name) == (other.index, other.name)
        if index == 7:
            assert isinstance(one, Unreadable)
            assert one == other
        else:
            assert one.label == other.label
            assert one.canvas.shape == (3, 6, 4)
            assert torch.equal(one.canvas, other.canvas)


FAILS = """
from trueshift.data import EmbeddedSample, Preparation, read_ahead
from trueshift.train.config import AugmentConfig
from trueshift.train.data.augment import ClassificationTransform
from trueshift.train.data.loader import AugmentedSamples, LoaderFeed
from trueshift.train.data.sampler import BatchOrder

images = AugmentedSamples(EmbeddedSample(), ClassificationTransform(Preparation((8, 8)), AugmentConfig(), 0))
batches = LoaderFeed(images, BatchOrder(64, 4), "cpu", workers=1).epoch(0)
prepared = read_ahead(EmbeddedSample(), range(64), Preparation((8, 8)), workers=1, for_gpu=True)
raise SystemExit(f"{len(next(batches).images)} images, then number {next(prepared).index}")
"""


def test_a_program_that_fails_ends_while_its_processes_still_read():
    """Python waits at exit for processes that it cannot end."""
    done = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=300, check=False)
    *before, last = done.stderr.splitlines()  # libraries may have said something of this CPU
    assert (done.returncode, last) == (1, "4 images, then number 0")
    assert not any(word in line for word in ("Traceback", "Exception", "DataLoader") for line in before)
