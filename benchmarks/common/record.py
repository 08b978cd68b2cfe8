"""Result files: written with all that is needed to make them again, read, and shown as Markdown tables."""

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trueshift.utils.provenance import circumstances, processor

__all__ = ["RESULTS", "ROOT", "load", "load_all", "machine", "options", "processor", "table", "training_run", "write"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
Recorded = dict[str, Any]


def options(about: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser of ``--name`` by default values: False for a switch, a list for several words, a dict for further
    arguments of ``add_argument``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        more = dict(value) if isinstance(value, dict) else {"default": value}
        default = more.get("default")
        if default is False:
            more["action"] = "store_true"
        elif isinstance(default, list):
            more = {"nargs": "+", "type": type(default[0]) if default else str, **more}
        elif default is not None:
            more = {"type": type(default), **more}
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
    """The summary and the log of a finished ``trueshift train``."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return json.loads((folder / "summary.json").read_text()), [json.loads(line) for line in lines]


def load(name: str) -> Recorded:
    return json.loads((RESULTS / f"{name}.json").read_text())


def load_all(pattern: str) -> Iterator[Recorded]:
    """Result files such as ``exactness_*``, by name."""
    return (load(path.stem) for path in sorted(RESULTS.glob(f"{pattern}.json")))


def machine(recorded: Recorded, device: str = "cuda") -> str:
    """Where a result was measured: the GPU, unless the device is the CPU or there is no GPU."""
    where = recorded["machine"]
    gpu = where["gpu"] if device == "cuda" else None
    name = gpu or f"{where['processor']}, {where['threads']} threads"
    return f"{name}, torch {recorded['versions']['torch']}"


def table(head: list[str], rows: Iterable[list[str]], note: str = "") -> str:
    """A Markdown table with a note below; short rows are filled up."""
    filled = [[*row, *[""] * (len(head) - len(row))] for row in rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *filled)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:], *(["", note] if note else [])])
