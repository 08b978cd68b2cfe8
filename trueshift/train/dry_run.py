"""Try a recipe in a minute: its network and pipeline, for one step, on noise in the files of its dataset."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from ..eval.options import inference_device, on_gpu
from ..models import create_model
from ..models.registry import resolve_name
from .config import CLASSES, WITH_MASKS, SegmentationConfig, TrainConfig
from .trainer import train

_SMALLEST_BATCH = 2  # of a pass: batch norm and mixup need two
_CHANNELS = 32  # of a decoder, on a CPU
_IMAGES = 16  # of each split
_SIDE = 64  # of images with masks
_RANDOM = np.random.default_rng(0)


def dry_run(config: TrainConfig, console: Console | None = None) -> int:
    """Do everything a run does once: data, a step, a measurement, a checkpoint, final weights, the protocols."""
    console = console or Console()
    with tempfile.TemporaryDirectory(prefix="trueshift-") as scratch:
        folder = Path(scratch)
        gpu = on_gpu(inference_device(config.device))
        data, workers = _synthetic_data(config, folder / "data"), min(config.data.workers, 1)
        small = replace(
            config,
            data=replace(config.data, path=data, download=False, limit=0, workers=workers),
            model=replace(config.model, start_from=_stand_in(config, folder), pretrained=False),
            segmentation=config.segmentation if gpu else _small_decoder(config),
            evaluate=replace(config.evaluate, batch_size=_SMALLEST_BATCH, limit=_SMALLEST_BATCH),
            log=replace(config.log, every_steps=1, wandb=None),
            output=str(folder / "run"),
            resume="auto",
            batch_size=_SMALLEST_BATCH * config.accumulate,
            # compiling takes minutes, and low precision on a CPU nearly as long
            compile=config.compile and gpu,
            precision=config.precision if gpu else "float32",
            sync_batchnorm=config.sync_batchnorm and gpu,
            max_steps=1,
        )
        code = train(small, console)
    if code == 0:
        console.print("Dry run passed: the network, the data pipeline and a step work.", highlight=False)
    return code


def _synthetic_data(config: TrainConfig, folder: Path) -> str:
    """Write files in the layout the recipe expects; a user's own data is used as it is."""
    kind = config.data.kind
    if kind == "any":
        return config.data.path
    folder.mkdir()
    if kind in WITH_MASKS:
        write_masked_images(folder, kind)
    else:
        (write_image_folders if kind == "imagenet" else write_cifar)(folder, CLASSES[kind])
    return str(folder)


def _small_decoder(config: TrainConfig) -> SegmentationConfig:
    """A thin decoder, as a full one takes a CPU many minutes; existing weights keep theirs."""
    start = config.model.start_from
    if config.task != "segmentation" or (start and Path(start).exists()):
        return config.segmentation
    asked = config.segmentation.decoder
    thin = {key: min(_CHANNELS, asked.get(key, _CHANNELS)) for key in ("channels", "auxiliary_channels")}
    return replace(config.segmentation, decoder={**asked, **thin})


def _stand_in(config: TrainConfig, folder: Path) -> str | None:
    """Untrained weights in place of those that a recipe starts from, if they are not there yet."""
    if not config.model.start_from or Path(config.model.start_from).exists():
        return config.model.start_from
    ordinary = resolve_name(config.model.name).removeprefix("a_")
    classes = CLASSES[config.data.kind] if config.data.kind.startswith("cifar") else 1000
    return str(create_model(ordinary, num_classes=classes).save_pretrained(folder / "start"))


def write_cifar(folder: Path, classes: int) -> None:
    """Images of CIFAR's size and number of classes; torchvision would refuse files with other checksums."""
    arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"] = _RANDOM.integers(0, 256, (_IMAGES, 32, 32, 3), np.uint8)
        arrays[f"y_{split}"] = np.append(_RANDOM.integers(0, classes, _IMAGES - 1), classes - 1)
    np.savez(folder / "cifar.npz", **arrays)  # type: ignore[arg-type]


def write_image_folders(folder: Path, classes: int) -> None:
    """A small image for each class in both splits."""
    for number in range(classes):
        for split in ("train", "val"):
            _save_noise(folder / split / f"n{number:08d}" / "0.png", (40, 48, 3))


# image and label files of each dataset, and the range of classes in the latter
_LAYOUTS = {
    "ade20k": ("images/{long}/ADE_{number}.jpg", "annotations/{long}/ADE_{number}.png", (1, 150)),
    "cityscapes": (
        "leftImg8bit/{split}/ulm/ulm_{number}_leftImg8bit.png",
        "gtFine/{split}/ulm/ulm_{number}_gtFine_labelTrainIds.png",
        (0, 18),
    ),
    "camvid": ("{split}/{number}.png", "{split}annot/{number}.png", (0, 10)),
}


def write_masked_images(folder: Path, kind: str) -> None:
    """ADE20K, Cityscapes or CamVid: training and validation, and CamVid's test split."""
    image, mask, classes = _LAYOUTS[kind]
    splits = {"train": "training", "val": "validation", "test": "testing"}
    if kind != "camvid":
        del splits["test"]  # labels that are not published
    for split, long in splits.items():
        for number in range(_IMAGES):
            names = {"split": split, "long": long, "number": f"{number:06d}"}
            _save_noise(folder / image.format(**names), (_SIDE, _SIDE, 3))
            _save_noise(folder / mask.format(**names), (_SIDE, _SIDE), classes)


def _save_noise(path: Path, shape: tuple[int, ...], levels: tuple[int, int] = (0, 255)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(_RANDOM.integers(levels[0], levels[1] + 1, shape, np.uint8)).save(path)
