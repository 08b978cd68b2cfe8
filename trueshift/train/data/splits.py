"""The samples to train on and those to measure on, checked before anything is computed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...data import Source, open_data
from ...data.download import SOURCES, download
from ...data.segmentation import open_scenes
from ...data.subset import evenly_spread, hold_out
from ..config import CLASSES, TrainConfig


@dataclass(frozen=True)
class TrainingData:
    """Two sources with the same classes."""

    train: Source
    test: Source
    classes: list[str]

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change when a checkpoint is resumed."""
        return {"images": len(self.train), "classes": len(self.classes)}


def open_training_data(config: TrainConfig, fetch: bool = True) -> TrainingData:
    """Open the data of a configuration, downloaded if this process may ``fetch``; report what is wrong with it."""
    wanted, dense = config.data, config.task == "segmentation"
    if wanted.download and fetch:
        download(wanted.kind, Path(wanted.path))
    elif (dense or wanted.kind in SOURCES) and not Path(wanted.path).exists():
        fetched = f"`trueshift download {wanted.kind} --folder {wanted.path}` fetches it, or " * (not dense)
        raise FileNotFoundError(f"there is no data at {wanted.path}: {fetched}name where it is with --data.path")
    opened = open_scenes if dense else open_data
    train = opened(wanted.path, wanted.train_split)
    if wanted.holdout:
        train, test = hold_out(train, wanted.holdout)
    else:
        test = opened(wanted.path, wanted.test_split)
        if (train.title, train.name(0)) == (test.title, test.name(0)):
            raise ValueError(
                f"{wanted.path} has the same images to learn from and to measure on: needs folders such as train and "
                "val inside, or --data.holdout 0.2 to keep a part of the images for that"
            )
    for source in (train, test):
        if not source.classes:
            raise ValueError(f"{source.title} has no classes: needs one folder of images per class")
    classes, known = list(train.classes or []), CLASSES.get(wanted.kind)
    if classes != test.classes:
        there = {*(test.classes or [])}
        raise ValueError(
            f"{len(classes)} classes to learn from and {len(there)} to measure on are not the same: needs the same "
            f"folders, in the same order; only to learn from: {sorted({*classes} - there)[:5]}, only to measure on: "
            f"{sorted(there - {*classes})[:5]}"
        )
    if known not in (None, len(classes)):
        raise ValueError(
            f"{wanted.path} has {len(classes)} classes: this recipe is for {wanted.kind}, which has {known}; for your "
            "own data use --data.kind any"
        )
    return TrainingData(evenly_spread(train, wanted.limit), evenly_spread(test, config.evaluate.limit), classes)
