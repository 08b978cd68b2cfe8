"""Try a recipe in a minute: network and pipeline as they will be, on made-up files, for one step."""

import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from ..eval.settings import inference_device, on_gpu
from ..models import create_model
from ..models.registry import resolve_name
from .config import TrainConfig
from .loop import train

_IMAGES = 16  # of each split
_SMALLEST_BATCH = 2  # of a pass: batch norm needs two, and mixing a partner


def dry_run(config: TrainConfig, console: Console | None = None) -> int:
    """Everything a run does, once: data, a step, accuracy, a checkpoint, final weights, the protocols."""
    console = console or Console()
    with tempfile.TemporaryDirectory(prefix="trueshift-") as scratch:
        folder = Path(scratch)
        with _synthetic(config, folder) as data:
            gpu = on_gpu(inference_device(config.device))
            small = replace(
                config,
                data=replace(config.data, path=str(data), download=False, limit=0, workers=min(config.data.workers, 1)),
                model=replace(config.model, start_from=_stand_in(config, folder), pretrained=False),
                evaluate=replace(config.evaluate, batch_size=_SMALLEST_BATCH, limit=_SMALLEST_BATCH),
                log=replace(config.log, every_steps=1, wandb=None),
                output=str(folder / "run"),
                resume="auto",
                batch_size=_SMALLEST_BATCH * config.accumulate,
                # compiling takes minutes, and low precision on a CPU nearly as long: a trial needs neither
                compile=config.compile and gpu,
                precision=config.precision if gpu else "float32",
                max_steps=1,
            )
            code = train(small, console)
    if code == 0:
        console.print("Dry run passed: the network, the data pipeline and a step work.", highlight=False)
    return code


@contextmanager
def _synthetic(config: TrainConfig, folder: Path) -> Iterator[str]:
    """Files in the layout the recipe expects; a user's own data is tried as it is."""
    if config.data.kind == "any":
        yield config.data.path
        return
    data = folder / "data"
    data.mkdir()
    if config.data.kind == "imagenet":
        write_image_folders(data, classes=1000)
    else:
        write_cifar(data, classes=int(config.data.kind.removeprefix("cifar")))
    yield str(data)


def write_cifar(folder: Path, classes: int) -> None:
    """Noise in the files of CIFAR-10 or CIFAR-100, python version."""
    random = np.random.default_rng(0)

    def batch(name: str, key: str) -> None:
        pixels = random.integers(0, 256, (_IMAGES, 3072), np.uint8)
        labels = random.integers(0, classes, _IMAGES).tolist()
        (folder / name).write_bytes(pickle.dumps({"data": pixels, key: labels}))

    if classes == 10:
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
            batch(name, "labels")
    else:
        for name in ("train", "test"):
            batch(name, "fine_labels")


def write_image_folders(folder: Path, classes: int) -> None:
    """A small picture of noise for each class, to learn from and to measure on."""
    random = np.random.default_rng(0)
    for number in range(classes):
        for split in ("train", "val"):
            inside = folder / split / f"n{number:08d}"
            inside.mkdir(parents=True)
            Image.fromarray(random.integers(0, 256, (40, 48, 3), np.uint8)).save(inside / "0.png")


def _stand_in(config: TrainConfig, folder: Path) -> str | None:
    """Untrained weights in place of those that a recipe starts from and that may not be there yet."""
    if not config.model.start_from or Path(config.model.start_from).exists():
        return config.model.start_from
    ordinary = resolve_name(config.model.name).removeprefix("a_")
    classes = {"cifar10": 10, "cifar100": 100}.get(config.data.kind, 1000)
    return str(create_model(ordinary, num_classes=classes).save_pretrained(folder / "start"))
