"""Try a recipe in a minute: its network and pipeline, for one step, on noise."""

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
    """Write files of as many classes as the recipe expects; a user's own data is used as it is."""
    kind, path = config.data.kind, config.data.path
    if config.task == "fields" and not Path(path).exists():
        return str(write_fields(folder))
    if kind == "any":
        return path
    folder.mkdir()
    write = write_scenes if kind in WITH_MASKS else write_cifar if kind.startswith("cifar") else write_images
    write(folder, CLASSES[kind])
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


def write_images(folder: Path, classes: int) -> None:
    """An image of each class in each split, in a folder for each class."""
    for split in ("train", "val"):
        for label in range(classes):
            _save_noise(folder / split / f"{label:04d}" / "0.png", (_SIDE, _SIDE, 3), 256)


def write_scenes(folder: Path, classes: int) -> None:
    """Images with label files, and the names of the classes."""
    for split in ("train", "val"):
        for number in range(_IMAGES):
            _save_noise(folder / "images" / split / f"{number}.png", (_SIDE, _SIDE, 3), 256)
            _save_noise(folder / "masks" / split / f"{number}.png", (_SIDE, _SIDE), classes)
    (folder / "classes.txt").write_text("\n".join(f"class {label}" for label in range(classes)))


def _save_noise(path: Path, shape: tuple[int, ...], end: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(_RANDOM.integers(0, end, shape, np.uint8)).save(path)
