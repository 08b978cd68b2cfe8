"""Small images packed without loss: what is written comes back, and what does not fit is told."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
from PIL import Image

from trueshift.data import CompactArchive, EmbeddedSample, Sample, Source, write_archive
from trueshift.data import archive as archive_module


class Made:
    """Random images with labels."""

    title = "made"

    def __init__(self, count, side=8, classes=("ant", "bee", "golden cow"), seed=0):
        random = np.random.default_rng(seed)
        self.pixels = random.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        self.classes = list(classes)
        self.labels = random.integers(0, len(classes), count)

    def __len__(self):
        return len(self.labels)

    def name(self, index):
        return f"made {index}"

    def __getitem__(self, index):
        return Sample(Image.fromarray(self.pixels[index]), self.name(index), int(self.labels[index]))


def assert_same(read, written):
    assert isinstance(read, Source)
    assert (read.pixels.dtype, read.labels.dtype) == (np.uint8, np.int64)
    assert np.array_equal(read.pixels, written.pixels)
    assert np.array_equal(read.labels, written.labels)
    assert read.classes == written.classes


# round trips


@pytest.mark.parametrize("count", [1, 2, 7, 10, 97, 100, 101, 250])
def test_what_is_written_comes_back(tmp_path, monkeypatch, count):
    monkeypatch.setattr(archive_module, "_MOST_TILES", 64)  # several mosaics, of all forms
    train, test = Made(count), Made(5, seed=1)
    file = write_archive(tmp_path / "small.zip", {"train": train, "test": test})
    assert_same(CompactArchive(file, "train"), train)
    assert_same(CompactArchive(file, "test"), test)
    assert CompactArchive(file, "test").title == "small test"
    assert os.listdir(tmp_path) == ["small.zip"]


def test_pictures_have_names_and_labels(tmp_path):
    written = Made(4)
    source = CompactArchive(write_archive(tmp_path / "a.zip", {"test": written}))
    for index in range(4):
        picture = source[index]
        assert picture.name == source.name(index) == f"test {index}"
        assert picture.target == written.labels[index]
        assert np.array_equal(np.asarray(picture.image), written.pixels[index])
    with pytest.raises(IndexError):
        source[4]


def test_labels_of_many_classes_take_two_bytes(tmp_path):
    many = Made(300, 2, [f"class {number}" for number in range(1000)])
    assert many.labels.max() > 255
    file = write_archive(tmp_path / "a.zip", {"train": many})
    assert_same(CompactArchive(file, "train"), many)
    few = Made(300, 2, [str(number) for number in range(256)])
    assert_same(CompactArchive(write_archive(file, {"train": few}), "train"), few)
    with zipfile.ZipFile(file) as archive:
        assert sum(len(archive.read(name)) for name in archive.namelist() if name.endswith(".labels")) == 300


def test_a_single_class_keeps_its_name(tmp_path):
    one = Made(3, classes=["golden retriever"])
    assert_same(CompactArchive(write_archive(tmp_path / "a.zip", {"test": one})), one)


def test_the_sample_is_packed_and_comes_back(tmp_path):
    sample = EmbeddedSample()
    assert sample.labels.dtype == np.int64
    assert type(sample[0].target) is int
    assert_same(CompactArchive(write_archive(tmp_path / "a.zip", {"test": sample})), sample)


def test_the_same_pictures_give_the_same_file(tmp_path):
    first, second = (write_archive(tmp_path / name, {"test": Made(9)}).read_bytes() for name in ("a.zip", "b.zip"))
    assert first == second


@pytest.mark.parametrize("side", [1, 32, 163, 164, 500, 8192])
def test_mosaics_stay_within_what_webp_and_pillow_allow(side):
    for count in (1, 9_973, 25_000):
        grids = list(archive_module._grids(count, side))
        assert sum(rows * columns for rows, columns in grids) == count
        for rows, columns in grids:
            assert 1 <= rows * columns <= 10_000
            assert max(rows, columns) * side <= 16_383
            assert rows * columns * side**2 < Image.MAX_IMAGE_PIXELS


def test_a_source_travels_to_other_processes(tmp_path):
    source = CompactArchive(write_archive(tmp_path / "a.zip", {"test": Made(9)}))
    assert_same(pickle.loads(pickle.dumps(source)), Made(9))


# refused before anything is written


def changed(source, **changes):
    for name, value in changes.items():
        setattr(source, name, value)
    return source


class Unlabelled(Made):
    def __getitem__(self, index):
        return Sample(Image.new("RGB", (8, 8)), self.name(index), None)


class Oblong(Made):
    def __getitem__(self, index):
        return Sample(Image.new("RGB", (8, 8 - index)), self.name(index), 0)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({}, r"0 splits to .*: needs at least one"),
        ({"val": Made(2)}, "split 'val': needs 'test' or 'train'"),
        ({"test": Made(0)}, "made has 0 pictures"),
        ({"test": changed(Made(2), classes=None)}, "no classes: needs both"),
        ({"train": Made(2), "test": Made(2, classes=["a", "b"])}, "has other classes than the split before"),
        ({"test": changed(Made(2), classes=["a\nb", "c", "d"])}, "each name on one line"),
        ({"test": changed(Made(2), classes=["a", "b", ""])}, "each name on one line"),
        ({"test": changed(Made(2), labels=np.array([0, 3]))}, "made 1 has the label 3: needs 0 to 2"),
        ({"test": Unlabelled(2)}, "made 0 has the label None: needs 0 to 2"),
        ({"test": Oblong(2)}, "made 1 has 8 x 7 pixels: needs 8 x 8, as the first picture"),
        ({"train": Made(2), "test": Made(2, side=9)}, "made 0 has 9 x 9 pixels: needs 8 x 8"),
    ],
)
def test_what_cannot_be_packed_is_told_and_the_old_file_stays(tmp_path, splits, message):
    file = write_archive(tmp_path / "a.zip", {"test": Made(3)})
    with pytest.raises(ValueError, match=message):
        write_archive(file, splits)
    assert_same(CompactArchive(file), Made(3))
    assert os.listdir(tmp_path) == ["a.zip"]


def test_an_archive_is_called_zip(tmp_path):
    with pytest.raises(ValueError, match=r"a name ending in \.zip"):
        write_archive(tmp_path / "a.npz", {"test": Made(3)})


# reading what others have packed


def mosaic(pixels, columns, kind="PNG"):
    rows, side = len(pixels) // columns, pixels.shape[1]
    tiles = pixels.reshape(rows, columns, side, side, 3).swapaxes(1, 2).reshape(rows * side, columns * side, 3)
    file = io.BytesIO()
    Image.fromarray(tiles).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


def write_zip(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def batch(name, seed, count=6, kind="PNG"):
    made = Made(count, seed=seed)
    return {
        f"{name}.{kind.lower()}": mosaic(made.pixels, 3, kind),
        f"{name}.labels": bytes(made.labels.tolist()),
        "classes.txt": b"ant\r\nbee\r\ngolden cow\r\n",
    }


def test_a_folder_of_zips_is_read_together_in_natural_order(tmp_path):
    write_zip(tmp_path / "b.zip", batch("data_batch_2", 2) | batch("test_batch", 7, kind="WEBP"))
    write_zip(tmp_path / "a.zip", batch("data_batch_10", 10) | batch("data_batch_1", 1, kind="WEBP"))
    train, test = CompactArchive(tmp_path, "train"), CompactArchive(tmp_path, "test")
    assert np.array_equal(train.pixels, np.concatenate([Made(6, seed=seed).pixels for seed in (1, 2, 10)]))
    assert np.array_equal(train.labels, np.concatenate([Made(6, seed=seed).labels for seed in (1, 2, 10)]))
    assert train.classes == ["ant", "bee", "golden cow"]
    assert_same(test, Made(6, seed=7))


def test_names_that_start_with_val_are_for_testing(tmp_path):
    file = write_zip(tmp_path / "a.zip", batch("part/val_1", 1) | batch("part/latest", 2))
    assert_same(CompactArchive(file, "test"), Made(6, seed=1))
    assert_same(CompactArchive(file, "train"), Made(6, seed=2))


def test_classes_may_stand_in_one_line(tmp_path):
    file = write_zip(tmp_path / "a.zip", batch("test", 1) | {"classes.txt": b"ant bee cow"})
    assert CompactArchive(file).classes == ["ant", "bee", "cow"]


def test_notes_of_a_file_system_are_passed_over(tmp_path):
    file = write_zip(tmp_path / "a.zip", batch("test", 1) | {"__MACOSX/._test.png": b"note", "about.txt": b"words"})
    assert_same(CompactArchive(file), Made(6, seed=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test.labels": bytes(5)}, r"a\.zip/test\.png has 24 x 16 pixels for 5 bytes of labels: needs as many square"),
        ({"test.labels": bytes(7)}, "for 7 bytes of labels"),
        ({"test.labels": b""}, "for 0 bytes of labels"),
        ({"test.labels": bytes([0, 1, 2, 3, 0, 0])}, r"has labels up to 3: needs 0 to 2, as in classes\.txt"),
        ({"test.labels": None}, r"has only half of test: needs NAME\.webp or NAME\.png with NAME\.labels"),
        ({"test.png": None}, "has only half of test"),
        ({"test.png": None, "test.labels": None}, "has no mosaics: needs"),
        ({"test.webp": b""}, r"has test\.png and test\.webp: needs one for each name"),
        ({"classes.txt": None}, r"has no classes\.txt: needs one, with a name per line"),
        ({"test.png": b"no image"}, r"test\.png is not an image that Pillow knows"),
        ({"test.png": mosaic(Made(6, seed=1).pixels, 3)[:300]}, "cannot be read as a zip of mosaics .*: copy it again"),
        (
            {"test_2.png": mosaic(Made(4, 5).pixels, 2), "test_2.labels": bytes(4)},
            "has tiles of 5, 8 pixels: needs one size",
        ),
    ],
)
def test_archives_that_cannot_be_are_refused(tmp_path, changes, message):
    members = {name: data for name, data in (batch("test", 1) | changes).items() if data is not None}
    file = write_zip(tmp_path / "a.zip", members)
    with pytest.raises(ValueError, match=message):
        CompactArchive(file)


def test_zips_that_do_not_belong_together_are_refused(tmp_path):
    write_zip(tmp_path / "a.zip", batch("test_1", 1))
    write_zip(tmp_path / "b.zip", batch("test_2", 2) | {"classes.txt": b"x y z"})
    with pytest.raises(ValueError, match=r"b\.zip has other classes than .*a\.zip: needs the same classes\.txt"):
        CompactArchive(tmp_path)
    write_zip(tmp_path / "b.zip", batch("test_1", 1))
    with pytest.raises(ValueError, match=r"a\.zip and .*b\.zip both have test_1: needs each once"):
        CompactArchive(tmp_path)


def test_a_split_that_is_not_there_is_told(tmp_path):
    file = write_zip(tmp_path / "a.zip", batch("test", 1))
    with pytest.raises(ValueError, match="has no train mosaics: needs names starting with test or val for test"):
        CompactArchive(file, "train")
    with pytest.raises(ValueError, match="split 'val': needs 'test' or 'train'"):
        CompactArchive(file, "val")


def test_what_is_no_archive_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere.zip"):
        with pytest.raises(FileNotFoundError, match=r"is no archive: needs a \.zip, a folder of them, or an \.npz"):
            CompactArchive(path)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-40], lambda data: b"", lambda data: data.replace(b"IDAT", b"IDAX", 1)]
)
def test_a_damaged_zip_is_named(tmp_path, damage):
    file = write_zip(tmp_path / "a.zip", batch("test", 1))
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"a\.zip cannot be read as a zip of mosaics .*: copy it again"):
        CompactArchive(file)


# npz


def write_npz(path, **changes):
    train, test = Made(6, classes="abcdefg"), Made(4, seed=1, classes="abc")
    arrays = {"x_train": train.pixels, "y_train": train.labels[:, None], "x_test": test.pixels, "y_test": test.labels}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    np.savez(path, **arrays)
    return train, test


def test_arrays_are_read(tmp_path):
    train, test = write_npz(tmp_path / "a.npz", x_other=np.zeros(3))
    names = [str(label) for label in range(train.labels.max() + 1)]  # the same in both
    assert_same(CompactArchive(tmp_path / "a.npz", "train"), changed(train, classes=names))
    assert_same(CompactArchive(tmp_path / "a.npz", "test"), changed(test, classes=names))
    write_npz(tmp_path / "b.npz", x_train=None, y_train=None)
    assert len(CompactArchive(tmp_path / "b.npz", "test")) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None}, "has no x_test: needs x_test and y_test"),
        ({"x_test": np.zeros((4, 8, 8), np.uint8)}, "grey images with their grey in all three colours"),
        ({"x_test": np.zeros((4, 8, 8, 1), np.uint8)}, r"shape \(4, 8, 8, 1\) and type uint8: needs \[N, S, S, 3\]"),
        ({"x_test": np.zeros((4, 8, 9, 3), np.uint8)}, r"needs \[N, S, S, 3\] of uint8"),
        ({"x_test": np.zeros((4, 3, 8, 8), np.uint8)}, r"needs \[N, S, S, 3\] of uint8"),
        ({"x_test": np.zeros((4, 8, 8, 3))}, "type float64: needs"),
        ({"y_test": np.zeros(3, int)}, "has 3 labels of type int64 for 4 images: needs a whole number"),
        ({"y_test": np.zeros(4)}, "labels of type float64"),
        ({"y_test": np.array([0, 1, -1, 0])}, "needs a whole number, 0 or more, for each"),
        ({"x_test": np.zeros((0, 8, 8, 3), np.uint8), "y_test": np.zeros(0, int)}, "has 0 labels"),
        ({"y_test": np.array([0, 1, None, 0], object)}, "is not a whole npz file of plain arrays"),  # a pickle
    ],
)
def test_arrays_that_cannot_be_are_refused(tmp_path, changes, message):
    write_npz(tmp_path / "a.npz", **changes)
    with pytest.raises(ValueError, match=message):
        CompactArchive(tmp_path / "a.npz")


@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: b"", lambda data: b"words" * 20])
def test_a_damaged_npz_is_named(tmp_path, damage):
    write_npz(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(damage((tmp_path / "a.npz").read_bytes()))
    with pytest.raises(ValueError, match=r"a\.npz is not a whole npz file of plain arrays .*: save it with np\.savez"):
        CompactArchive(tmp_path / "a.npz")
    with pytest.raises(FileNotFoundError, match="is not there"):
        CompactArchive(tmp_path / "b.npz")
