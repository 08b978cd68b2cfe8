"""Parquet files, tar shards and the Hub, through ``datasets``."""

import io
import json
import pickle
import random
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from trueshift.data import DatasetImages, Preparation, Source, Unreadable, open_data, read_ahead
from trueshift.data.images import png_bytes

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NAMES = ["ant", "bee", "cow", "dog", "elk"]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()


def encoded(value):
    return png_bytes(Image.new("RGB", (4, 3), (value, 2 * value % 256, 255 - value)))


def write_tar(path, members, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_table(path, numbers, labels=True, names=NAMES, struct=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [encoded(number) for number in numbers]
    columns = {"image": [{"bytes": image, "path": "a.png"} for image in images] if struct else images}
    if labels:
        columns["label"] = [number % 5 for number in numbers] if labels is True else labels
    table = pa.table(columns)
    if names:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path)


def write(folder, kind, split="train", counts=(7, 7, 7), **options):
    """Images whose colour is their number; modulo 5, that is their class."""
    numbers = iter(range(sum(counts)))
    for file, count in enumerate(counts):
        of_file = list(islice(numbers, count))
        if kind == "tar":
            members = {}
            for number in of_file:
                members |= {f"{number:04d}.png": encoded(number), f"{number:04d}.cls": str(number % 5).encode()}
            write_tar(folder / f"set-{split}-{file}.tar", members)
        else:
            path = folder / f"{split}-{file:05d}-of-{len(counts):05d}.parquet"
            write_table(path, of_file, **options)


both = pytest.mark.parametrize("kind", ["tar", "parquet"])


def values(source):
    return [source[index].image.getpixel((0, 0))[0] for index in range(len(source))]


def targets(source):
    return [source[index].target for index in range(len(source))]


def assert_all_there(source, classes):
    assert isinstance(source, Source)
    assert values(source) == list(range(21))
    assert targets(source) == source.labels.tolist() == [number % 5 for number in range(21)]
    assert source.labels.dtype == np.int64
    assert source.classes == classes
    assert source[12].name == source.name(12)
    assert len({source.name(index) for index in range(21)}) == 21
    assert source.name(-1) == source.name(20)
    with pytest.raises(IndexError):
        source[21]


@pytest.mark.parametrize(("inside", "struct"), [("", True), ("data", False)])
def test_rows_of_parquet_files_come_in_order(tmp_path, inside, struct):
    write(tmp_path / "set" / inside, "parquet", struct=struct)
    source = open_data(tmp_path / "set", "train")
    assert_all_there(source, NAMES)
    assert (source.title, source.name(12)) == ("set train", "train 12")


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_samples_of_shards_come_in_order(tmp_path, format):
    write(tmp_path / "set", "tar")
    write_tar(tmp_path / "set" / "set-val-0.tar", {"folder.0/a.png": encoded(3)}, format=format)
    source = open_data(tmp_path / "set", "train")
    assert_all_there(source, ["0", "1", "2", "3", "4"])
    assert (source.title, source.name(12)) == ("set train", "set-train-1.tar/0012")
    assert values(open_data(tmp_path / "set", "test")) == [3]


def test_a_data_set_of_the_hub_is_opened_by_its_name(tmp_path, monkeypatch):
    write(tmp_path / "data", "parquet")
    write(tmp_path / "data", "parquet", "validation", (4,))
    load, asked = datasets.load_dataset_builder, []

    def local(name, **options):
        asked.append(name)
        return load(str(tmp_path), **options)

    monkeypatch.setattr(datasets, "load_dataset_builder", local)
    assert_all_there(open_data("hf-hub:owner/insects", "train"), NAMES)
    assert set(asked) == {"owner/insects"}
    assert open_data("hf-hub:owner/insects").title == "insects validation"


@pytest.mark.parametrize("key", ["label", "cls"])
def test_labels_of_shards_may_be_in_json_and_images_are_upright_and_in_colours(tmp_path, key):
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.new("L", (4, 2), 9).save(file, "PNG", exif=exif)
    members = {}
    for number in range(4):
        members |= {f"{number}.json": json.dumps({key: 3 - number}).encode(), f"{number}.png": file.getvalue()}
    write_tar(tmp_path / "train.tar", members)
    source = DatasetImages(tmp_path, "train")
    assert targets(source) == [3, 2, 1, 0]
    assert (source[0].image.mode, source[0].image.size) == ("RGB", (2, 4))


# labels and classes


@both
def test_names_of_classes_may_lie_beside_the_files(tmp_path, kind):
    write(tmp_path, kind)
    (tmp_path / "classes.txt").write_text("golden retriever\ncat\nfox\nowl\nbee\n\n")
    assert DatasetImages(tmp_path, "train").classes == ["golden retriever", "cat", "fox", "owl", "bee"]


def test_labels_may_be_missing(tmp_path):
    write_tar(tmp_path / "a" / "train.tar", {"a.png": encoded(1)})
    write_table(tmp_path / "b" / "train.parquet", range(3), labels=None, names=None)
    for folder in ("a", "b"):
        source = DatasetImages(tmp_path / folder, "train")
        assert (source.classes, source[0].target, source.labels[0]) == (None, None, -1)
    write_table(tmp_path / "c" / "train.parquet", range(3), labels=[1, None, -1], names=None)
    assert targets(DatasetImages(tmp_path / "c", "train")) == [1, None, None]


def write_words(path, numbers):
    pq.write_table(pa.table({"words": ["a"], "label": [0]}), path)


@pytest.mark.parametrize(
    ("write_wrong", "message"),
    [
        (partial(write_table, labels=[0, 5, 1]), "has labels up to 5: needs 0 to 4"),
        (partial(write_table, labels=[0, -2, 1], names=None), "labels from -2: needs 0 or more, or -1"),
        (partial(write_table, labels=["ant", "bee", "ant"], names=None), "of the type string: needs integers"),
        (write_words, "has the columns words, label: needs 'image', and 'label'"),
    ],
)
def test_tables_that_cannot_be_are_refused(tmp_path, write_wrong, message):
    write_wrong(tmp_path / "train.parquet", range(3))
    with pytest.raises(ValueError, match=message):
        DatasetImages(tmp_path, "train")


# splits


@both
@pytest.mark.parametrize("word", ["test", "validation"])
def test_names_tell_the_split_and_only_that_is_read(tmp_path, kind, word):
    write(tmp_path / "set", kind, word, (3, 2))
    (tmp_path / "set" / f"train-00000-of-00001.{kind}").write_bytes(b"damaged")
    for asked in ("test", "testing") if word == "test" else ("test", "val", "valid", "validation"):
        source = open_data(tmp_path / "set", asked)
        assert (len(source), source.title) == (5, f"set {word}")
    with pytest.raises(ValueError, match="split 'all': needs one of train"):
        DatasetImages(tmp_path / "set", "all")


def test_folders_tell_the_split(tmp_path):
    for name in ("train/0", "train/1", "val/0"):
        write_tar(tmp_path / f"{name}.tar", {"a.png": encoded(1)})
    assert [len(open_data(tmp_path, split)) for split in ("train", "test")] == [2, 1]


def test_validation_stands_in_for_a_test_without_labels(tmp_path):
    write(tmp_path, "parquet", "test", (7, 7), labels=[-1] * 7)  # as ImageNet's
    with pytest.raises(ValueError, match="has no split 'val', only test: needs it in the names of files"):
        open_data(tmp_path, "val")
    write(tmp_path, "parquet", "validation", (7,))
    assert DatasetImages(tmp_path, "test").title == f"{tmp_path.name} validation"
    write(tmp_path, "parquet", "test", (7, 7))
    assert len(DatasetImages(tmp_path, "test")) == 14


# damage


@both
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" * 2000])
def test_a_damaged_file_is_reported(tmp_path, kind, damage):
    write(tmp_path, kind)
    file = sorted(tmp_path.iterdir())[1]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"copy (it|them) again"):
        open_data(tmp_path, "train")


