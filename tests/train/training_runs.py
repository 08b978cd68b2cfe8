"""Small training runs, in this process or in processes that can be killed."""

import json
import os
import socket
import sys
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from trueshift.train import TrainConfig, parse_arguments, train

# one block, which is an adaptive network already, and 6 steps in an epoch
TINY = {
    "model.name": "a_swin_mini",
    "model.arguments": "{embed_dim: 8, depths: [1], num_heads: [1]}",
    "data.path": "sample",
    "data.holdout": "0.1",
    "data.limit": "48",
    "data.workers": "0",
    "batch_size": "8",
    "schedule.epochs": "2",
    "evaluate.limit": "16",
    "optimizer.lr": "0.05",
    "log.every_steps": "1",
    "log.tensorboard": "false",
    "device": "cpu",
}
ANY_DATA = {key: value for key, value in TINY.items() if key not in ("data.path", "data.holdout", "data.limit")}
# UperNet on two stages, on scenes of write_scenes
TINY_SCENES = {
    **ANY_DATA,
    "task": "segmentation",
    "model.arguments": "{embed_dim: 8, depths: [1, 1], num_heads: [1, 1]}",
    "model.padding": "circular",
    "segmentation.decoder": "{channels: 8, auxiliary_channels: 8, bins: [1, 2]}",
    "segmentation.scale": "[64, 32]",
    "segmentation.augment.crop": "[32, 32]",
    "batch_size": "4",
    "schedule.epochs": "100",
    "schedule.steps": "5",
    "schedule.name": "poly",
    "evaluate.every_epochs": "2",
    "evaluate.batch_size": "4",
    "evaluate.limit": "0",
    "optimizer.lr": "0.01",
    "optimizer.lr_batch_size": "4",
}
# FieldNet on two stages, on fields of write_flows
TINY_FIELDS = {
    **ANY_DATA,
    "task": "fields",
    "model.name": "a_swinv2_mini",
    "model.arguments": "{embed_dim: 8, depths: [1, 1], num_heads: [1, 1], pretrained_window_sizes: [0, 0]}",
    "fields.decoder": "{residual: true, decoder_depth: 1, kernel_size: 3}",
    "batch_size": "4",
    "evaluate.limit": "0",
    "optimizer.lr": "0.01",
    "optimizer.lr_batch_size": "4",
}
TRANSFORMERS = {  # a network of another library, for fields
    "model__name": "transformers/swinv2",
    "model__arguments": "{patch_size: 2, embed_dim: 8, depths: [1, 1], num_heads: [1, 2], window_size: 4, "
    "criterion: max_norm}",
    "model__grid_drop_rate": 0.5,
    "model__padding": "circular",
    "model__drop_path_rate": 0.1,
}
USUAL = {"classification": TINY, "segmentation": TINY_SCENES, "fields": TINY_FIELDS}
RANDOM = {  # all that makes a run random; the first of the blocks is never dropped
    "model__arguments": "{embed_dim: 8, depths: [2], num_heads: [1]}",
    "model__drop_path_rate": 0.3,
    "model__grid_drop_rate": 0.5,
    "augment__auto_augment": "rand-m9-mstd0.5-inc1",
    "augment__erasing": 0.5,
    "augment__mixup": 0.8,
    "augment__cutmix": 1.0,
    "ema_decay": 0.9,
}


def tiny(output: Path, **changes: Any) -> TrainConfig:
    """A configuration; ``a__b=1`` sets ``a.b``."""
    return replace(_parsed(*tiny_words(Path("unused"), **changes)), output=str(output))


@cache
def recipe(name: str) -> TrainConfig:
    """The configuration of a recipe; of an option, beside one."""
    base = ["--config", "cifar10/a_swin_tiny_standard"] if name.startswith("options/") else []
    return parse_arguments([*base, "--config", name]).config


@cache
def _parsed(*words: str) -> TrainConfig:
    """Parsing takes as long as a small run."""
    return parse_arguments(words).config


def tiny_words(output: Path, **changes: Any) -> list[str]:
    given = {key.replace("__", "."): str(value) for key, value in changes.items()}
    values = {**USUAL[given.get("task", "classification")], "output": str(output), **given}
    return [word for key, value in values.items() for word in (f"--{key}", value)]


def run_here(output: Path, **changes: Any) -> int:
    return train(tiny(output, **changes), Console(quiet=True))


def learn(output: Path, **changes: Any) -> Path:
    """A run to its end; the folder that it leaves behind."""
    assert run_here(output, **changes) == 0
    return output


def write_scenes(folder: Path, train: int = 8, test: int = 3, flat: bool = False) -> Path:
    """Discs and squares in colours of their own on noise, as one's own data; ``flat`` for no folders of splits."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:48, :64]
    for split, count in (("train", train), ("val", test)):
        for number in range(count):
            pixels = random.integers(60, 130, (48, 64, 3)).astype(np.uint8)
            mask = np.zeros((48, 64), np.uint8)
            for label, colour in ((1, (230, 40, 40)), (2, (40, 60, 230))):
                away = np.stack([rows - random.integers(8, 40), columns - random.integers(8, 56)])
                inside = (away**2).sum(0) < 150 if label == 1 else np.abs(away).max(0) < 11
                pixels[inside], mask[inside] = colour, label
            mask[:2] = 255
            for kind, values in (("images", pixels), ("masks", mask)):
                path = folder / kind / ("" if flat else split) / f"{split}_{number:02d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(values).save(path)
    (folder / "classes.txt").write_text("ground\ndisc\nsquare\n")
    return folder


def write_flows(folder: Path) -> Path:
    """Smooth fields of two channels that drift to the right, off their mean."""
    random, columns = np.random.default_rng(0), np.arange(32) * 2 * np.pi / 32
    for split, count in (("train", 4), ("val", 2)):
        phase = random.uniform(0, 2 * np.pi, (count, 1, 2, 1, 1)) + 0.4 * np.arange(4)[:, None, None, None]
        states = 3 + np.sin(columns + phase).repeat(32, 3)
        np.save(folder / f"{split}.npy", states.astype(np.float32))
    return folder


def _child(words: list[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.exit(train(parse_arguments(words).config, Console(quiet=True)))


_CONTEXT = get_context("forkserver")  # one server, with what unchecked.py has it import


class Run:
    """A run in processes of its own, as torchrun would start them."""

    def __init__(self, output: Path, processes: int = 1, **changes: Any) -> None:
        self.output = output
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.children = []
        for rank in map(str, range(processes)):
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
            environment = {**shared, "RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": str(processes)}
            arguments = (tiny_words(output, **changes), environment if processes > 1 else {})
            child = _CONTEXT.Process(target=_child, args=arguments)
            child.start()
            self.children.append(child)

    def wait_for(self, step: int) -> "Run":
        """Until the log tells of a step."""
        while not any(entry["step"] >= step for entry in log(self.output)):
            assert any(child.is_alive() for child in self.children), "the run ended too early"
            self.children[0].join(0.01)
        return self

    def signal(self, number: int) -> "Run":
        for child in self.children:
            os.kill(child.pid, number)
        return self

    def ended(self) -> list[int]:
        for child in self.children:
            child.join(240)
        return [child.exitcode for child in self.children]


def log(output: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The entries of a run, or those of a kind; a line that is being written is left out."""
    file = output / "log.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return [entry for entry in entries if kind in (None, entry["kind"])]


def losses(output: Path) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in log(output, "train")}


def weights(output: Path, name: str = "final") -> dict[str, Tensor]:
    return load_file(output / name / "model.safetensors")


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
