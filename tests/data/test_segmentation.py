"""Images with label files in every known layout."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from trueshift.data import EmbeddedSample
from trueshift.data.images import png_bytes
from trueshift.data.segmentation import CAMVID, CITYSCAPES, open_scenes
from trueshift.data.source import IGNORED, Sample, Source, WithoutTargets

SHARED = Path(__file__).parents[3] / "shared" / "data"


def picture(path, size=(6, 4), seed=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return pixels


def labels(path, values=(0, 1), size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    written = np.resize(np.array(values, np.uint8), (size[1], size[0]))
    Image.fromarray(written).save(path)
    return written


def ade20k(folder):
    for split, name in [("training", "ADE_train_00000001"), ("validation", "ADE_val_00000002")]:
        picture(folder / "images" / split / f"{name}.jpg")
        labels(folder / "annotations" / split / f"{name}.png", [0, 1, 150])


def cityscapes(folder):
    for split, city in [("train", "aachen"), ("train", "bonn"), ("val", "ulm"), ("test", "rome")]:
        start = f"{split}/{city}/{city}_000001_000019"
        picture(folder / "leftImg8bit" / f"{start}_leftImg8bit.png")
        labels(folder / "gtFine" / f"{start}_gtFine_labelIds.png", [7, 33, 0, 14])
        picture(folder / "gtFine" / f"{start}_gtFine_color.png")
        labels(folder / "gtFine" / f"{start}_gtFine_instanceIds.png", [99])
        (folder / "gtFine" / f"{start}_gtFine_polygons.json").write_text("{}")


def camvid(folder):
    for split, names in {"train": ("a", "b"), "val": ("c",), "test": ("d",)}.items():
        for name in names:
            picture(folder / split / f"{name}.png")
            labels(folder / f"{split}annot" / f"{name}.png", [0, 10, 11])
    (folder / "classes.txt").write_text("0 sky\n1 building\n(11 = unlabelled -> ignore)\n")


def own(folder):
    for split in ("train", "val"):
        picture(folder / "images" / split / "street" / "a.jpg")
        labels(folder / "masks" / split / "street" / "a.png", [0, 1, 255])
    (folder / "classes.txt").write_text("thing\nother thing\n")


LAYOUTS = {"ADE20K": ade20k, "Cityscapes": cityscapes, "CamVid": camvid, "mine": own}
FIRST_ROWS = {  # of the label files above, as classes
    "ADE20K": [IGNORED, 0, 149],
    "Cityscapes": [0, 18, IGNORED, IGNORED],
    "CamVid": [0, 10, IGNORED],
    "mine": [0, 1, IGNORED],
}
CITIES = {name: f"{name}_000001_000019_leftImg8bit.png" for name in ("aachen", "bonn", "ulm")}
NAMES = {  # of images in train, val and test; without labels for the last, val stands in
    "ADE20K": (["images/training/ADE_train_00000001.jpg"], *[["images/validation/ADE_val_00000002.jpg"]] * 2),
    "Cityscapes": (
        [f"leftImg8bit/train/{city}/{CITIES[city]}" for city in ("aachen", "bonn")],
        *[[f"leftImg8bit/val/ulm/{CITIES['ulm']}"]] * 2,
    ),
    "CamVid": (["train/a.png", "train/b.png"], ["val/c.png"], ["test/d.png"]),
    "mine": (["images/train/street/a.jpg"], *[["images/val/street/a.jpg"]] * 2),
}


@pytest.mark.parametrize("how", ["folder", "wrapped"])
@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_images_and_classes(tmp_path, layout, split, how):
    folder = tmp_path / "mine"
    LAYOUTS[layout](folder / "release" if how == "wrapped" else folder)
    source = open_scenes(folder, split)
    assert isinstance(source, Source)
    assert source.title.split()[0] == layout
    assert [source.name(index) for index in range(len(source))] == NAMES[layout][("train", "val", "test").index(split)]
    for index in range(len(source)):
        scene = source[index]
        assert scene.name == source.name(index)
        assert (scene.image.mode, scene.image.size) == ("RGB", (6, 4))
        assert scene.target.dtype == np.int32
        assert np.array_equal(scene.target, np.resize(FIRST_ROWS[layout], (4, 6)))
        assert scene.target.max() < len(source.classes)


def test_names_of_classes(tmp_path):
    for layout, write in LAYOUTS.items():
        write(tmp_path / layout)
    assert open_scenes(tmp_path / "CamVid").classes == list(CAMVID)
    assert open_scenes(tmp_path / "mine").classes == ["thing", "other thing"]
    cities = open_scenes(tmp_path / "Cityscapes").classes
    assert (len(cities), cities[0], cities[18]) == (19, "road", "bicycle")
    ade = tmp_path / "ADE20K"
    assert open_scenes(ade).classes[::149] == ["class 1", "class 150"]
    lines = [f"{number}\t0.1\t7\t8\tname {number}, other name" for number in range(1, 151)]
    (ade / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tTrain\tVal\tName", *lines]))
    assert open_scenes(ade).classes[::149] == ["name 1", "name 150"]
    (ade / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tTrain\tVal\tName", *lines[:70]]))
    with pytest.raises(ValueError, match=r"objectInfo150\.txt does not list the classes 1 to 150"):
        open_scenes(ade)


def test_cityscapes_by_the_numbers_of_training(tmp_path):
    cityscapes(tmp_path)
    only = open_scenes(tmp_path, "train")
    assert only.pairs[0][1].endswith("_labelIds.png")
    first, second = (tmp_path / mask.replace("labelIds", "labelTrainIds") for _, mask in only.pairs)
    labels(first, [0, 18, 255])
    assert np.array_equal(open_scenes(tmp_path, "train")[0].target, only[0].target)  # not all are converted yet
    labels(second, [0, 18, 255])
    source = open_scenes(tmp_path, "train")
    assert source.pairs[0][1].endswith("_labelTrainIds.png")
    assert np.array_equal(source[0].target, np.resize([0, 18, IGNORED], (4, 6)))
    assert len(CITYSCAPES) == 19


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


def test_files_alone_are_named(tmp_path):
    camvid(tmp_path)
    for name in "vwxyz":
        picture(tmp_path / "test" / f"{name}.png")
    message = r"5 images without a label file, as .*test/v\.png, .*w\.png, .*x\.png: needs one .* in testannot"
    with pytest.raises(ValueError, match=message):
        open_scenes(tmp_path)
    for name in "vwxyzq":
        labels(tmp_path / "testannot" / f"{name}.png")
    message = r"1 label file without an image, as .*testannot/q\.png: needs one of the same name in test"
    with pytest.raises(ValueError, match=message):
        open_scenes(tmp_path)
    picture(tmp_path / "test" / "q.jpg")
    picture(tmp_path / "test" / "q.png")
    with pytest.raises(ValueError, match=r"q\.jpg and test/q\.png are called alike"):
        open_scenes(tmp_path)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("trainannot/a.png", lambda data: data[:50], r"trainannot/a\.png is not whole"),
        ("train/a.png", lambda data: b"nothing", r"train/a\.png is not an image that Pillow knows"),
        (
            "trainannot/a.png",
            lambda data: png_bytes(Image.new("L", (3, 2))),
            r"train/a\.png has 4 x 6 pixels, its label file trainannot/a\.png has 2 x 3: needs the same size",
        ),
    ],
)
def test_damaged_files_are_named_when_they_are_read_and_others_read(tmp_path, file, damage, message):
    camvid(tmp_path)
    (tmp_path / file).write_bytes(damage((tmp_path / file).read_bytes()))
    source = open_scenes(tmp_path, "train")
    with pytest.raises(ValueError, match=message):
        source[0]
    assert source[1].target is not None


def test_processes_read_the_same_as_one(tmp_path):
    folder = tmp_path / "data"
    for number in range(24):
        picture(folder / "images" / f"{number:02}.png", seed=number)
        labels(folder / "masks" / f"{number:02}.png", [number % 2, 1])
    (folder / "classes.txt").write_text("a\nb\n")
    source = open_scenes(folder)
    here = [source[index] for index in range(len(source))]
    assert [scene.name for scene in here] == [f"images/{number:02}.png" for number in range(24)]
    forked = list(DataLoader(source, batch_size=None, num_workers=2, collate_fn=lambda scene: scene))
    pickled = pickle.loads(pickle.dumps(source))
    for index, (one, other) in enumerate(zip(here, forked, strict=True)):
        for scene in (other, pickled[index]):
            assert isinstance(scene, Sample)
            assert np.array_equal(one.image, scene.image)
            assert np.array_equal(one.target, scene.target)


def test_a_photograph_lies_as_its_label_file_does(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, were it a photograph by itself
    pixels = picture(tmp_path / "images" / "a.png", exif=exif)
    written = labels(tmp_path / "masks" / "a.png", [0, 1, 0, 0, 1])
    scene = open_scenes(tmp_path, classes=["a", "b"])[0]
    assert np.array_equal(scene.image, pixels)
    assert np.array_equal(scene.target, written)


def test_what_is_in_no_layout_is_reported_with_those_there_are(tmp_path):
    picture(tmp_path / "cats" / "a.png")
    with pytest.raises(ValueError, match=r"is in no known layout .*: needs images/training with annotations/training"):
        open_scenes(tmp_path)
    (tmp_path / "data.zip").write_bytes(b"")
    for name in ("nowhere", "data.zip"):
        with pytest.raises(NotADirectoryError, match=f"{name} is not a folder: needs one; unpack archives first"):
            open_scenes(tmp_path / name)
    camvid(tmp_path / "camvid")
    with pytest.raises(ValueError, match="split 'all': needs one of train, "):
        open_scenes(tmp_path / "camvid", "all")
    for file in (tmp_path / "camvid" / "val").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=r"camvid has test, .*: split 'val' needs one of val, valid, validation"):
        open_scenes(tmp_path / "camvid", "val")


def test_images_are_scenes_of_which_nothing_is_known():
    sample = EmbeddedSample()
    scenes = WithoutTargets(sample)
    assert isinstance(scenes, Source)
    assert (len(scenes), scenes.title, scenes.classes) == (400, sample.title, None)
    assert scenes[3].name == scenes.name(3) == sample.name(3)
    assert scenes[3].target is None
    assert np.array_equal(scenes[3].image, sample[3].image)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"needs CamVid and scenes of ADE20K in {SHARED}")
def test_real_scenes_are_read(tmp_path):
    for name in ("camvid_480x360_q85", "ade20k_samples"):
        shutil.unpack_archive(SHARED / f"{name}.zip", tmp_path / name)
    counts = {"train": 367, "val": 101, "test": 233}
    for split, count in counts.items():
        source = open_scenes(tmp_path / "camvid_480x360_q85", split)
        assert (len(source), source.title) == (count, f"CamVid {split}")
        scene = source[count // 2]
        assert scene.image.size == (480, 360)
        assert set(np.unique(scene.target)) <= {IGNORED, *range(11)}
        assert (scene.target[-1] == CAMVID.index("Road")).mean() > 0.3  # cars drive on it
    source = open_scenes(tmp_path / "ade20k_samples")
    assert (len(source), source.classes[:3], source.classes[149]) == (4, ["wall", "building", "sky"], "flag")
    for index in range(4):
        assert (source[index].target != IGNORED).mean() > 0.5
