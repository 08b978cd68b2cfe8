"""The runs on images: which recipes there are, where each run lies, and what is kept of a finished one."""

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save

from benchmarks.accuracy.store import COLLECTIONS, SMALL, collection_of
from benchmarks.common.record import training_run
from trueshift.models.bundled_weights import packed, unpacked
from trueshift.models.hub import CONFIG, WEIGHTS, write_model
from trueshift.train import TrainConfig, list_recipes, parse_arguments
from trueshift.utils.files import json_text, write_whole

FOLDERS = tuple(f"{name}/" for name in COLLECTIONS)


def matching(patterns: Iterable[str]) -> list[str]:
    """Recipes by patterns such as ``a_*`` or ``shipped/*`` of the small models, ``cifar10/*`` of the paper's.

    A star does not reach into a folder.
    """
    found: list[str] = []
    there = [name for name in list_recipes() if name.startswith(FOLDERS)]
    for pattern in patterns:
        full = pattern if pattern.startswith(FOLDERS) else f"{SMALL}/{pattern}"
        here = [name for name in there if fnmatch(name, full) and name.count("/") == full.count("/")]
        if not here:
            raise SystemExit(f"no recipe fits {pattern}: there are {', '.join(there)}")
        found += here
    return list(dict.fromkeys(found))


@cache
def configuration(recipe: str) -> TrainConfig:
    return parse_arguments(["--config", recipe]).config


def needed_by(recipe: str) -> dict[str, str]:
    """The recipes whose final weights this one needs, by the option that names them."""
    config = configuration(recipe)
    named = {"model.start_from": config.model.start_from, "distill.teacher": config.distill.teacher}
    return {key: run.removeprefix("runs/").removesuffix("/final") for key, run in named.items() if run}


@dataclass(frozen=True)
class Run:
    """A recipe with a seed."""

    recipe: str
    seed: int
    work: Path  # folder of all runs
    kept: Path | None = None  # folder of weights kept from earlier runs

    @property
    def name(self) -> str:
        return f"{collection_of(self.recipe)[1].replace('/', '_')}_seed{self.seed}"

    @property
    def folder(self) -> Path:
        return self.work / self.name

    def weights(self) -> tuple[Path, str] | None:
        """The folder with its final weights and their precision, if there are any."""
        if (self.folder / "summary.json").exists():
            return self.folder / "final", "float32"
        file = self.kept / f"{self.name}.safetensors" if self.kept else None
        if file is None or not file.exists():
            return None
        return restore_weights(file, self.work / "restored" / self.name), "float16"

    @property
    def needed(self) -> "dict[str, Run]":
        """The runs whose weights it needs, by the option that names them."""
        return {key: replace(self, recipe=recipe) for key, recipe in needed_by(self.recipe).items()}

    def options(self, data: str) -> list[str]:
        """Those of ``trueshift train``."""
        words = ["--config", self.recipe, "--seed", str(self.seed), "--data.path", data, "--output", str(self.folder)]
        for key, run in self.needed.items():
            folder, _ = run.weights() or (run.folder / "final", "")
            words += [f"--{key}", str(folder)]
        return words

    def result(self, more: list[str]) -> dict[str, Any]:
        """All that is worth keeping of a finished run, and nothing of the machine's folders."""
        summary, log = training_run(self.folder)
        config = summary["config"]
        for key, recipe in needed_by(self.recipe).items():
            part, _, name = key.partition(".")
            config[part][name] = recipe
        train, tests = ([entry for entry in log if entry["kind"] == kind] for kind in ("train", "test"))
        command = ["trueshift", "train", "--config", self.recipe, "--seed", str(self.seed), *more]
        kept = {key: summary[key] for key in ("data", "steps", "best_top1")}
        kept |= {
            "recipe": self.recipe,
            "model": config["model"]["name"],
            "config": config,
            "overrides": more,
            "seconds": round(sum(entry["seconds"] for entry in train), 1),  # of learning, all calls together
            "images_per_second": median(entry["images_per_second"] for entry in train),
            "evaluation": summary.get("evaluation", {}),
            "curve": {
                "loss": [[entry["epoch"] + 1, round(entry["loss"], 4)] for entry in train],
                "top1": [[entry["epoch"] + 1, entry["model_top1"]] for entry in tests],
                "test_loss": [[entry["epoch"] + 1, round(entry["model_loss"], 4)] for entry in tests],
            },
        }
        known = {key: summary[key] for key in ("commit", "date", "machine", "versions", "seed")}
        return {"command": shlex.join(command), **known, "result": kept}


def keep_weights(folder: Path, file: Path) -> Path:
    """Copy what ``save_pretrained`` wrote to one small file, in half precision."""
    stored = packed(load_file(folder / WEIGHTS))
    if too_large := [key for key, value in stored.items() if not value.isfinite().all()]:
        raise ValueError(f"{too_large[0]} of {folder} does not fit into float16")
    file.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(file, save(stored, metadata={"format": "pt", "config": (folder / CONFIG).read_text()}))


def restore_weights(file: Path, folder: Path) -> Path:
    """A folder that ``from_pretrained`` reads, in float32; the values are those of the file."""
    with safe_open(file, "pt") as opened:
        config = json.loads(opened.metadata()["config"])
    return write_model(folder, unpacked(load_file(file)), config)


def write_result(path: Path, result: dict[str, Any], secrets: Iterable[str | Path]) -> Path:
    """A result file, whole or not at all; refused if it names a folder of this machine."""
    text = json_text(result)
    if named := [str(each) for each in secrets if str(each).startswith("/") and str(each) in text]:
        raise ValueError(f"{path.name} would name {named[0]}, a folder of this machine")
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, text)
