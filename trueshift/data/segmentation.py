"""Images with label files, in the layouts of published data sets or in one's own."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .images import EXTENSIONS, decoded, files_below
from .masks import Labels, decode_mask
from .source import IGNORED, Sample, Source, split_names

CAMVID = (
    "Sky", "Building", "Pole", "Road", "Pavement", "Tree", "SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist",
)  # fmt: skip
# the classes that are measured, by their numbers in label files (labelIds)
CITYSCAPES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light",
    20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car", 27: "truck",
    28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip
_CITYSCAPES_KINDS = ("labelTrainIds", "labelIds")  # the first if there are as many: it is made from the other
ADE20K_CLASSES = 150
_LAYOUTS = (
    "images/training with annotations/training (ADE20K), leftImg8bit with gtFine (Cityscapes), train with trainannot "
    "(CamVid), or images/train with masks/train and a classes.txt"
)
_SHOWN = 3  # files in an error message


class UnknownLayout(ValueError):
    """Files that are not images with label files in a known layout."""


@dataclass
class MaskedImages:
    """Images with a label file each."""

    title: str
    classes: list[str] | None
    folder: Path  # where they lie
    pairs: list[tuple[str, str]]  # an image and its label file: their paths inside the folder
    labels: Labels  # what the values of the label files mean

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        """The path of the image inside the folder."""
        return self.pairs[index][0]

    def __getitem__(self, index: int) -> Sample:
        name, label_file = self.pairs[index]
        where = str(self.folder / name)
        # not turned upright: a label file has no orientation tag, its pixels lie as those of the image file do
        image = decoded((self.folder / name).read_bytes(), where, upright=False)
        mask = decode_mask((self.folder / label_file).read_bytes(), str(self.folder / label_file), self.labels)
        if mask.shape != (image.height, image.width):
            raise ValueError(
                f"{where} has {image.height} x {image.width} pixels, its label file {label_file} has "
                f"{mask.shape[0]} x {mask.shape[1]}: needs the same size"
            )
        return Sample(image, name, mask)


def open_scenes(where: str | Path, split: str = "test", classes: Sequence[str] | None = None) -> Source:
    """Images with the class of each pixel, from a folder.

    Args:
        where: ADE20K (``images/training`` and ``annotations/training``, or files directly in both), Cityscapes
            (``leftImg8bit`` and ``gtFine``), CamVid as SegNet has it (``train`` and ``trainannot``), or one's own:
            ``images/train`` and ``masks/train``, or files directly in both, with a ``classes.txt``, one name per line;
            its label files have 0 for the first class, and 255 (65535 for more than 255 classes) is ignored.
        split: ``"train"``, ``"val"`` or ``"test"``. ADE20K and Cityscapes do not publish the labels of their tests:
            there it is the validation. Ignored if files lie in no folder of a split.
        classes: names of one's own classes, if there is no ``classes.txt``.
    """
    split = split_names(split)[0]
    folder = Path(where)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder: needs one; unpack archives first")
    for root in _roots(folder):
        top = _folders(root)
        if {"leftImg8bit", "gtFine"} <= top:
            return _cityscapes(root, split)
        if {"images", "annotations"} <= top:
            return _ade20k(root, split)
        if {"images", "masks"} <= top:
            return _own(root, split, classes, folder.resolve().name)
        if any(f"{name}annot" in top for name in top):
            return _camvid(root, split)
    raise UnknownLayout(f"{folder} is in no known layout of images with label files: needs {_LAYOUTS}")


def _roots(folder: Path) -> Iterator[Path]:
    """The folder itself, then its only folder, and so on: archives often wrap all in one."""
    yield folder
    while len(inside := _folders(folder)) == 1:
        folder = folder / inside.pop()
        yield folder


def _folders(folder: Path) -> set[str]:
    """Names of the folders directly inside one that hold files."""
    parts = (file.relative_to(folder).parts for file in files_below(folder))
    return {first for first, *rest in parts if rest}


# the layouts


def _ade20k(root: Path, split: str) -> MaskedImages:
    word = _split_folder(root, "images", "val" if split == "test" else split)
    pairs = _pairs(root, f"images{word}", f"annotations{word}")
    labels = Labels.numbered(ADE20K_CLASSES, first=1, ignored=(0,))
    return MaskedImages(f"ADE20K{word.replace('/', ' ')}", _ade20k_names(root), root, pairs, labels)


def _ade20k_names(root: Path) -> list[str]:
    """The first name of each class in the table that comes with the data, if it is there."""
    numbers = [str(number) for number in range(1, ADE20K_CLASSES + 1)]
    for file, mark in (("objectInfo150.txt", "\t"), ("objectInfo150.csv", ",")):
        if (root / file).is_file():
            lines = (root / file).read_text("utf-8-sig").strip().splitlines()
            head, *rows = (line.split(mark) for line in lines)
            if [row[0].strip() for row in rows] != numbers:
                raise ValueError(f"{root / file} does not list the classes 1 to {ADE20K_CLASSES}: copy it again")
            return [row[head.index("Name")].replace(";", ",").split(",")[0].strip() for row in rows]
    return [f"class {number}" for number in numbers]


def _cityscapes(root: Path, split: str) -> MaskedImages:
    split = "val" if split == "test" else split  # the labels of the test are not published, all their pixels are void
    counts = {kind: len(_by_key(root, f"gtFine/{split}", f"_gtFine_{kind}.png")) for kind in _CITYSCAPES_KINDS}
    kind = max(counts, key=counts.__getitem__)
    pairs = _pairs(root, f"leftImg8bit/{split}", f"gtFine/{split}", "_leftImg8bit.png", f"_gtFine_{kind}.png")
    if kind == "labelTrainIds":
        labels = Labels.numbered(len(CITYSCAPES), ignored=(-1, 254, 255))
    else:
        void = dict.fromkeys((-1, *range(34), 255), IGNORED)
        labels = Labels({**void, **{number: label for label, number in enumerate(CITYSCAPES)}})
    return MaskedImages(f"Cityscapes {split}", list(CITYSCAPES.values()), root, pairs, labels)


def _camvid(root: Path, split: str) -> MaskedImages:
    word = _split_folder(root, "", split)
    labels = Labels.numbered(len(CAMVID), ignored=(11, 255))
    return MaskedImages(f"CamVid {word}", list(CAMVID), root, _pairs(root, word, f"{word}annot"), labels)


def _own(root: Path, split: str, classes: Sequence[str] | None, title: str) -> MaskedImages:
    listed = root / "classes.txt"
    if not classes and not listed.is_file():
        raise FileNotFoundError(
            f"{listed} is missing: needs the names of the classes, one per line, the first for label 0, or the "
            "argument classes"
        )
    lines = classes or listed.read_text("utf-8-sig").splitlines()
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise ValueError(f"{listed} is empty: needs one name per line")
    word = _split_folder(root, "images", split)
    labels = Labels.numbered(len(names), ignored=(255 if len(names) <= 255 else 65535,))
    pairs = _pairs(root, f"images{word}", f"masks{word}")
    return MaskedImages(title + word.replace("/", " "), names, root, pairs, labels)


# what they share


def _split_folder(root: Path, inside: str, split: str) -> str:
    """The folder of a split, ``"/training"``; nothing if there are images but no folders of splits."""
    found = _folders(root / inside)
    for word in split_names(split):
        if word in found:
            return f"/{word}" if inside else word
    if not inside or found.intersection(split_names("train") + split_names("test")):
        place = f"in {inside}" if inside else "at its top"
        raise ValueError(
            f"{root} has {', '.join(sorted(found)) or 'nothing'} {place}: split {split!r} needs "
            f"one of {', '.join(split_names(split))}"
        )
    return ""


def _pairs(root: Path, images: str, masks: str, image_ending: str = "", mask_ending: str = "") -> list[tuple[str, str]]:
    """Names of images and label files that are called alike but for their endings."""
    of_images, of_masks = _by_key(root, images, image_ending), _by_key(root, masks, mask_ending)
    any_ending = ", ".join(EXTENSIONS)
    if not of_images:
        raise ValueError(f"{root / images} has no images: needs files ending in {image_ending or any_ending}")
    sides = (
        ("image", "a label file", of_images, of_masks, masks, mask_ending),
        ("label file", "an image", of_masks, of_images, images, image_ending),
    )
    for what, missing, these, others, place, ending in sides:
        if alone := [these[key] for key in these if key not in others]:
            some = ", ".join(str(root / file) for file in alone[:_SHOWN])
            raise ValueError(
                f"{len(alone)} {what}{'s' * (len(alone) > 1)} without {missing}, as {some}: needs one of the same "
                f"name in {place}, ending in {ending or any_ending}"
            )
    return [(image, of_masks[key]) for key, image in of_images.items()]


def _by_key(root: Path, folder: str, ending: str) -> dict[str, str]:
    """Files below a folder by what they are called there without their ending, by default that of any image."""
    found: dict[str, str] = {}
    for name in sorted(file.relative_to(root).as_posix() for file in files_below(root / folder)):
        suffix = ending or os.path.splitext(name)[1]
        if name.endswith(suffix) and (ending or suffix.lower() in EXTENSIONS):
            key = name.removesuffix(suffix).removeprefix(folder)
            if key in found:
                raise ValueError(f"{root / found[key]} and {name} are called alike: needs one for each name")
            found[key] = name
    return found
