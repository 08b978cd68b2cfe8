"""Images with label files in every known layout."""

import pickle
from itertools import product

import numpy as np
import pytest
from PIL import Image

from trueshift.data import EmbeddedSample
from trueshift.data.images import png_bytes
from trueshift.data.segmentation import open_scenes
from trueshift.data.source import IGNORED, Source, WithoutTargets


def picture(path, seed=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return pixels


def labels(path, values=(0, 1)):
    path.parent.mkdir(parents=True, exist_ok=True)
    written = np.resize(np.array(values, np.uint8), (4, 6))
    Image.fromarray(written).save(path)
    return written


# images and label files of a split, the splits that stand for train, val and test, the values of label files, their
# classes and how many there are
LAYOUTS = {
    "ADE20K": ("images/{}/{}.jpg", "annotations/{}/{}.png", ("training", "validation", "validation"),
               [0, 1, 150], [IGNORED, 0, 149], 150),
    "Cityscapes": ("leftImg8bit/{}/ulm/{}_leftImg8bit.png", "gtFine/{}/ulm/{}_gtFine_labelIds.png",
                   ("train", "val", "val"), [7, 33, 0, 14], [0, 18, IGNORED, IGNORED], 19),
    "CamVid": ("{}/{}.png", "{}annot/{}.png", ("train", "val", "test"), [0, 10, 11], [0, 10, IGNORED], 11),
    "mine": ("images/{}/street/{}.jpg", "masks/{}/street/{}.png", ("train", "val", "val"),
             [0, 1, 255], [0, 1, IGNORED], 2),
}  # fmt: skip


def write(folder, layout):
    image, label_file, splits, values, *_ = LAYOUTS[layout]
    for split, name in product(splits, "ab"):
        picture(folder / image.format(split, name))
        labels(folder / label_file.format(split, name), values)
    (folder / "classes.txt").write_text("thing\nother thing\n")  # also beside layouts that have their own
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_images_and_classes(tmp_path, layout):
    image, _, splits, _, classes, count = LAYOUTS[layout]
    write(tmp_path / "mine" / "release", layout)  # archives often wrap all in a folder
    for asked, split in zip(("train", "val", "test"), splits, strict=True):
        source = pickle.loads(pickle.dumps(open_scenes(tmp_path / "mine", asked)))
        assert isinstance(source, Source)
        assert (source.title.split()[0], len(source.classes)) == (layout, count)
        assert [source.name(index) for index in range(len(source))] == [image.format(split, name) for name in "ab"]
        scene = source[1]
        assert scene.name == source.name(1)
        assert (scene.image.mode, scene.image.size) == ("RGB", (6, 4))
        assert scene.target.dtype == np.int32
        assert np.array_equal(scene.target, np.resize(classes, (4, 6)))


def test_names_of_classes(tmp_path):
    assert open_scenes(write(tmp_path / "mine", "mine")).classes == ["thing", "other thing"]
    assert open_scenes(write(tmp_path / "cities", "Cityscapes")).classes[::18] == ["road", "bicycle"]
    ade = write(tmp_path / "ade", "ADE20K")
    assert open_scenes(ade).classes[::149] == ["class 1", "class 150"]
    lines = [f"{number}\t0.1\t7\t8\tname {number}, other name" for number in range(1, 151)]
    (ade / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tTrain\tVal\tName", *lines]))
    assert open_scenes(ade).classes[::149] == ["name 1", "name 150"]
    (ade / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tTrain\tVal\tName", *lines[:70]]))
    with pytest.raises(ValueError, match=r"objectInfo150\.txt does not list the classes 1 to 150"):
        open_scenes(ade)


def test_cityscapes_by_the_numbers_of_training(tmp_path):
    only = open_scenes(write(tmp_path, "Cityscapes"), "train")
    first, second = (tmp_path / mask.replace("labelIds", "labelTrainIds") for _, mask in only.pairs)
    labels(first, [0, 18, 255])
    assert np.array_equal(open_scenes(tmp_path, "train")[0].target, only[0].target)  # not all are converted yet
    labels(second, [0, 18, 255])
    assert np.array_equal(open_scenes(tmp_path, "train")[0].target, np.resize([0, 18, IGNORED], (4, 6)))


def test_files_without_folders_of_splits_are_of_any_split_and_need_names_of_classes(tmp_path):
    picture(tmp_path / "images" / "a.jpg")
    labels(tmp_path / "masks" / "a.png")
    (tmp_path / "images" / "again").symlink_to(tmp_path)  # without end
    for split in ("train", "val", "test"):
        source = open_scenes(tmp_path, split, classes=["one", "two"])
        assert (source.name(0), source.classes) == ("images/a.jpg", ["one", "two"])
    with pytest.raises(FileNotFoundError, match=r"classes\.txt is missing: needs the names .* or the argument classes"):
        open_scenes(tmp_path)
    (tmp_path / "classes.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"classes\.txt is empty"):
        open_scenes(tmp_path)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ([f"test/{name}.png" for name in "vwxyz"], r"5 images .*/v\.png, .*/x\.png: needs one .* in testannot"),
        (["testannot/q.png"], r"1 label file without an image, as .*testannot/q\.png: needs one .* in test,"),
        (["test/a.jpg"], r"a\.jpg and test/a\.png are called alike"),
    ],
)
def test_files_alone_are_named(tmp_path, added, message):
    write(tmp_path, "CamVid")
    for file in added:
        (labels if "annot" in file else picture)(tmp_path / file)
    with pytest.raises(ValueError, match=message):
        open_scenes(tmp_path)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("trainannot/a.png", lambda data: data[:50], r"trainannot/a\.png is not whole"),
        ("train/a.png", lambda data: b"nothing", r"train/a\.png is not an image that Pillow knows"),
        ("trainannot/a.png", lambda data: png_bytes(Image.new("L", (3, 2))), "has 2 x 3: needs the same size"),
    ],
)
def test_damaged_files_are_named_when_they_are_read_and_others_read(tmp_path, file, damage, message):
    write(tmp_path, "CamVid")
    (tmp_path / file).write_bytes(damage((tmp_path / file).read_bytes()))
    source = open_scenes(tmp_path, "train")
    with pytest.raises(ValueError, match=message):
        source[0]
    assert source[1].target is not None


def test_a_photograph_lies_as_its_label_file_does(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, were it a photograph by itself
    pixels = picture(tmp_path / "images" / "a.png", exif=exif)
    written = labels(tmp_path / "masks" / "a.png", [0, 1, 0, 0, 1])
    scene = open_scenes(tmp_path, classes=["a", "b"])[0]
    assert np.array_equal(scene.image, pixels)
    assert np.array_equal(scene.target, written)


def test_images_are_scenes_of_which_nothing_is_known():
    sample = EmbeddedSample()
    scenes = WithoutTargets(sample)
    assert isinstance(scenes, Source)
    assert (len(scenes), scenes.title, scenes.classes) == (400, sample.title, None)
    assert scenes[3].name == scenes.name(3) == sample.name(3)
    assert scenes[3].target is None
    assert np.array_equal(scenes[3].image, sample[3].image)
