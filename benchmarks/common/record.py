"""Result files: written with all that is needed to make them again, and read."""

import argparse
import json
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from trueshift.utils.provenance import circumstances

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
NOT_YET = "not run yet"
Recorded = dict[str, Any]


def options(about: str | None, *sections: str, **choices: Iterable[str]) -> argparse.ArgumentParser:
    """A parser of the options in some sections of ``options.toml``, and what some of them may be."""
    how, written = argparse.RawDescriptionHelpFormatter, tomllib.loads((ROOT / "benchmarks/options.toml").read_text())
    parser = argparse.ArgumentParser(description=about, formatter_class=how, allow_abbrev=False)
    for name, value in (item for section in sections for item in written[section].items()):
        more = dict(value) if isinstance(value, dict) else {"default": value}
        default, kind = more.get("default"), {"int": int, "path": Path}.get(more.pop("type", ""))
        if default is False:
            more["action"] = "store_true"
        else:
            values = default if isinstance(default, list) else [default]
            more["type"] = kind or type(next((each for each in values if each is not None), ""))
        if isinstance(default, list):
            more["nargs"] = "+"
        if kind is Path and default:
            more["default"] = ROOT / default
        if name in choices:
            more["choices"] = list(choices[name])
        parser.add_argument(f"--{name.replace('_', '-')}", **more)
    return parser


def write(name: str, result: Recorded, seed: int) -> Path:
    """Save ``results/name.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    module = Path(sys.argv[0]).resolve().relative_to(ROOT).with_suffix("")
    command = shlex.join(["python", "-m", ".".join(module.parts), *sys.argv[1:]])
    about = {**circumstances(seed, ("torch", "timm", "transformers", "triton")), "command": command}
    path.write_text(json.dumps({**about, "result": result}, indent=2) + "\n")
    return path


def training_run(folder: Path) -> tuple[Recorded, list[Recorded]]:
    """The summary, without folders of the machine, and the log of a finished ``trueshift train``."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    summary = json.loads((folder / "summary.json").read_text())
    del summary["config"]["output"], summary["config"]["data"]["path"]
    return summary, [json.loads(line) for line in lines]


def load(name: str) -> Recorded:
    return json.loads((RESULTS / f"{name}.json").read_text())


def load_all(pattern: str) -> Iterator[Recorded]:
    """Result files such as ``exactness_*``, by name."""
    return (load(path.stem) for path in sorted(RESULTS.glob(f"{pattern}.json")))


def rows_of(pattern: str) -> list[Recorded]:
    """The rows of result files, each with all that is known of its measurement, and where it was made."""
    return [
        {
            **recorded,
            **recorded["result"],
            "place": recorded["machine"]["gpu"] or recorded["machine"]["processor"],
            "on": measured_on(recorded),
            **row,
        }
        for recorded in load_all(pattern)
        for row in recorded["result"]["rows"]
    ]


def grouped(rows: Iterable[Recorded], *keys: str) -> list[Recorded]:
    """One row for neighbours with the same values: the first with their counts added up, and all as ``group``."""
    groups = [list(group) for _, group in groupby(rows, itemgetter(*keys))]
    counts = ("pairs", "failures")
    return [{**group[0], **{key: sum(row[key] for row in group) for key in counts}, "group": group} for group in groups]


def measured_on(recorded: Recorded, device: str = "cuda") -> str:
    """Where a result was measured: the GPU, unless the device is the CPU or there is no GPU."""
    where = recorded["machine"]
    gpu = where["gpu"] if device == "cuda" else None
    name = gpu or f"{where['processor']}, {where['threads']} threads"
    return f"{name}, torch {recorded['versions']['torch']}"
