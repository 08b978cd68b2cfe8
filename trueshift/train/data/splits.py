"""The pictures to learn from and those to measure on, checked before anything is computed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...data import Source, open_data
from ...data.arrays import EmbeddedSample
from ...data.download import SOURCES, download
from ...data.subset import evenly_spread, hold_out
from ..config import DataConfig, EvaluateConfig

_CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}


@dataclass(frozen=True)
class TrainingData:
    """Two sources with the same classes."""

    train: Source
    test: Source
    classes: list[str]

    @property
    def identity(self) -> dict[str, Any]:
        """What must stay the same for a checkpoint to go on."""
        return {"images": len(self.train), "classes": len(self.classes)}


def open_training_data(config: DataConfig, evaluate: EvaluateConfig | None = None, fetch: bool = True) -> TrainingData:
    """What a configuration names; whatever is wrong with it is told now, not after the first epoch.

    Args:
        fetch: whether this process is the one that may download.
    """
    if config.download and fetch:
        download(config.kind, Path(config.path))
    elif config.kind in SOURCES and not Path(config.path).exists():
        raise FileNotFoundError(
            f"there is no data at {config.path}: `trueshift download {config.kind} --folder {config.path}` fetches it, "
            "or name where it is with --data.path"
        )
    train = open_data(config.path, config.train_split)
    if config.holdout:
        train, test = hold_out(train, config.holdout)
    else:
        test = open_data(config.path, config.test_split)
        if _same(train, test):
            raise ValueError(
                f"{config.path} has no split to measure on: needs folders train and val inside, or "
                "--data.holdout 0.2 to keep a part of the images for that"
            )
    for source in (train, test):
        if not source.classes:
            raise ValueError(f"{source.title} has no classes: needs one folder of images per class")
    if train.classes != test.classes:
        raise ValueError(_difference(train, test))
    wanted = _CLASSES.get(config.kind)
    if wanted is not None and len(train.classes or []) != wanted:
        raise ValueError(
            f"{config.path} has {len(train.classes or [])} classes: this recipe is for {config.kind}, which has "
            f"{wanted}; for your own data use --data.kind any"
        )
    train = evenly_spread(train, config.limit)
    test = evenly_spread(test, evaluate.limit if evaluate else 0)
    return TrainingData(train, test, list(train.classes or []))


def _same(train: Source, test: Source) -> bool:
    """Whether both splits are the same pictures."""
    if isinstance(train, EmbeddedSample):
        return True
    path = getattr(train, "path", None)
    return path is not None and path == getattr(test, "path", None) and train.name(0) == test.name(0)


def _difference(train: Source, test: Source) -> str:
    first, second = set(train.classes or []), set(test.classes or [])
    parts = [f"only to learn from: {', '.join(sorted(first - second)[:5])}"] if first - second else []
    parts += [f"only to measure on: {', '.join(sorted(second - first)[:5])}"] if second - first else []
    told = "; ".join(parts) or "the same names in another order"
    return (
        f"{len(train.classes or [])} classes to learn from and {len(test.classes or [])} to measure on are not the "
        f"same ({told}): needs the same folders in both"
    )
