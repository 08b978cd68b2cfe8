"""Try a recipe in a minute: its network and pipeline, for one step, on noise in the files of its dataset."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from ..eval.options import inference_device, on_gpu
from ..models import create_model
from ..models.registry import resolve_name
from .config import CLASSES, WITH_MASKS, SegmentationConfig, TrainConfig
from .cuda_graph import WARM_UP
from .trainer import train

_SMALLEST_BATCH = 2  # of a pass: batch norm and mixup need two
_CHANNELS = 32  # of a decoder, on a CPU
_IMAGES = 16  # of each split
_SIDE = 64  # of images
_RANDOM = np.random.default_rng(0)


def dry_run(config: TrainConfig, console: Console | None = None) -> int:
    """Do everything a run does once: data, a step, a measurement, a checkpoint, final weights, the protocols."""
    console = console or Console()
    if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ValueError(f"a dry run has one process, not {processes}: leave out torchrun")
    with tempfile.TemporaryDirectory(prefix="trueshift-") as scratch:
        folder = Path(scratch)
        gpu = on_gpu(inference_device(config.device))
        data, workers = _synthetic_data(config, folder / "data"), min(config.data.workers, 1)
        start, teacher = (_stand_in(each, config, folder) for each in (config.model.start_from, config.distill.teacher))
        small = replace(
            config,
            data=replace(config.data, path=data, download=False, limit=0, workers=workers),
            model=replace(config.model, start_from=start, pretrained=False),
            distill=replace(config.distill, teacher=teacher),
            segmentation=config.segmentation if gpu else _small_decoder(config),
            evaluate=replace(config.evaluate, batch_size=_SMALLEST_BATCH, limit=_SMALLEST_BATCH),
            log=replace(config.log, every_steps=1, wandb=None),
            output=str(folder / "run"),
            resume="auto",
            batch_size=_SMALLEST_BATCH * config.accumulate,
            # compiling takes minutes, and low precision on a CPU nearly as long
            compile=config.compile and gpu,
            cuda_graph=config.cuda_graph and gpu,
            precision=config.precision if gpu else "float32",
            sync_batchnorm=config.sync_batchnorm and gpu,
            max_steps=WARM_UP + 1 if config.cuda_graph and gpu else 1,
        )
        code = train(small, console)
    if code == 0:
        console.print("Dry run passed: the network, the data pipeline and a step work.", highlight=False)
    return code


def _synthetic_data(config: TrainConfig, folder: Path) -> str:
    """Write files in the layout the recipe expects; a user's own data is used as it is."""
    kind, path = config.data.kind, config.data.path
    if config.task == "fields" and not Path(path).exists():
        return str(write_fields(folder))
    if kind == "any":
        return path
    folder.mkdir()
    if kind.startswith("cifar"):
        write_cifar(folder, CLASSES[kind])
    else:
        write_images(folder, kind, CLASSES[kind] if _LAYOUTS[kind] is _OF_CLASSES else _IMAGES)
    return str(folder)


def _small_decoder(config: TrainConfig) -> SegmentationConfig:
    """A thin decoder, as a full one takes a CPU many minutes; existing weights keep theirs."""
    start = config.model.start_from
    if config.task != "segmentation" or (start and Path(start).exists()):
        return config.segmentation
    asked = config.segmentation.decoder
    thin = {key: min(_CHANNELS, asked.get(key, _CHANNELS)) for key in ("channels", "auxiliary_channels")}
    return replace(config.segmentation, decoder={**asked, **thin})


def _stand_in(wanted: str | None, config: TrainConfig, folder: Path) -> str | None:
    """Untrained weights in place of those of another run that a recipe needs, if they are not there yet."""
    if not wanted or not Path(wanted).parent.name or Path(wanted).exists():
        return wanted
    ordinary, kind = resolve_name(config.model.name).removeprefix("a_"), config.data.kind
    classes = 1000 if kind in WITH_MASKS else CLASSES.get(kind, 1000)
    size: dict[str, Any] = {"img_size": config.data.img_size} if config.data.img_size else {}
    return str(create_model(ordinary, num_classes=classes, **size).save_pretrained(folder / "start"))


def write_cifar(folder: Path, classes: int) -> None:
    """Images of CIFAR's size and number of classes; torchvision would refuse files with other checksums."""
    arrays = {}
    for split in ("train", "test"):
        arrays[f"x_{split}"] = _RANDOM.integers(0, 256, (_IMAGES, 32, 32, 3), np.uint8)
        arrays[f"y_{split}"] = np.append(_RANDOM.integers(0, classes, _IMAGES - 1), classes - 1)
    np.savez(folder / "cifar.npz", **arrays)  # type: ignore[arg-type]


def write_fields(folder: Path) -> Path:
    """Noise as trajectories of one channel."""
    folder.mkdir()
    for split in ("train", "test"):
        states = _RANDOM.standard_normal((2, _IMAGES // 2 + 1, 1, _SIDE, _SIDE), np.float32)
        np.save(folder / f"{split}.npy", states)
    return folder


_OF_CLASSES = ("{split}/n{number:08d}/0.png", None)  # a class each
# image and label files of each dataset
_LAYOUTS = {
    "imagenet": _OF_CLASSES,
    "tiny_imagenet_100": _OF_CLASSES,
    "ade20k": ("images/{split}/ADE_{number:08d}.jpg", "annotations/{split}/ADE_{number:08d}.png"),
    "cityscapes": (
        "leftImg8bit/{split}/ulm/ulm_{number:06d}_leftImg8bit.png",
        "gtFine/{split}/ulm/ulm_{number:06d}_gtFine_labelTrainIds.png",
    ),
    "camvid": ("{split}/{number}.png", "{split}annot/{number}.png"),
}
_SPLITS = {"ade20k": ("training", "validation"), "camvid": ("train", "val", "test")}


def write_images(folder: Path, kind: str, count: int = _IMAGES) -> None:
    """Images in the files of ImageNet, ADE20K, Cityscapes or CamVid, and masks where it has them; ``count`` a split."""
    image, mask = _LAYOUTS[kind]
    first = 1 if kind == "ade20k" else 0  # where 0 is ignored
    for split in _SPLITS.get(kind, ("train", "val")):
        for number in range(count):
            _save_noise(folder / image.format(split=split, number=number), (_SIDE, _SIDE, 3), 0, 256)
            if mask:
                path = folder / mask.format(split=split, number=number)
                _save_noise(path, (_SIDE, _SIDE), first, first + CLASSES[kind])


def _save_noise(path: Path, shape: tuple[int, ...], least: int, end: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(_RANDOM.integers(least, end, shape, np.uint8)).save(path)
