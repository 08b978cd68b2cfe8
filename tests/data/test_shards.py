"""Tar shards: where pictures lie is found once, and each is then read by itself."""

import io
import json
import os
import pickle
import random
import tarfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from trueshift.data import Preparation, Source, TarShards, Unreadable, read_ahead
from trueshift.data import packed as packed_module
from trueshift.data import shards as shards_module


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TRUESHIFT_CACHE", str(folder))
    return folder


def encoded(value, kind="PNG", size=(4, 3)):
    file = io.BytesIO()
    Image.new("RGB", size, (value, 2 * value, 255 - value)).save(file, kind)
    return file.getvalue()


def write_tar(path, members, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_shards(folder, counts=(3, 2, 4), split="train"):
    """Pictures whose colour is their number, with that number modulo 5 for a class."""
    numbers = iter(range(sum(counts)))
    for shard, count in enumerate(counts):
        members = {}
        for number in [next(numbers) for _ in range(count)]:
            members |= {f"{number:04d}.png": encoded(number), f"{number:04d}.cls": str(number % 5).encode()}
        write_tar(folder / f"set-{split}-{shard}.tar", members)


def values(source):
    return [source[index].image.getpixel((0, 0))[0] for index in range(len(source))]


def labels(source):
    return [source[index].target for index in range(len(source))]


def test_pictures_come_in_order_with_labels_and_names(tmp_path):
    write_shards(tmp_path)
    source = TarShards(tmp_path, "train")
    assert isinstance(source, Source)
    assert len(source) == 9
    assert values(source) == list(range(9))
    assert labels(source) == source.labels.tolist() == [number % 5 for number in range(9)]
    assert source.labels.dtype == np.int64
    assert all(isinstance(label, int) for label in labels(source))
    assert source.classes == ["0", "1", "2", "3", "4"]
    assert source.title == f"{tmp_path.name} train"
    assert source[4].name == source.name(4) == "set-train-1.tar/0004.png"
    assert source.name(-1) == "set-train-2.tar/0008.png"
    with pytest.raises(IndexError):
        source[9]


def test_shards_come_in_natural_order(tmp_path):
    for number in (10, 2, 1):
        write_tar(tmp_path / f"train-{number}.tar", {"a.png": encoded(number)})
    assert values(TarShards(tmp_path, "train")) == [1, 2, 10]


def test_names_are_read_as_webdataset_reads_them(tmp_path):
    members = {
        "v1.0/dog.jpg": encoded(10, "JPEG"),  # a dot in a folder ends no key
        "v1.0/dog.cls": b"3\n",
        "cat.seg.png": encoded(99),  # its ending is seg.png, which is no image's
        "cat.json": b'{"label": 2, "width": 4}',
        "cat.webp": encoded(20, "WEBP"),
        "cow.json": b'{"cls": 1}',
        "cow.PNG": encoded(30),
        "fox.png": encoded(40),
        "both.png": encoded(50),
        "both.json": b'{"label": 0}',
        "both.cls": b"4",
        "blank.png": encoded(60),
        "blank.json": b"{}",
        "unknown.png": encoded(70),
        "unknown.cls": b"-1",
        "._dog.jpg": b"a note of a file system",
        "README": b"no picture",
        "about.json": b'{"label": 3}',
    }
    write_tar(tmp_path / "train.tar", members)
    source = TarShards(tmp_path, "train")
    assert {source.name(index).split("/", 1)[1]: source[index].target for index in range(len(source))} == {
        "v1.0/dog.jpg": 3,
        "cat.webp": 2,
        "cow.PNG": 1,
        "fox.png": None,
        "both.png": 4,
        "blank.png": None,
        "unknown.png": None,
    }


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_format_of_tar_is_read(tmp_path, kind):
    long = f"{'folder/' * 20}{'name' * 20}.png" if kind != tarfile.USTAR_FORMAT else "name.png"
    write_tar(tmp_path / "train.tar", {long: encoded(7), "b.png": encoded(8)}, format=kind)
    source = TarShards(tmp_path, "train")
    assert values(source) == [7, 8]
    assert source.name(0) == f"train.tar/{long}"


def test_pictures_are_upright_and_in_colours(tmp_path):
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.new("L", (4, 2), 9).save(file, "PNG", exif=exif)
    write_tar(tmp_path / "train.tar", {"a.png": file.getvalue()})
    image = TarShards(tmp_path, "train")[0].image
    assert (image.mode, image.size) == ("RGB", (2, 4))


# classes


def test_names_of_classes_lie_beside_the_shards(tmp_path):
    write_shards(tmp_path)
    (tmp_path / "classes.txt").write_text("golden retriever\ncat\nfox\nowl\nbee\n\n")
    assert TarShards(tmp_path, "train").classes == ["golden retriever", "cat", "fox", "owl", "bee"]
    (tmp_path / "classes.txt").write_text("a b c")
    with pytest.raises(ValueError, match=r"has labels up to 4: needs 0 to 2, as in classes\.txt"):
        TarShards(tmp_path, "train")


def test_without_labels_there_are_no_classes(tmp_path):
    write_tar(tmp_path / "train.tar", {"a.png": encoded(1)})
    source = TarShards(tmp_path, "train")
    assert source.classes is None
    assert source.labels.tolist() == [-1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.cls", b"dog"),
        ("a.cls", b""),
        ("a.cls", b"-2"),
        ("a.cls", b"3.0"),
        ("a.cls", b"99999999999"),
        ("a.cls", b"\xff"),
        ("a.json", b"{"),
        ("a.json", b"[3]"),
        ("a.json", b'{"label": "dog"}'),
        ("a.json", b'{"label": true}'),
    ],
)
def test_a_label_that_is_no_class_is_told(tmp_path, name, content):
    write_tar(tmp_path / "train.tar", {"a.png": encoded(1), name: content})
    with pytest.raises(ValueError, match=rf"train\.tar/{name} holds b.*: needs the number of a class, as in"):
        TarShards(tmp_path, "train")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.cls": b"1"}, r"has a\.cls and no image of that key: needs one of \.jpg"),
        ({"a.png": encoded(1), "a.webp": encoded(1, "WEBP")}, r"has a\.png and a\.webp: needs one image for each key"),
        ({"README": b"hello"}, r"has no images in its shards: needs names ending in \.jpg"),
        ({}, "has no images in its shards"),
    ],
)
def test_shards_with_other_content_are_refused(tmp_path, members, message):
    write_tar(tmp_path / "train.tar", members)
    with pytest.raises(ValueError, match=message):
        TarShards(tmp_path, "train")


