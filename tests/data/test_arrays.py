"""Small images in memory: the sample in the package, CIFAR's official files and arrays."""

import hashlib
import pickle
import tarfile
import threading
import zlib
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import CIFAR10, CIFAR100

from trueshift.data import CifarFiles, EmbeddedSample, Source, download, open_data


def random_images(count, side=8, classes=3, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, side, side, 3), dtype=np.uint8), random.integers(0, classes, count)


def assert_holds(source, images, classes):
    pixels, labels = images
    assert isinstance(source, Source)
    assert (source.pixels.dtype, source.labels.dtype) == (np.uint8, np.int64)
    assert np.array_equal(source.pixels, pixels)
    assert source.labels.tolist() == list(labels)
    assert source.classes == classes
    for index in range(len(source)):
        sample = source[index]
        assert sample.name == source.name(index)
        assert sample.image.mode == "RGB"
        assert np.array_equal(np.asarray(sample.image), pixels[index])
        assert (type(sample.target), sample.target) == (int, labels[index])
    with pytest.raises(IndexError):
        source[len(source)]
    assert np.array_equal(pickle.loads(pickle.dumps(source)).pixels, pixels)


# the sample


def test_the_sample_has_40_images_of_each_class():
    sample = EmbeddedSample()
    assert_holds(sample, (sample.pixels, sample.labels), sample.classes)
    assert Counter(sample.labels.tolist()) == dict.fromkeys(range(10), 40)
    assert len({pixels.tobytes() for pixels in sample.pixels}) == 400
    assert len({sample.name(index) for index in range(400)}) == 400
    # the first, one below it in the mosaic, and the last
    for index, name, checksum in (
        (0, "cat 0", 2605481589),
        (20, "horse 20", 3072748318),
        (399, "automobile 493", 3994927269),
    ):
        assert (sample.name(index), sample.classes[sample[index].target]) == (name, name.split()[0])
        assert zlib.crc32(np.asarray(sample[index].image).tobytes()) == checksum


# CIFAR's official files


@pytest.fixture
def write_cifar(monkeypatch):
    """Write small files as they are published, one per split, and let torchvision expect their checksums."""

    def write(root, kind):
        folder, classes = root / kind.base_folder, 100 if kind is CIFAR100 else 10
        folder.mkdir(parents=True)
        names = [f"class {label}" for label in range(classes)]

        def dump(file, content):
            data = pickle.dumps(content)
            (folder / file).write_bytes(data)
            return hashlib.md5(data).hexdigest()

        written = {}
        for seed, split in enumerate(("train", "test")):
            pixels, labels = written[split] = random_images(10, 32, classes, seed)
            rows = {"data": pixels.transpose(0, 3, 1, 2).reshape(-1, 3072), "labels": labels.tolist()}
            monkeypatch.setattr(kind, f"{split}_list", [[split, dump(split, rows)]])
        meta = {"filename": "meta", "key": "names", "md5": dump("meta", {"names": names})}
        monkeypatch.setattr(kind, "meta", meta)
        return written, names

    return write


@pytest.mark.parametrize(("kind", "above"), [(CIFAR10, True), (CIFAR100, False)])
def test_cifar_is_read(tmp_path, write_cifar, kind, above):
    written, names = write_cifar(tmp_path, kind)
    for split in ("train", "test"):
        source = open_data(tmp_path if above else tmp_path / kind.base_folder, split)
        assert isinstance(source, CifarFiles)
        assert source.title == f"CIFAR-{len(names)} {split}"
        assert_holds(source, written[split], names)
    assert open_data(tmp_path, "training").title == f"CIFAR-{len(names)} train"
    with pytest.raises(ValueError, match="needs split 'test', or 'train'"):
        open_data(tmp_path, "val")


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(file.read_bytes()[:-1]), Path.unlink])
def test_damaged_cifar_files_are_reported(tmp_path, write_cifar, damage):
    write_cifar(tmp_path, CIFAR10)
    damage(tmp_path / CIFAR10.base_folder / "test")
    with pytest.raises(ValueError, match=r"cifar-10-batches-py .*copy them again"):
        open_data(tmp_path)


# downloads


