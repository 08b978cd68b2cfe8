"""Pictures and label files side by side, in the layouts that data sets are published in, or in one's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .file_tree import FileTree
from .images import EXTENSIONS, decoded
from .masks import Labels, decode_mask
from .source import IGNORED, Sample, Source

# what folders of a split may be called, the best first; where nothing is kept for testing, validation is
SCENE_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "validation"),
    "test": ("test", "testing", "val", "validation"),
}
CAMVID = (
    "Sky", "Building", "Pole", "Road", "Pavement", "Tree", "SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist",
)  # fmt: skip
# the classes that are measured, by the numbers that label files (labelIds) have for them
CITYSCAPES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light",
    20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car", 27: "truck",
    28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip
_CITYSCAPES_KINDS = ("labelTrainIds", "labelIds")  # the first where there are as many: it is made from the other
ADE20K_CLASSES = 150
_LAYOUTS = (
    "images/training with annotations/training (ADE20K), leftImg8bit with gtFine (Cityscapes), train with trainannot "
    "(CamVid), or images/train with masks/train and a classes.txt"
)
_SHOWN = 3  # files in an error message


class UnknownLayout(ValueError):
    """Files that may be anything but pictures with label files."""


@dataclass
class SceneFiles:
    """Pictures with a label file each.

    Args:
        files: where they lie.
        pairs: names of a picture and of its label file.
        labels: what the values of the label files mean.
    """

    title: str
    classes: list[str] | None
    files: FileTree
    pairs: list[tuple[str, str]]
    labels: Labels

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        """The path of the picture inside the folder."""
        return self.pairs[index][0]

    def __getitem__(self, index: int) -> Sample:
        picture, label_file = self.pairs[index]
        where = self.files.where(picture)
        # not turned upright as a photograph by itself is: a label file has no note of how the camera was held, its
        # pixels lie as those of the picture's file do
        image = decoded(self.files.read(picture), where, upright=False)
        mask = decode_mask(self.files.read(label_file), self.files.where(label_file), self.labels)
        if mask.shape != (image.height, image.width):
            raise ValueError(
                f"{where} has {image.height} x {image.width} pixels, its label file {label_file} has "
                f"{mask.shape[0]} x {mask.shape[1]}: needs the same size"
            )
        return Sample(image, picture, mask)


def open_scenes(where: str | Path, split: str = "test", classes: Sequence[str] | None = None) -> Source:
    """Pictures with the class of each pixel, from a folder or a zip.

    Args:
        where: ADE20K (``images/training`` and ``annotations/training``, or files directly in both), Cityscapes
            (``leftImg8bit`` and ``gtFine``), CamVid as SegNet has it (``train`` and ``trainannot``), or one's own:
            ``images/train`` and ``masks/train``, or files directly in both, with a ``classes.txt``, one name per line;
            its label files have 0 for the first class, and 255 (65535 for more than 255 classes) is ignored.
        split: ``"train"``, ``"val"`` or ``"test"``. ADE20K and Cityscapes keep the labels of their tests to
            themselves: there it is the validation. Without meaning where files lie in no folder of a split.
        classes: names for one's own classes, where there is no ``classes.txt``.
    """
    if split not in SCENE_SPLITS:
        raise ValueError(f"split {split!r}: needs one of {', '.join(SCENE_SPLITS)}")
    tree = FileTree.at(where)
    for root in tree.roots():
        top = root.folders()
        if {"leftImg8bit", "gtFine"} <= top:
            return _cityscapes(root, split)
        if {"images", "annotations"} <= top:
            return _ade20k(root, split)
        if {"images", "masks"} <= top:
            return _own(root, split, classes)
        if any(f"{folder}annot" in top for folder in top):
            return _camvid(root, split)
    raise UnknownLayout(f"{tree.path} is in no known layout of pictures with label files: needs {_LAYOUTS}")


# the layouts


def _ade20k(root: FileTree, split: str) -> SceneFiles:
    word = _split_folder(root, "images", "val" if split == "test" else split)
    pairs = _pairs(root, f"images{word}", f"annotations{word}")
    title = f"ADE20K{word.replace('/', ' ')}"
    labels = Labels.numbered(ADE20K_CLASSES, first=1, ignored=(0,))
    return SceneFiles(title, _ade20k_names(root), root, pairs, labels)


def _ade20k_names(root: FileTree) -> list[str]:
    """From the table that comes with the data, in its columns for tabs or for commas; the first name of each class."""
    for file, mark in (("objectInfo150.txt", "\t"), ("objectInfo150.csv", ",")):
        if file in root.names:
            lines = root.read(file).decode("utf-8-sig").strip().splitlines()
            rows = [line.split(mark) for line in lines[1:]]
            if [row[0].strip() for row in rows] != [str(number) for number in range(1, ADE20K_CLASSES + 1)]:
                raise ValueError(f"{root.where(file)} does not list the classes 1 to {ADE20K_CLASSES}: copy it again")
            last = lines[0].split(mark).index("Name")
            return [row[last].replace(";", ",").split(",")[0].strip() for row in rows]
    return [f"class {number}" for number in range(1, ADE20K_CLASSES + 1)]


def _cityscapes(root: FileTree, split: str) -> SceneFiles:
    split = "val" if split == "test" else split  # the labels of the test are not published, all their pixels are void
    counts = {kind: len(_by_key(root, f"gtFine/{split}", f"_gtFine_{kind}.png")) for kind in _CITYSCAPES_KINDS}
    kind = max(counts, key=counts.__getitem__)
    pairs = _pairs(root, f"leftImg8bit/{split}", f"gtFine/{split}", "_leftImg8bit.png", f"_gtFine_{kind}.png")
    if kind == "labelTrainIds":
        labels = Labels.numbered(len(CITYSCAPES), ignored=(-1, 254, 255))
    else:
        void = dict.fromkeys((-1, *range(34), 255), IGNORED)
        labels = Labels({**void, **{number: label for label, number in enumerate(CITYSCAPES)}})
    return SceneFiles(f"Cityscapes {split}", list(CITYSCAPES.values()), root, pairs, labels)


def _camvid(root: FileTree, split: str) -> SceneFiles:
    word = _split_folder(root, "", split)
    pairs = _pairs(root, word, f"{word}annot")
    return SceneFiles(f"CamVid {word}", list(CAMVID), root, pairs, Labels.numbered(len(CAMVID), ignored=(11, 255)))


def _own(root: FileTree, split: str, classes: Sequence[str] | None) -> SceneFiles:
    names = list(classes) if classes else _own_names(root)
    word = _split_folder(root, "images", split)
    pairs = _pairs(root, f"images{word}", f"masks{word}")
    title = f"{root.path.resolve().stem}{word.replace('/', ' ')}"
    ignored = 255 if len(names) <= 255 else 65535
    return SceneFiles(title, names, root, pairs, Labels.numbered(len(names), ignored=(ignored,)))


def _own_names(root: FileTree) -> list[str]:
    if "classes.txt" not in root.names:
        raise FileNotFoundError(
            f"{root.where('classes.txt')} is missing: needs the names of the classes, one per line, the first for "
            "label 0, or the argument classes"
        )
    lines = root.read("classes.txt").decode("utf-8-sig").splitlines()
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise ValueError(f"{root.where('classes.txt')} is empty: needs one name per line")
    return names


# what they share


def _split_folder(root: FileTree, inside: str, split: str) -> str:
    """The folder of a split, ``"/training"``; nothing if there are pictures but no folders of splits."""
    slash = "/" if inside else ""
    found = root.folders(inside)
    for word in SCENE_SPLITS[split]:
        if word in found:
            return slash + word
    of_others = found.intersection(word for words in SCENE_SPLITS.values() for word in words)
    if of_others or not inside:
        place = f"in {inside}" if inside else "at its top"
        raise ValueError(
            f"{root.where('.')} has {', '.join(sorted(found)) or 'nothing'} {place}: split {split!r} needs "
            f"one of {', '.join(SCENE_SPLITS[split])}"
        )
    return ""


def _pairs(
    root: FileTree, pictures: str, masks: str, picture_ending: str = "", mask_ending: str = ""
) -> list[tuple[str, str]]:
    """Names of pictures and label files that are called alike but for their endings."""
    of_pictures = _by_key(root, pictures, picture_ending)
    of_masks = _by_key(root, masks, mask_ending)
    if not of_pictures:
        raise ValueError(f"{root.where(pictures)} has no pictures: needs files ending in {_ending(picture_ending)}")
    alone = [of_pictures[key] for key in of_pictures if key not in of_masks]
    if alone:
        raise ValueError(
            f"{_count(alone, 'picture')} without a label file, as {_some(root, alone)}: needs one of the same name in "
            f"{masks}, ending in {_ending(mask_ending)}"
        )
    alone = [of_masks[key] for key in of_masks if key not in of_pictures]
    if alone:
        raise ValueError(
            f"{_count(alone, 'label file')} without a picture, as {_some(root, alone)}: needs one of the same name in "
            f"{pictures}, ending in {_ending(picture_ending)}"
        )
    return [(picture, of_masks[key]) for key, picture in of_pictures.items()]


def _by_key(root: FileTree, folder: str, ending: str) -> dict[str, str]:
    """Files below a folder by what they are called there without their ending."""
    start = folder + "/"
    found: dict[str, str] = {}
    for name in root.names:
        if not name.startswith(start) or not _ends(name, ending):
            continue
        inside = name.removeprefix(start)
        key = inside.removesuffix(ending) if ending else str(PurePosixPath(inside).with_suffix(""))
        if key in found:
            raise ValueError(f"{root.where(found[key])} and {name} are called alike: needs one for each name")
        found[key] = name
    return found


def _ends(name: str, ending: str) -> bool:
    return name.endswith(ending) if ending else PurePosixPath(name).suffix.lower() in EXTENSIONS


def _ending(ending: str) -> str:
    return ending or ", ".join(EXTENSIONS)


def _count(files: Sequence[str], what: str) -> str:
    return f"{len(files)} {what}{'s' * (len(files) > 1)}"


def _some(root: FileTree, files: Sequence[str]) -> str:
    return ", ".join(root.where(file) for file in files[:_SHOWN])
