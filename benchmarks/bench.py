"""Measure what the documents show, and write it there; `benchmarks/README.md` has the rest."""

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import prose
from benchmarks.accuracy import store
from benchmarks.accuracy.rows import draw_curves
from benchmarks.common.record import ROOT
from benchmarks.common.table import read_tables

FILES = [ROOT / "benchmarks" / folder / "tables.toml" for folder in ("speed", "exactness", "accuracy")]
TABLES = {name: table for file in FILES for name, table in read_tables(file, prose.MODULES).items()}
DOCUMENTS = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
TABLE = re.compile(r"(<!-- table (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"(<!-- number (.*?) -->)(.*?)(<!-- end -->)", re.DOTALL)
NOT_PROSE = re.compile(
    r"<!-- (?:table|number) .*?<!-- end -->|```.*?```|`[^`\n]*`|^ {4}.*?$|^\|.*?$", re.DOTALL | re.MULTILINE
)
MEASURED = re.compile(r"(?<!torch )(?<![\w.-])\d[\d,]*(?:\.\d+\b(?: %)?| %| (?:ms|points|times|MiB|img/s)\b)")


def unmarked(text: str) -> list[str]:
    """Numbers in sentences that look measured and are not written from a file."""
    return MEASURED.findall(NOT_PROSE.sub("", text))


def rendered(text: str, only: str | None = None) -> str:
    """A document with fresh tables and, unless one table is asked for, numbers."""
    fresh = TABLE.sub(
        lambda found: f"{found[1]}{TABLES[found[2]].render()}\n{found[4]}" if only in (None, found[2]) else found[0],
        text,
    )
    return fresh if only else NUMBER.sub(lambda found: f"{found[1]}{prose.number(found[2])}{found[4]}", fresh)


def update(check: bool, only: str | None) -> int:
    stale = []
    if not check:
        draw_curves(ROOT / "docs" / "images")
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        if re.search(r"^<!-- number", text, re.MULTILINE):  # Markdown ends a paragraph there
            raise SystemExit(f"{name}: a line begins with the comment of a number; move a word before it")
        if found := unmarked(text):
            raise SystemExit(f"{name}: {', '.join(found)}: needs <!-- number EXPRESSION --> and <!-- end --> around it")
        fresh = rendered(text, only)
        if fresh != text:
            stale.append(name)
            if not check:
                (ROOT / name).write_text(fresh)
    if stale:
        print("not up to date:" if check else "written:", *stale)
    return int(check and bool(stale))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="tables and their commands")
    measure = commands.add_parser("run", help="measure; further options are added to the table's command")
    measure.add_argument("table", choices=TABLES, metavar="TABLE")
    for name, about in (
        ("render", "write tables, the plot and numbers into README and docs"),
        ("check", "fail if a document is not what the result files say"),
    ):
        commands.add_parser(name, help=about).add_argument("table", choices=TABLES, nargs="?", metavar="TABLE")
    runs = commands.add_parser("import", help="results of runs elsewhere, one JSON file each, into results/")
    runs.add_argument("folder", type=Path)
    given, options = parser.parse_known_args()
    if options and given.command != "run":
        parser.error(f"unknown: {' '.join(options)}")
    commands_of = {name: ["-m", *shlex.split(f"benchmarks.{table.command}")] for name, table in TABLES.items()}
    if given.command == "run":
        return subprocess.run([sys.executable, *commands_of[given.table], *options], cwd=ROOT).returncode
    if given.command == "import":
        found = [json.loads(path.read_text()) for path in sorted(given.folder.rglob("*_seed*.json"))]
        store.take_in(found)
        print(f"{len(found)} files imported")
        return 0 if found else 1
    if given.command == "list":
        for name, words in commands_of.items():
            print(f"{name}: python {shlex.join(words)}")
        return 0
    return update(given.command == "check", given.table)


if __name__ == "__main__":
    sys.exit(main())
