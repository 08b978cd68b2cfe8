"""What a path leads to is recognised by what lies there."""

import numpy as np
import pytest
from PIL import Image

from trueshift.data import CifarFiles, CompactArchive, EmbeddedSample, ImageFolder, open_data, open_fields, open_scenes


def save(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (1, 2, 3)).save(folder / name)


def test_images_stay_images_whatever_lies_beside_them(tmp_path):
    save(tmp_path, "cat/1.png", "dog/2.png")
    for name in ("train.tar", "val.tar.gz", "train.zip", "metadata.parquet", "arrays.npz"):
        (tmp_path / name).write_bytes(b"")
    source = open_data(tmp_path)
    assert isinstance(source, ImageFolder)
    assert source.classes == ["cat", "dog"]


def write_images(folder, **sizes):
    save(folder, *(f"{split}/cat/{number}.png" for split, size in sizes.items() for number in range(size)))


def write_arrays(folder, **sizes):
    pixels = {f"x_{split}": np.zeros((size, 4, 4, 3), np.uint8) for split, size in sizes.items()}
    np.savez(folder / "set.npz", **pixels, **{f"y_{split}": np.zeros(size, int) for split, size in sizes.items()})


def write_fields(folder, **sizes):
    for split, size in sizes.items():
        np.save(folder / f"{split}.npy", np.zeros((1, size + 1, 1, 4, 4)))


def write_scenes(folder, **sizes):
    for kind in ("images", "masks"):
        save(folder / kind, *(f"{split}/{number}.png" for split, size in sizes.items() for number in range(size)))
    (folder / "classes.txt").write_text("sky")


@pytest.mark.parametrize(
    ("write", "opened"),
    [(write_images, open_data), (write_arrays, open_data), (write_fields, open_fields), (write_scenes, open_scenes)],
)
@pytest.mark.parametrize(
    ("train", "val", "test"),
    [("train", "val", "test"), ("training", "valid", "testing"), ("train", "validation", "test")],
)
def test_all_kinds_of_data_know_the_same_names_of_splits(tmp_path, write, opened, train, val, test):
    """In files, and where a split is asked for; shards and the Hub have their own test."""
    write(tmp_path, **{train: 3, val: 2})
    known = ("train", "training", "val", "valid", "validation", "test", "testing")
    assert [len(opened(tmp_path, split)) for split in known] == [3, 3, 2, 2, 2, 2, 2]
    write(tmp_path, **{train: 3, val: 2, test: 1})
    assert [len(opened(tmp_path, split)) for split in known] == [3, 3, 2, 2, 2, 1, 1]
    with pytest.raises(ValueError, match="split 'all': needs one of train, training, val, valid, validation, test, "):
        opened(tmp_path, "all")


def test_a_folder_for_each_split(tmp_path):
    save(tmp_path / "set", "train/cat/1.png", "train/dog/2.png", "val/cat/1.png", "test/cat/4.png", "test/dog/5.png")
    save(tmp_path / "set", "train/.ipynb_checkpoints/1.png")  # hidden
    assert [open_data(tmp_path / "set", split).title for split in ("train", "test")] == ["set train", "set test"]
    assert open_data(tmp_path / "set", "test").classes == ["cat", "dog"]
    save(tmp_path, "train/cat/1.png", "test/cat/2.png")
    with pytest.raises(ValueError, match="has no split 'val': needs a folder val or valid or validation"):
        open_data(tmp_path, "val")  # no test stands in for it


@pytest.mark.parametrize("names", [("train/1.png", "other/2.png"), ("test/1.png", "val/2.png"), ("train/1.png",)])
def test_other_folders_are_classes(tmp_path, names):
    save(tmp_path, *names)
    for split in ("train", "test"):
        assert open_data(tmp_path, split).classes == sorted(name.split("/")[0] for name in names)


def test_classes_of_two_splits_agree_or_the_images_to_measure_on_have_none(tmp_path):
    save(tmp_path, "train/cat/1.png", "train/dog/2.png", "val/dog/3.png", "test/1.png")
    (tmp_path / "val" / "cat").mkdir()  # empty, so that dog would be number 0
    with pytest.raises(ValueError, match=r"train and .*val differ in the class cat: needs the same folders in both"):
        open_data(tmp_path, "val")
    source = open_data(tmp_path, "test")
    assert (source.classes, source[0].target) == (None, None)


def test_what_comes_with_the_package_is_opened_by_its_name():
    assert isinstance(open_data(), EmbeddedSample)
    source = open_data("sample-photos")
    assert (source.title, source.classes, len(source)) == ("6 photographs", None, 6)
    assert all(min(source[index].image.size) >= 224 for index in range(6))


@pytest.mark.parametrize(
    ("opened", "where", "split", "error", "message"),
    [
        (open_data, "nowhere", "test", FileNotFoundError, "needs 'sample', 'sample-photos', a folder of"),
        (open_data, "a.txt", "test", NotADirectoryError, "needs a folder of images, or one image"),
        (open_data, "texts", "test", ValueError, r"has no images: needs files ending in \.jpg"),
        (CifarFiles, "texts", "test", FileNotFoundError, "needs cifar-10-batches-py or cifar-100-python"),
        (CompactArchive, "a.txt", "test", FileNotFoundError, r"needs an \.npz, or a folder with one"),
        (open_fields, "nowhere", "train", FileNotFoundError, "there are no fields at"),
        (open_fields, "texts", "train", FileNotFoundError, r"needs train\.npy"),
        (open_fields, "a.txt", "train", ValueError, r"needs one of \.npy"),
        (open_fields, "many.npz", "train", ValueError, "holds a, b: needs one array, or one called train"),
        (open_scenes, "nowhere", "test", NotADirectoryError, "needs one; unpack archives first"),
        (open_scenes, "a.txt", "test", NotADirectoryError, "needs one; unpack archives first"),
        (open_scenes, "cats", "test", ValueError, "in no known layout .*: needs images/training with annotations/tr"),
        (open_scenes, "camvid", "test", ValueError, "camvid has train, .*: split 'test' needs one of test, testing"),
    ],
)
def test_what_is_not_there_is_reported(tmp_path, opened, where, split, error, message):
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "texts/a.txt"):
        (tmp_path / name).write_text("no image")
    np.savez(tmp_path / "many.npz", a=np.zeros(3), b=np.zeros(3))
    save(tmp_path, "cats/cat/1.png", "camvid/train/1.png", "camvid/trainannot/1.png")
    with pytest.raises(error, match=message):
        opened(tmp_path / where, split)
