"""Try a recipe in a minute: network and pipeline as they will be, on made-up files, for one step."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ..eval.options import inference_device, on_gpu
from ..models import create_model
from ..models.registry import resolve_name
from .config import SCENES, SegmentationConfig, TrainConfig
from .data.synthetic import write_cifar, write_image_folders, write_scenes
from .trainer import train

_SMALLEST_BATCH = 2  # of a pass: batch norm needs two, and mixing a partner
_CHANNELS = 32  # of a decoder, on a CPU


def dry_run(config: TrainConfig, console: Console | None = None) -> int:
    """Everything a run does, once: data, a step, a measurement, a checkpoint, final weights, the protocols."""
    console = console or Console()
    with tempfile.TemporaryDirectory(prefix="trueshift-") as scratch:
        folder = Path(scratch)
        with _synthetic(config, folder) as data:
            gpu = on_gpu(inference_device(config.device))
            small = replace(
                config,
                data=replace(config.data, path=str(data), download=False, limit=0, workers=min(config.data.workers, 1)),
                model=replace(config.model, start_from=_stand_in(config, folder), pretrained=False),
                segmentation=config.segmentation if gpu else _small_decoder(config),
                evaluate=replace(config.evaluate, batch_size=_SMALLEST_BATCH, limit=_SMALLEST_BATCH),
                log=replace(config.log, every_steps=1, wandb=None),
                output=str(folder / "run"),
                resume="auto",
                batch_size=_SMALLEST_BATCH * config.accumulate,
                # compiling takes minutes, and low precision on a CPU nearly as long: a trial needs neither
                compile=config.compile and gpu,
                precision=config.precision if gpu else "float32",
                sync_batchnorm=config.sync_batchnorm and gpu,
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
    if config.data.kind in SCENES:
        write_scenes(data, config.data.kind)
    elif config.data.kind == "imagenet":
        write_image_folders(data, classes=1000)
    else:
        write_cifar(data, classes=int(config.data.kind.removeprefix("cifar")))
    yield str(data)


def _small_decoder(config: TrainConfig) -> SegmentationConfig:
    """A thin decoder in place of one that takes a CPU many minutes; weights that are there keep theirs."""
    start = config.model.start_from
    if config.task != "segmentation" or (start and Path(start).exists()):
        return config.segmentation
    asked = config.segmentation.decoder
    thin = {key: min(_CHANNELS, asked.get(key, _CHANNELS)) for key in ("channels", "auxiliary_channels")}
    return replace(config.segmentation, decoder={**asked, **thin})


def _stand_in(config: TrainConfig, folder: Path) -> str | None:
    """Untrained weights in place of those that a recipe starts from and that may not be there yet."""
    if not config.model.start_from or Path(config.model.start_from).exists():
        return config.model.start_from
    ordinary = resolve_name(config.model.name).removeprefix("a_")
    classes = {"cifar10": 10, "cifar100": 100}.get(config.data.kind, 1000)
    return str(create_model(ordinary, num_classes=classes).save_pretrained(folder / "start"))
