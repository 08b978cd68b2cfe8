"""Where images come from: the sample in the package, folders, and CIFAR's own files."""

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trueshift.data import CifarFiles, EmbeddedSample, ImageFolder, open_data

SHARED = Path(__file__).parents[3] / "shared" / "data"


def pixels_of(picture):
    assert picture.image.mode == "RGB"
    return np.asarray(picture.image)


def random_pixels(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


# the sample


def test_the_sample_has_40_images_of_each_class():
    sample = EmbeddedSample()
    pictures = [sample[index] for index in range(len(sample))]
    assert Counter(picture.target for picture in pictures) == dict.fromkeys(range(10), 40)
    assert all(picture.image.size == (32, 32) for picture in pictures)
    assert len({pixels_of(picture).tobytes() for picture in pictures}) == 400
    assert len({picture.name for picture in pictures}) == 400


@pytest.mark.parametrize(
    ("index", "name", "label", "checksum"),
    [
        (0, "cat 0", 3, 2605481589),
        (1, "ship 1", 8, 408816159),
        (20, "horse 20", 7, 3072748318),  # below the first, in the mosaic
        (199, "ship 199", 8, 242906531),
        (399, "automobile 493", 1, 3994927269),
    ],
)
def test_images_of_the_sample_are_cut_from_the_right_place(index, name, label, checksum):
    picture = EmbeddedSample()[index]
    assert (picture.name, picture.target) == (name, label)
    assert zlib.crc32(pixels_of(picture).tobytes()) == checksum


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs CIFAR-10 in {SHARED}")
def test_the_sample_is_part_of_cifar_10s_test_set():
    with zipfile.ZipFile(SHARED / "cifar10_lossless_b.zip") as archive:  # only one of the loader's six batches
        mosaic = np.asarray(Image.open(io.BytesIO(archive.read("test_batch.webp"))).convert("RGB"))
        labels = archive.read("test_batch.labels")
    test_set = mosaic.reshape(100, 32, 100, 32, 3).transpose(0, 2, 1, 3, 4).reshape(10000, 32, 32, 3)
    sample = EmbeddedSample()
    for index, original in enumerate(sample.indices):
        assert np.array_equal(pixels_of(sample[index]), test_set[original])
        assert sample[index].target == labels[original]


# folders


def save(path, colour=(200, 100, 50), size=(8, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def labels_by_name(folder):
    source = ImageFolder(folder)
    pictures = [source[index] for index in range(len(source))]
    assert [picture.name for picture in pictures] == [source.name(index) for index in range(len(source))]
    return {picture.name: picture.target for picture in pictures}


def test_folders_inside_are_classes(tmp_path):
    for file in ("zebra/1.png", "ant/2.JPG", "ant/old/more/3.webp", "bee/4.bmp", "loose.png"):
        save(tmp_path / file)
    (tmp_path / "ant" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    assert labels_by_name(tmp_path) == {
        "ant/2.JPG": 0,
        "ant/old/more/3.webp": 0,
        "bee/4.bmp": 1,
        "zebra/1.png": 2,
        "loose.png": None,
    }
    assert ImageFolder(tmp_path).classes == ["ant", "bee", "zebra"]
    assert ImageFolder(tmp_path).title == tmp_path.name


def test_without_folders_there_are_no_classes(tmp_path):
    for file in ("b.png", "a.png"):
        save(tmp_path / file)
    assert list(labels_by_name(tmp_path).items()) == [("a.png", None), ("b.png", None)]
    assert ImageFolder(tmp_path).classes is None


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright(tmp_path, orientation):
    upright = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10)
    lying = {  # how a camera stores what then has to be turned back
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(lying[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "photo.png", exif=exif)
    assert np.array_equal(pixels_of(ImageFolder(tmp_path)[0]), np.asarray(upright))


def png_of_16_bits(values):
    """Pillow writes no 16-bit colours."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 16, 2 if values.ndim == 3 else 0, 0, 0, 0)
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_16_bits_per_channel_become_8(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**16, (5, 4, 3), dtype=np.uint16)
    values[0, 0], values[0, 1] = 0, 2**16 - 1
    (tmp_path / "colour.png").write_bytes(png_of_16_bits(values))
    (tmp_path / "grey.png").write_bytes(png_of_16_bits(values[..., 0]))
    colour, grey = (pixels_of(ImageFolder(tmp_path)[index]) for index in (0, 1))
    assert np.array_equal(colour, values >> 8)
    assert np.array_equal(grey, np.repeat(values[..., :1] >> 8, 3, 2))


def test_every_kind_of_png_is_read_as_colours(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    grey = colours[..., :1]
    expected = {
        "alpha": (np.concatenate([colours, grey], 2), colours),
        "bits": (grey[..., 0] > 127, np.repeat(np.where(grey > 127, 255, 0), 3, 2)),
        "grey": (grey[..., 0], np.repeat(grey, 3, 2)),
    }
    for name, (stored, _) in expected.items():
        Image.fromarray(stored).save(tmp_path / f"{name}.png")
    Image.fromarray(colours).convert("LA").save(tmp_path / "grey_alpha.png")
    palette = Image.fromarray(colours).quantize(16)
    palette.save(tmp_path / "palette.png")
    palette.save(tmp_path / "palette_alpha.png", transparency=bytes(range(0, 160, 10)))
    source = ImageFolder(tmp_path)
    read = {source.name(index): pixels_of(source[index]) for index in range(len(source))}
    for name, (_, wanted) in expected.items():
        assert np.array_equal(read[f"{name}.png"], wanted), name
    assert (np.ptp(read["grey_alpha.png"], 2) == 0).all()
    assert np.array_equal(read["palette.png"], np.asarray(palette.convert("RGB")))
    assert np.array_equal(read["palette_alpha.png"], read["palette.png"])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (np.random.default_rng(0).random((4, 4), np.float32), "floating point"),
        (np.array([[0, 2**16]], np.int32), "values from 0 to 65536"),
        (np.array([[-1, 5]], np.int32), "values from -1 to 5"),
    ],
)
def test_pictures_of_no_known_scale_are_not_guessed(tmp_path, values, told):
    """Pillow would cut off what is not between 0 and 255, which may be all there is."""
    Image.fromarray(values).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match=f"{told}: needs 8 or 16 bits per channel"):
        ImageFolder(tmp_path)[0]


def test_linked_folders_are_classes_and_hidden_files_no_images(tmp_path):
    save(tmp_path / "elsewhere" / "a.png")
    save(tmp_path / "data" / "dog" / "b.png")
    save(tmp_path / "data" / ".ipynb_checkpoints" / "b.png")
    (tmp_path / "data" / "dog" / "._b.png").write_bytes(b"a note of a file system")
    (tmp_path / "data" / "dog" / "folder.png").mkdir()
    (tmp_path / "data" / "cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "dog" / "again").symlink_to(tmp_path / "data")  # without end
    source = open_data(tmp_path / "data")
    assert source.classes == ["cat", "dog"]
    assert [source.name(index) for index in range(len(source))] == ["cat/a.png", "dog/b.png"]


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match=r"has no images: needs files ending in \.jpg"):
        ImageFolder(tmp_path)


def test_a_file_is_not_a_folder(tmp_path):
    save(tmp_path / "a.png")
    for path in (tmp_path / "a.png", tmp_path / "nowhere"):
        with pytest.raises(NotADirectoryError, match="is not a folder: needs a folder of images"):
            ImageFolder(path)


# CIFAR's own files


def python_2_pickle(pixels, labels, key):
    """What Python 2 wrote, and what is published: all strings, keys and pixels alike, are strings of bytes."""

    def string(value):
        return b"T" + struct.pack("<I", len(value)) + value

    shape = b"(J" + struct.pack("<i", len(labels)) + b"M" + struct.pack("<H", 3072) + b"t"
    dtype = b"cnumpy\ndtype\n(" + string(b"u1") + b"K\0K\1tR"
    dtype += b"(K\3" + string(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\0tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0t" + string(b"b") + b"tR"
    array += b"(K\1" + shape + dtype + b"I00\n" + string(pixels.tobytes()) + b"tb"
    numbers = b"(l" + b"".join(b"K" + bytes([label]) + b"a" for label in labels)
    return b"\x80\2}" + string(b"data") + array + b"s" + string(key.encode()) + numbers + b"s."


def python_3_pickle(pixels, labels, key):
    return pickle.dumps({"data": pixels, key: list(labels), "filenames": ["a.png"] * len(labels)}, protocol=4)


LAYOUTS = {
    "cifar-10-batches-bin": ([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"], 10),
    "cifar-10-batches-py": ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"], 10),
    "cifar-100-binary": (["train.bin"], ["test.bin"], 100),
    "cifar-100-python": (["train"], ["test"], 100),
}
IMAGES = 15


def write_cifar(folder, layout, dump=python_3_pickle):
    """Random images in a published layout; returns pixels and labels of each split."""
    train, test, classes = LAYOUTS[layout]
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for seed, (split, files) in enumerate({"train": train, "test": test}.items()):
        pixels = random_pixels(IMAGES, seed)
        labels = np.random.default_rng(seed).integers(0, classes, IMAGES, dtype=np.uint8)
        written[split] = pixels, labels
        rows = pixels.transpose(0, 3, 1, 2).reshape(IMAGES, 3072)
        for file, part in zip(files, np.array_split(np.arange(IMAGES), len(files)), strict=True):
            if not file.endswith(".bin"):
                key = "labels" if classes == 10 else "fine_labels"
                (folder / file).write_bytes(dump(rows[part], labels[part].tolist(), key))
                continue
            columns = [labels[part, None], rows[part]]
            if classes == 100:
                columns.insert(0, 99 - labels[part, None] // 5)  # the coarse label, which is not asked for
            (folder / file).write_bytes(np.concatenate(columns, 1).tobytes())
    return written


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("layout", "dump"),
    [
        ("cifar-10-batches-bin", None),
        ("cifar-10-batches-py", python_2_pickle),
        ("cifar-10-batches-py", python_3_pickle),
        ("cifar-100-binary", None),
        ("cifar-100-python", python_2_pickle),
        ("cifar-100-python", python_3_pickle),
    ],
)
def test_every_published_layout_gives_the_same_pixels(tmp_path, layout, dump, split, above):
    pixels, labels = write_cifar(tmp_path / layout, layout, dump)[split]
    source = CifarFiles(tmp_path if above else tmp_path / layout, split)
    assert source.title == f"CIFAR-{10 if 'cifar-10-' in layout else 100} {split}"
    assert len(source) == IMAGES
    for index in range(IMAGES):
        picture = source[index]
        assert np.array_equal(pixels_of(picture), pixels[index])
        assert picture.target == labels[index]
        assert picture.name == source.name(index) == f"{split} {index}"


def test_names_of_classes(tmp_path):
    names = [f"class_{label}" for label in range(100)]
    for layout in LAYOUTS:
        write_cifar(tmp_path / layout, layout)
    assert CifarFiles(tmp_path / "cifar-10-batches-py").classes == EmbeddedSample().classes
    for layout in ("cifar-100-binary", "cifar-100-python"):
        assert CifarFiles(tmp_path / layout).classes == [str(label) for label in range(100)]
    (tmp_path / "cifar-100-binary" / "fine_label_names.txt").write_text("\n".join(names))
    (tmp_path / "cifar-100-python" / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    for layout in ("cifar-100-binary", "cifar-100-python"):
        assert CifarFiles(tmp_path / layout).classes == names


@pytest.mark.parametrize("layout", ["cifar-10-batches-bin", "cifar-100-binary"])
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: b""])
def test_a_truncated_binary_file_is_refused(tmp_path, layout, damage):
    write_cifar(tmp_path, layout)
    file = tmp_path / LAYOUTS[layout][1][0]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"test.*\.bin has \d+ bytes: needs a multiple of 307[34]"):
        CifarFiles(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-200],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: b"not a pickle at all",
        lambda data: pickle.dumps([1, 2, 3]),
        lambda data: pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}),
        lambda data: pickle.dumps({"data": np.zeros((2, 3071), np.uint8), "labels": [1, 2]}),
        lambda data: pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2, 3]}),
        lambda data: pickle.dumps({"data": np.zeros((0, 3072), np.uint8), "labels": []}),
    ],
)
def test_a_damaged_pickle_is_refused(tmp_path, damage):
    write_cifar(tmp_path, "cifar-10-batches-py")
    file = tmp_path / "test_batch"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"test_batch is not a file of CIFAR-10's python version .*: copy it again"):
        CifarFiles(tmp_path)


class Call:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("file", ["test", "meta"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_a_program_is_refused(tmp_path, file, protocol):
    write_cifar(tmp_path, "cifar-100-python")
    trace = tmp_path / "trace"
    calls = [
        Call(os.system, f"touch {trace}"),
        Call(eval, f"open({str(trace)!r}, 'w')"),
        Call(np.save, str(trace), [1]),
        Call(np.memmap, str(trace), "uint8", "w+", 0, (4,)),
    ]
    for call in calls:
        (tmp_path / file).write_bytes(pickle.dumps({"data": call}, protocol=protocol))
        with pytest.raises(ValueError, match=r"it holds .*, which CIFAR files do not"):
            CifarFiles(tmp_path)
        assert not list(tmp_path.glob("trace*"))


def test_a_missing_batch_is_named(tmp_path):
    write_cifar(tmp_path, "cifar-10-batches-py")
    (tmp_path / "data_batch_3").unlink()
    assert len(CifarFiles(tmp_path, "test")) == IMAGES
    with pytest.raises(FileNotFoundError, match="data_batch_3 is missing"):
        CifarFiles(tmp_path, "train")


@pytest.mark.parametrize(
    ("layout", "label"),
    [("cifar-10-batches-bin", 10), ("cifar-10-batches-py", 10), ("cifar-100-binary", 100), ("cifar-100-python", 255)],
)
def test_labels_that_cannot_be_are_refused(tmp_path, layout, label):
    _, (file,), classes = LAYOUTS[layout]
    write_cifar(tmp_path, layout)
    rows = random_pixels(2).reshape(2, 3072)
    if file.endswith(".bin"):
        columns = [np.full((2, classes // 90), 0, np.uint8), np.array([[0], [label]], np.uint8), rows]
        (tmp_path / file).write_bytes(np.concatenate(columns, 1).tobytes())
    else:
        (tmp_path / file).write_bytes(python_3_pickle(rows, [0, label], "labels" if classes == 10 else "fine_labels"))
    with pytest.raises(ValueError, match=f"has labels from 0 to {label}: needs 0 to {classes - 1}"):
        CifarFiles(tmp_path)


def test_negative_labels_are_refused(tmp_path):
    (tmp_path / "test_batch").write_bytes(python_3_pickle(random_pixels(2).reshape(2, 3072), [-1, 3], "labels"))
    with pytest.raises(ValueError, match="has labels from -1 to 3: needs 0 to 9"):
        CifarFiles(tmp_path)


def test_what_is_not_cifar_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no CIFAR files: needs test_batch\.bin or test_batch"):
        CifarFiles(tmp_path)
    write_cifar(tmp_path, "cifar-10-batches-bin")
    with pytest.raises(ValueError, match="split 'val': needs 'test' or 'train'"):
        CifarFiles(tmp_path, "val")


# by a word or a path


def test_data_is_opened_by_a_word_or_a_path(tmp_path):
    assert isinstance(open_data(), EmbeddedSample)
    assert isinstance(open_data("sample"), EmbeddedSample)
    written = write_cifar(tmp_path / "cifar", "cifar-100-python")
    for split in ("train", "test"):
        source = open_data(str(tmp_path / "cifar"), split)
        assert isinstance(source, CifarFiles)
        assert np.array_equal(source.labels, written[split][1])
    # a folder called as a file of CIFAR-100's is
    save(tmp_path / "photos" / "test" / "a.png")
    save(tmp_path / "photos" / "other" / "b.png")
    source = open_data(tmp_path / "photos")
    assert isinstance(source, ImageFolder)
    assert source.classes == ["other", "test"]


def test_data_that_is_not_there_is_told_with_what_could_be(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no data at .*nowhere: needs 'sample', a folder of CIFAR files, "):
        open_data(tmp_path / "nowhere")
    save(tmp_path / "a.png")
    with pytest.raises(NotADirectoryError, match="needs a folder of images"):
        open_data(tmp_path / "a.png")
