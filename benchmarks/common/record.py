"""Result files: written with all that is needed to make them again, read, and shown as Markdown tables."""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from trueshift.utils.provenance import circumstances

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
NOT_YET = "not run yet"
Recorded = dict[str, Any]


class Table(NamedTuple):
    """A table of the documents: the program that measures it, with its options, and what writes it."""

    command: str
    render: Callable[[], str]


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
    """The rows of result files, each with all that is known of its measurement, and the chip as ``place``."""
    return [
        {
            **recorded,
            **recorded["result"],
            "place": recorded["machine"]["gpu"] or recorded["machine"]["processor"],
            **row,
        }
        for recorded in load_all(pattern)
        for row in recorded["result"]["rows"]
    ]


def machine(recorded: Recorded, device: str = "cuda") -> str:
    """Where a result was measured: the GPU, unless the device is the CPU or there is no GPU."""
    where = recorded["machine"]
    gpu = where["gpu"] if device == "cuda" else None
    name = gpu or f"{where['processor']}, {where['threads']} threads"
    return f"{name}, torch {recorded['versions']['torch']}"


def table(head: list[str], rows: Iterable[list[str]], *notes: str) -> str:
    """A Markdown table with notes below; short rows are filled up."""
    filled = [[*row, *[""] * (len(head) - len(row))] for row in rows]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *filled)]
    note = " ".join(filter(None, notes))
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:], *(["", note] if note else [])])


def listing(head: str, form: str, rows: Iterable[Recorded], note: str = "") -> str:
    """A table of rows by one format string for all: ``{name} | {rate:.2%}`` below ``model | Top-1``."""
    return table(head.split(" | "), ([cell(each, row) for each in form.split(" | ")] for row in rows), note)


def cell(form: str, row: Recorded) -> str:
    """The text, or why there is none: what was measured may have failed."""
    try:
        return re.sub(r"(?<=\d)%", " %", form.format(**row))
    except KeyError:
        return f"failed: {row['error'][:60]}" if "error" in row else row.get("missing", NOT_YET)