# splits


def found(folder, split):
    return [shard.path.relative_to(folder).as_posix() for shard in TarShards(folder, split).shards]


@pytest.mark.parametrize("word", ["val", "validation", "test"])
def test_names_say_the_split(tmp_path, word):
    for name in ("imagenet_train_00", "TRAIN1", f"imagenet1k-{word}-0", f"{word}1"):
        write_tar(tmp_path / f"{name}.tar", {"a.png": encoded(1)})
    assert found(tmp_path, "train") == ["TRAIN1.tar", "imagenet_train_00.tar"]
    assert found(tmp_path, "test") == [f"imagenet1k-{word}-0.tar", f"{word}1.tar"]


def test_folders_say_the_split(tmp_path):
    for name in ("train/0", "train/1", "val/0", "unused/0"):
        write_tar(tmp_path / f"{name}.tar", {"a.png": encoded(1)})
    assert found(tmp_path, "train") == ["train/0.tar", "train/1.tar"]
    assert found(tmp_path, "test") == ["val/0.tar"]
    assert TarShards(tmp_path).title == f"{tmp_path.name} val"
    assert TarShards(tmp_path).name(0) == "val/0.tar/a.png"


def test_test_comes_before_validation(tmp_path):
    for name in ("validation", "test", "val"):
        write_tar(tmp_path / f"{name}.tar", {"a.png": encoded(1)})
    assert found(tmp_path, "test") == ["test.tar"]


def test_shards_of_one_kind_are_for_training_only(tmp_path):
    for number in range(3):
        write_tar(tmp_path / f"shard-{number}.tar", {"a.png": encoded(number)})
    assert values(TarShards(tmp_path, "train")) == [0, 1, 2]
    with pytest.raises(ValueError, match=r"shard-0\.tar does not say which split .* as in test-00000\.tar"):
        TarShards(tmp_path, "test")


