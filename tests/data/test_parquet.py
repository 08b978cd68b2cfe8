"""Parquet files of Hugging Face: rows found by their number, row groups read whole and kept for a while."""

import io
import json
import pickle
import random
import sys

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from trueshift.data import ParquetImages, Source
from trueshift.data import parquet as parquet_module

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NAMES = ["ant", "bee", "cow", "dog", "elk"]


def encoded(value):
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (value, 2 * value, 255 - value)).save(file, "PNG")
    return file.getvalue()


def write_file(path, numbers, labels=True, names=NAMES, struct=True, rows=3, kind=None):
    """Pictures whose colour is their number; modulo 5, that is their class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [encoded(number) for number in numbers]
    columns = {"image": [{"bytes": image, "path": "a.png"} for image in images] if struct else images}
    if labels is True:
        labels = [number % 5 for number in numbers]
    if labels:
        columns["label"] = pa.array(labels, kind)
    table = pa.table(columns)
    if names:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=rows)


def write_set(folder, split="train", files=3, each=7, **options):
    for file in range(files):
        numbers = range(file * each, (file + 1) * each)
        write_file(folder / f"{split}-{file:05d}-of-{files:05d}.parquet", numbers, **options)


def values(source):
    return [source[index].image.getpixel((0, 0))[0] for index in range(len(source))]


@pytest.mark.parametrize("inside", ["", "data"])
@pytest.mark.parametrize("struct", [True, False])
def test_rows_come_in_order_with_labels_and_names(tmp_path, inside, struct):
    write_set(tmp_path / inside, struct=struct)
    source = ParquetImages(tmp_path, "train")
    assert isinstance(source, Source)
    assert len(source) == 21
    assert values(source) == list(range(21))
    assert [source[index].target for index in range(21)] == source.labels.tolist() == [i % 5 for i in range(21)]
    assert source.labels.dtype == np.int64
    assert source.classes == NAMES
    assert source.title == f"{tmp_path.name} train"
    assert source[12].name == source.name(12) == "train-00001-of-00003.parquet 5"
    assert source.name(-1) == "train-00002-of-00003.parquet 6"
    assert source[-1].image.getpixel((0, 0))[0] == 20
    with pytest.raises(IndexError):
        source[21]


def test_chunks_are_the_row_groups(tmp_path):
    write_set(tmp_path, files=2)
    source = ParquetImages(tmp_path, "train")
    assert source.chunks == [range(0, 3), range(3, 6), range(6, 7), range(7, 10), range(10, 13), range(13, 14)]


def test_a_file_without_rows_is_no_hindrance(tmp_path):
    write_file(tmp_path / "train-0.parquet", range(2))
    write_file(tmp_path / "train-1.parquet", [], labels=None)
    write_file(tmp_path / "train-2.parquet", range(2, 4))
    source = ParquetImages(tmp_path, "train")
    assert values(source) == [0, 1, 2, 3]
    assert source.chunks == [range(0, 2), range(2, 4)]


def test_an_order_within_chunks_reads_each_once(tmp_path):
    write_set(tmp_path, files=10)
    source = ParquetImages(tmp_path, "train")
    parquet_module._row_group.cache_clear()
    chunks = random.Random(0).sample(source.chunks, len(source.chunks))
    few = parquet_module.KEPT_CHUNKS
    for start in range(0, len(chunks), few):
        rows = [index for chunk in chunks[start : start + few] for index in chunk]
        for index in random.Random(start).sample(rows, len(rows)):
            assert source[index].image.getpixel((0, 0))[0] == index
    assert parquet_module._row_group.cache_info().misses == len(chunks) == 30


# labels and classes


def test_without_names_classes_are_numbers(tmp_path):
    write_set(tmp_path, names=None)
    assert ParquetImages(tmp_path, "train").classes == ["0", "1", "2", "3", "4"]


def test_labels_may_be_missing(tmp_path):
    write_file(tmp_path / "a" / "train.parquet", range(3), labels=None, names=None)
    source = ParquetImages(tmp_path / "a", "train")
    assert (source.classes, source[0].target) == (None, None)
    write_file(tmp_path / "b" / "train.parquet", range(3), labels=[1, None, -1], kind="int8")
    source = ParquetImages(tmp_path / "b", "train")
    assert [source[index].target for index in range(3)] == [1, None, None]
    assert source.labels.tolist() == [1, -1, -1]
    write_file(tmp_path / "c" / "train.parquet", range(2), labels=[None, 4], kind="uint8")
    assert ParquetImages(tmp_path / "c", "train").labels.tolist() == [-1, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": [0, 5, 1]}, "has labels up to 5: needs 0 to 4"),
        ({"labels": [0, -2, 1]}, "has labels from -2: needs 0 or more, or -1 for none"),
        ({"labels": ["ant", "bee", "ant"]}, "has labels of the type string: needs integers"),
    ],
)
def test_labels_that_cannot_be_are_refused(tmp_path, options, message):
    write_file(tmp_path / "train.parquet", range(3), **options)
    with pytest.raises(ValueError, match=message):
        ParquetImages(tmp_path, "train")


# splits


def test_validation_stands_in_for_a_test_without_labels(tmp_path):
    write_set(tmp_path, "train")
    write_set(tmp_path, "validation", files=1)
    assert ParquetImages(tmp_path).title.endswith("validation")
    write_set(tmp_path, "test", files=2, labels=[-1] * 7)  # as ImageNet's
    source = ParquetImages(tmp_path, "test")
    assert (len(source), source.title) == (7, f"{tmp_path.name} validation")
    write_set(tmp_path, "test", files=2)
    assert len(ParquetImages(tmp_path, "test")) == 14
    for file in tmp_path.glob("validation*"):
        file.unlink()
    write_set(tmp_path, "test", files=2, labels=[-1] * 7)
    assert len(ParquetImages(tmp_path, "test")) == 14


def test_a_split_that_is_not_there_is_told(tmp_path):
    write_set(tmp_path / "data")
    with pytest.raises(ValueError, match=r"has no \.parquet files of the split 'test': needs .* test-00000\.parquet"):
        ParquetImages(tmp_path, "test")
    with pytest.raises(ValueError, match="split 'val': needs 'test' or 'train'"):
        ParquetImages(tmp_path, "val")
    with pytest.raises(FileNotFoundError, match=r"has no \.parquet files"):
        ParquetImages(tmp_path / "..", "train")


# damage


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: data[:10], lambda data: b"", lambda data: b"x" * 99]
)
def test_a_damaged_file_is_named(tmp_path, damage):
    write_set(tmp_path)
    file = tmp_path / "train-00001-of-00003.parquet"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(
        ValueError, match=r"train-00001-of-00003\.parquet is not a whole parquet file .*: copy it again"
    ):
        ParquetImages(tmp_path, "train")


def test_damaged_pictures_are_told_when_they_are_read(tmp_path):
    write_file(tmp_path / "train.parquet", range(6))
    data = bytearray((tmp_path / "train.parquet").read_bytes())
    data[4:24] = b"\xff" * 20  # the first page of the first row group
    (tmp_path / "train.parquet").write_bytes(data)
    source = ParquetImages(tmp_path, "train")
    with pytest.raises(ValueError, match=r"train\.parquet is not a whole parquet file"):
        source[0]
    assert source[3].image.getpixel((0, 0))[0] == 3


def test_rows_without_an_image_are_named(tmp_path):
    image = pa.array([{"bytes": None, "path": "a.png"}, None, {"bytes": b"torn", "path": None}])
    pq.write_table(pa.table({"image": image}), tmp_path / "train.parquet")
    source = ParquetImages(tmp_path, "train")
    for row in (0, 1):
        with pytest.raises(ValueError, match=rf"train\.parquet {row} has no bytes of an image: needs"):
            source[row]
    with pytest.raises(ValueError, match=r"train\.parquet 2 is not an image that Pillow knows"):
        source[2]


def test_other_tables_are_refused(tmp_path):
    pq.write_table(pa.table({"img": [b"a"], "label": [0]}), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match="has the columns img, label: needs 'image', and 'label'"):
        ParquetImages(tmp_path, "train")
    pq.write_table(
        pa.table({"image": pa.array([], "binary"), "label": pa.array([], "int64")}), tmp_path / "train.parquet"
    )
    with pytest.raises(ValueError, match="has no rows in its train files: needs at least one picture"):
        ParquetImages(tmp_path, "train")


def test_a_file_that_has_changed_is_not_read(tmp_path):
    write_file(tmp_path / "train.parquet", range(6))
    source = ParquetImages(tmp_path, "train")
    write_file(tmp_path / "train.parquet", range(6, 13))
    with pytest.raises(ValueError, match="has changed since it was opened: open the data again"):
        source[0]
    assert values(ParquetImages(tmp_path, "train")) == list(range(6, 13))


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    write_set(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"parquet files need pyarrow: pip install 'trueshift\[parquet\]'"):
        ParquetImages(tmp_path, "train")


# processes


def test_a_source_travels_to_other_processes(tmp_path):
    write_set(tmp_path)
    source = ParquetImages(tmp_path, "train")
    assert values(source) == list(range(21))
    copy = pickle.loads(pickle.dumps(source))
    assert values(copy) == list(range(21))
    assert (copy.title, copy.classes, copy.chunks) == (source.title, source.classes, source.chunks)


def test_forked_workers_read(tmp_path):
    write_set(tmp_path)
    source = ParquetImages(tmp_path, "train")
    assert values(source) == list(range(21))  # pyarrow is at work already when they are forked
    parquet_module._row_group.cache_clear()
    order = random.Random(0).choices(range(21), k=60)
    loader = DataLoader(source, 10, sampler=order, num_workers=2, collate_fn=list, multiprocessing_context="fork")
    assert [picture.image.getpixel((0, 0))[0] for batch in loader for picture in batch] == order