@pytest.fixture
def published(tmp_path, write_cifar, monkeypatch):
    """A small CIFAR-10 on a server."""
    write_cifar(tmp_path / "server", CIFAR10)
    archive = tmp_path / "server" / CIFAR10.filename
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "server" / CIFAR10.base_folder, CIFAR10.base_folder)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=archive.parent)) as server:
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{archive.name}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield archive
        server.shutdown()
        thread.join()


def test_a_data_set_is_downloaded_once_and_opens(tmp_path, published):
    folder = download("cifar10", tmp_path / "new")
    assert folder == tmp_path / "new" / "cifar-10-batches-py"
    assert len(open_data(folder, "train")) == len(open_data(tmp_path / "new", "test")) == 10
    (tmp_path / "by hand").mkdir()
    published.rename(tmp_path / "by hand" / published.name)
    assert download("cifar10", tmp_path / "new") == folder
    assert download("cifar10", tmp_path / "by hand").is_dir()


def test_a_download_that_fails_is_reported(tmp_path, published):
    published.write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"gave a file with another checksum .*: try again"):
        download("cifar10", tmp_path / "new")
    published.unlink()
    message = r"cifar-10-python\.tar\.gz cannot be fetched .*: try again, or put the file at .*\.tar\.gz by hand"
    with pytest.raises(OSError, match=message):
        download("cifar10", tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "folder", "error", "message"),
    [
        ("imagenet", "", ValueError, r"at https://image-net\.org"),
        ("ade20k", "", ValueError, r"at https://ade20k"),
        ("mnist", "", ValueError, "needs one of cifar10, cifar100"),
        ("cifar10", "file", NotADirectoryError, "needs a folder to write to"),
    ],
)
def test_what_cannot_be_downloaded_is_refused(tmp_path, name, folder, error, message):
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=message):
        download(name, tmp_path / folder)


# arrays


def write_npz(path, **changes):
    train, test = random_images(6, classes=7), random_images(4, seed=1)
    arrays = {"x_train": train[0], "y_train": train[1][:, None], "x_test": test[0], "y_test": test[1]}
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return train, test


@pytest.mark.parametrize("folder", [True, False])
def test_arrays_are_read(tmp_path, folder):
    train, test = write_npz(tmp_path / "a.npz", x_other=np.zeros(3))
    where = tmp_path if folder else tmp_path / "a.npz"
    names = [str(label) for label in range(train[1].max() + 1)]  # the same in both
    assert_holds(open_data(where, "train"), train, names)
    assert_holds(open_data(where, "test"), test, names)
    assert open_data(tmp_path / "a.npz").title == "a test"
    write_npz(tmp_path / "a.npz", x_train=None, y_train=None)
    assert len(open_data(where, "test")) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None}, "needs x_test and y_test"),
        ({"x_test": np.zeros((4, 8, 8), np.uint8)}, r"shape \(4, 8, 8\) and type uint8: needs \[N, S, S, 3\]"),
        ({"x_test": np.zeros((4, 8, 9, 3), np.uint8)}, r"needs \[N, S, S, 3\] of uint8"),
        ({"x_test": np.zeros((4, 8, 8, 3))}, "type float64: needs"),
        ({"y_test": np.zeros(3, int)}, "3 labels of type int64 for 4 images: needs a whole number"),
        ({"y_test": np.zeros(4)}, "labels of type float64"),
        ({"y_test": np.array([0, 1, -1, 0])}, "needs a whole number, 0 or more, for each"),
        ({"x_test": np.zeros((0, 8, 8, 3), np.uint8), "y_test": np.zeros(0, int)}, "has 0 labels"),
        ({"y_test": np.array([0, 1, None, 0], object)}, "is not a whole npz file of plain arrays"),  # a pickle
    ],
)
def test_arrays_that_cannot_be_are_refused(tmp_path, changes, message):
    write_npz(tmp_path / "a.npz", **changes)
    with pytest.raises(ValueError, match=message):
        open_data(tmp_path / "a.npz")


@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: b"", lambda data: b"words" * 20])
def test_a_damaged_archive_is_named(tmp_path, damage):
    file = tmp_path / "a.npz"
    write_npz(file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"a\.npz is not a whole npz file .*: save it with np\.savez"):
        open_data(file)