@pytest.mark.parametrize(
    "names", [("cats-0", "dogs-0"), ("train-0", "more-0"), ("latest-0", "constraint-0"), ("train-val", "b")]
)
def test_shards_that_do_not_say_their_split_are_refused(tmp_path, names):
    for name in names:
        write_tar(tmp_path / f"{name}.tar", {"a.png": encoded(1)})
    for split in ("train", "test"):
        with pytest.raises(
            ValueError, match="does not say which split it belongs to: needs one of train, test, val or"
        ):
            TarShards(tmp_path, split)


def test_a_split_that_is_not_there_is_told(tmp_path):
    write_shards(tmp_path, split="train")
    with pytest.raises(ValueError, match=r"has no \.tar files of the split 'test': needs .* as in test-00000\.tar"):
        TarShards(tmp_path, "test")
    with pytest.raises(ValueError, match="split 'val': needs 'test' or 'train'"):
        TarShards(tmp_path, "val")


def test_what_is_no_folder_of_shards_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no \.tar files: needs"):
        TarShards(tmp_path)
    with pytest.raises(NotADirectoryError, match=r"needs a folder of \.tar files"):
        TarShards(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["train-0.tar.gz", "train-0.tgz"])
def test_compressed_shards_are_refused_with_the_remedy(tmp_path, name):
    write_shards(tmp_path)
    (tmp_path / name).write_bytes(b"\x1f\x8b")
    with pytest.raises(ValueError, match=rf"{name} is compressed, .*: unpack it first"):
        TarShards(tmp_path, "train")


# damage


def test_a_truncated_shard_is_named_wherever_it_ends(tmp_path):
    write_shards(tmp_path, (3, 2))
    whole = (tmp_path / "set-train-1.tar").read_bytes()
    end = whole.rindex(b"0004.cls") + 1024  # the last member, and its content
    assert whole[end:].strip(b"\0") == b""
    # in a header, in a picture, between two members, and just before the mark of the end
    for cut in (100, 512 + 20, 700, 1024, 1100, end - 600, end - 511, end):
        (tmp_path / "set-train-1.tar").write_bytes(whole[:cut])
        with pytest.raises(
            ValueError, match=r"set-train-1\.tar is not a whole, uncompressed tar file .*: copy it again"
        ):
            TarShards(tmp_path, "train")
    (tmp_path / "set-train-1.tar").write_bytes(whole[: end + 512])
    assert len(TarShards(tmp_path, "train")) == 5


@pytest.mark.parametrize("content", [b"", b"no tar file at all" * 100, b"\x1f\x8b" + b"7" * 2000])
def test_what_is_no_tar_file_is_named(tmp_path, content):
    (tmp_path / "train.tar").write_bytes(content)
    with pytest.raises(ValueError, match=r"train\.tar is not a whole, uncompressed tar file"):
        TarShards(tmp_path, "train")


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path):
    write_shards(tmp_path, (3,))
    file = tmp_path / "set-train-0.tar"
    data = bytearray(file.read_bytes())
    data[data.index(b"0001.png") + 200] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(ValueError, match="its end is missing at byte"):
        TarShards(tmp_path, "train")


def test_a_picture_that_cannot_be_decoded_is_told_and_the_rest_is_read(tmp_path):
    write_tar(tmp_path / "train.tar", {"a.png": encoded(1), "b.png": b"torn", "c.png": encoded(3)})
    read = list(read_ahead(TarShards(tmp_path, "train"), range(3), Preparation((4, 4), 1.0)))
    assert read[1] == Unreadable(1, "train.tar/b.png", read[1].reason)
    assert read[1].reason.startswith("ValueError: train.tar/b.png is not an image that Pillow knows: needs")
    assert [type(each).__name__ for each in read] == ["Prepared", "Unreadable", "Prepared"]


def test_a_shard_that_has_changed_is_not_read(tmp_path):
    write_shards(tmp_path, (3,))
    source = TarShards(tmp_path, "train")
    write_shards(tmp_path, (4,))
    with pytest.raises(ValueError, match=r"set-train-0\.tar has changed since it was opened: open the data again"):
        source[0]
    assert values(TarShards(tmp_path, "train")) == [0, 1, 2, 3]