def test_a_truncated_shard_is_named_wherever_it_ends(tmp_path):
    write(tmp_path, "tar", counts=(3, 2))
    file = tmp_path / "set-train-1.tar"
    whole = file.read_bytes()
    end = whole.rindex(b"0004.cls") + 1024  # the last member, and its content
    # in a header, in an image, between two members, and just before the mark of the end
    for cut in (100, 700, 1024, end - 511, end):
        file.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"set-train-1\.tar is not a whole tar file .*: copy it again"):
            DatasetImages(tmp_path, "train")
    header = bytearray(whole)
    header[header.index(b"0004.png") + 200] ^= 0xFF
    file.write_bytes(header)
    with pytest.raises(ValueError, match="its end is missing at byte"):
        DatasetImages(tmp_path, "train")
    file.write_bytes(whole)
    assert len(DatasetImages(tmp_path, "train")) == 5


def test_rows_without_an_image_are_named_and_the_rest_is_read(tmp_path):
    image = [{"bytes": None, "path": None}, None, {"bytes": b"torn", "path": None}, {"bytes": encoded(3), "path": None}]
    pq.write_table(pa.table({"image": pa.array(image)}), tmp_path / "train.parquet")
    *broken, whole = read_ahead(DatasetImages(tmp_path, "train"), range(4), Preparation((4, 4), 1.0))
    for row, message in enumerate(["has no bytes of an image", "has no bytes of an image", "is not an image"]):
        assert broken[row] == Unreadable(row, f"train {row}", broken[row].reason)
        assert broken[row].reason.startswith(f"ValueError: train {row} {message}")
    assert (whole.canvas[0] == 3).all()


def test_changed_files_are_read_anew(tmp_path):
    write(tmp_path, "tar")
    assert len(open_data(tmp_path, "train")) == 21
    write(tmp_path, "tar", counts=(7, 7, 9))
    assert len(open_data(tmp_path, "train")) == 23


def test_without_datasets_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "train.parquet").touch()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'trueshift\[data\]'"):
        open_data(tmp_path, "train")


def test_threads_and_processes_read_the_same(tmp_path):
    write(tmp_path, "tar")
    source = open_data(tmp_path, "train")
    assert values(pickle.loads(pickle.dumps(source))) == list(range(21))
    order = random.Random(0).choices(range(21), k=100)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda index: source[index].image.getpixel((0, 0))[0], order)) == order
    loader = DataLoader(source, 10, sampler=order, num_workers=2, collate_fn=list, multiprocessing_context="fork")
    assert [sample.image.getpixel((0, 0))[0] for batch in loader for sample in batch] == order
