"""What a path leads to is recognised by what lies there."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from trueshift.data import (
    CompactArchive,
    EmbeddedSample,
    ImageFolder,
    ParquetImages,
    TarShards,
    open_data,
    write_archive,
)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TRUESHIFT_CACHE", str(tmp_path_factory.mktemp("cache")))


def picture():
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (1, 2, 3)).save(file, "PNG")
    return file.getvalue()


def save(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture())


def write_tar(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("a.png")
        member.size = len(picture())
        archive.addfile(member, io.BytesIO(picture()))


def opened(path, split="test"):
    source = open_data(path, split)
    assert source[0].name == source.name(0)
    return type(source), source.title


def test_tar_shards(tmp_path):
    write_tar(tmp_path / "flat" / "train-0.tar")
    write_tar(tmp_path / "flat" / "val-0.tar")
    write_tar(tmp_path / "deep" / "train" / "0.tar")
    write_tar(tmp_path / "deep" / "test" / "0.tar")
    assert opened(tmp_path / "flat") == (TarShards, "flat val")
    assert opened(str(tmp_path / "flat"), "train") == (TarShards, "flat train")
    assert opened(tmp_path / "deep") == (TarShards, "deep test")
    assert opened(tmp_path / "deep", "train") == (TarShards, "deep train")
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "train.tar.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="is compressed"):
        open_data(tmp_path / "packed")


@pytest.mark.parametrize("inside", ["", "data"])
def test_parquet_files(tmp_path, inside):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"image": [picture()], "label": [0]})
    (tmp_path / "set" / inside).mkdir(parents=True)
    pq.write_table(table, tmp_path / "set" / inside / "train-00000-of-00001.parquet")
    pq.write_table(table, tmp_path / "set" / inside / "validation-00000-of-00001.parquet")
    assert opened(tmp_path / "set") == (ParquetImages, "set validation")
    assert opened(tmp_path / "set", "train") == (ParquetImages, "set train")


def test_archives(tmp_path):
    (tmp_path / "set").mkdir()
    file = write_archive(tmp_path / "set" / "small.zip", {"train": EmbeddedSample()})
    assert opened(file, "train") == (CompactArchive, "small train")
    assert opened(tmp_path / "set", "train") == (CompactArchive, "set train")
    np.savez(tmp_path / "arrays.npz", x_test=np.zeros((2, 4, 4, 3), np.uint8), y_test=np.zeros(2, int))
    assert opened(tmp_path / "arrays.npz") == (CompactArchive, "arrays test")


def test_images_stay_images_whatever_lies_beside_them(tmp_path):
    save(tmp_path, "cat/1.png", "dog/2.png")
    write_tar(tmp_path / "train.tar")
    for name in ("val.tar.gz", "train.zip", "metadata.parquet", "arrays.npz"):
        (tmp_path / name).write_bytes(b"")
    source = open_data(tmp_path)
    assert isinstance(source, ImageFolder)
    assert source.classes == ["cat", "dog"]


def test_without_anything_known_images_are_asked_for(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match="has no images: needs files ending in"):
        open_data(tmp_path)


# folders of images for each split


@pytest.mark.parametrize("word", ["test", "val", "validation"])
def test_a_folder_for_each_split(tmp_path, word):
    save(
        tmp_path / "set",
        "train/cat/1.png",
        "train/cat/2.png",
        "train/dog/3.png",
        f"{word}/cat/4.png",
        f"{word}/dog/5.png",
    )
    train, test = open_data(tmp_path / "set", "train"), open_data(tmp_path / "set", "test")
    assert (train.title, test.title) == ("set train", f"set {word}")
    assert train.classes == test.classes == ["cat", "dog"]
    assert (len(train), len(test)) == (3, 2)
    with pytest.raises(ValueError, match="split 'val': needs 'test' or 'train'"):
        open_data(tmp_path / "set", "val")


def test_test_comes_before_val_and_that_before_validation(tmp_path):
    save(tmp_path, "train/a/1.png", "validation/a/1.png", "val/a/1.png")
    assert open_data(tmp_path).title.endswith(" val")
    save(tmp_path, "test/a/1.png")
    assert open_data(tmp_path).title.endswith(" test")


@pytest.mark.parametrize("names", [("train/1.png", "other/2.png"), ("test/1.png", "val/2.png"), ("train/1.png",)])
def test_other_folders_are_classes(tmp_path, names):
    save(tmp_path, *names)
    for split in ("train", "test"):
        assert open_data(tmp_path, split).classes == sorted(name.split("/")[0] for name in names)


def test_classes_that_would_get_other_numbers_are_refused(tmp_path):
    save(tmp_path, "train/cat/1.png", "train/dog/2.png", "val/dog/3.png")
    (tmp_path / "val" / "cat").mkdir()  # empty, so that dog would be number 0
    assert open_data(tmp_path, "train").classes == ["cat", "dog"]
    with pytest.raises(ValueError, match=r"train and .*val differ in the class cat: needs the same folders in both"):
        open_data(tmp_path, "test")


def test_images_to_measure_on_may_have_no_classes(tmp_path):
    save(tmp_path, "train/cat/1.png", "train/dog/2.png", "test/1.png")
    source = open_data(tmp_path, "test")
    assert (source.classes, source[0].target) == (None, None)