# the stored index


def test_headers_are_read_once(tmp_path, cache, monkeypatch):
    write_shards(tmp_path)
    first = TarShards(tmp_path, "train")
    (stored,) = (cache / "shards").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(shards_module, "_read_headers", None)  # calling it would fail
        again = TarShards(tmp_path, "train")
    assert values(again) == values(first)
    assert [again.name(index) for index in range(9)] == [first.name(index) for index in range(9)]
    assert labels(again) == labels(first)
    write_shards(tmp_path, (3, 2, 5))
    assert len(TarShards(tmp_path, "train")) == 10
    assert stored.exists()


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-30], lambda data: b"no index" + data[8:]])
def test_a_damaged_index_is_made_again(tmp_path, cache, damage):
    write_shards(tmp_path)
    TarShards(tmp_path, "train")
    (stored,) = (cache / "shards").iterdir()
    whole = stored.read_bytes()
    stored.write_bytes(damage(whole))
    assert values(TarShards(tmp_path, "train")) == list(range(9))
    assert len(stored.read_bytes()) == len(whole)


def test_an_index_of_other_arrays_is_made_again(tmp_path, cache):
    write_shards(tmp_path)
    TarShards(tmp_path, "train")
    (stored,) = (cache / "shards").iterdir()
    np.savez(stored, shard=np.zeros(3))
    assert values(TarShards(tmp_path, "train")) == list(range(9))


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path, monkeypatch):
    write_shards(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRUESHIFT_CACHE", str(tmp_path / "file"))
    assert values(TarShards(tmp_path, "train")) == list(range(9))


def test_the_index_lies_in_the_users_cache_unless_told(tmp_path, monkeypatch):
    write_shards(tmp_path / "data")
    monkeypatch.delenv("TRUESHIFT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    TarShards(tmp_path / "data", "train")
    assert len(list((tmp_path / "home/.cache/trueshift/shards").iterdir())) == 1


# threads and processes


def test_a_source_travels_to_other_processes(tmp_path):
    write_shards(tmp_path)
    source = TarShards(tmp_path, "train")
    assert values(source) == list(range(9))  # with files open
    copy = pickle.loads(pickle.dumps(source))
    assert values(copy) == list(range(9))
    assert (copy.title, copy.classes) == (source.title, source.classes)
    assert [copy.name(index) for index in range(9)] == [source.name(index) for index in range(9)]


def test_forked_workers_and_their_parent_read_at_once(tmp_path):
    write_shards(tmp_path, (40, 40))
    source = TarShards(tmp_path, "train")
    assert values(source) == list(range(80))  # the files that are open now are inherited
    order = random.Random(0).choices(range(80), k=200)
    loader = DataLoader(source, 10, sampler=order, num_workers=2, collate_fn=list, multiprocessing_context="fork")
    read = []
    for batch in loader:
        read += [picture.image.getpixel((0, 0))[0] for picture in batch]
        assert source[7].image.getpixel((0, 0))[0] == 7
    assert read == order


def test_threads_do_not_disturb_each_other(tmp_path):
    write_shards(tmp_path, (10,) * 12)
    source = TarShards(tmp_path, "train")
    packed_module._opened.cache_clear()
    order = random.Random(1).choices(range(120), k=2000)
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda index: source[index].image.getpixel((0, 0))[0], order))
    assert read == order


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_only_so_many_files_stay_open(tmp_path):
    packed_module._opened.cache_clear()
    before = len(os.listdir("/proc/self/fd"))
    write_shards(tmp_path, (1,) * 150)
    source = TarShards(tmp_path, "train")
    assert values(source) == list(range(150))
    assert len(os.listdir("/proc/self/fd")) - before <= 128
    packed_module._opened.cache_clear()
    assert len(os.listdir("/proc/self/fd")) == before


def test_json_is_as_good_as_cls(tmp_path):
    members = {}
    for number in range(4):
        members |= {f"{number}.png": encoded(number), f"{number}.json": json.dumps({"label": 3 - number}).encode()}
    write_tar(tmp_path / "train.tar", members)
    assert labels(TarShards(tmp_path, "train")) == [3, 2, 1, 0]
