"""Measure what the documents show, and write it there.

    python benchmarks/bench.py list                    # tables and their commands
    python benchmarks/bench.py run TABLE [OPTION ...]   # measure; options are added to the table's command
    python benchmarks/bench.py render [TABLE]          # write tables, plots and numbers into README and docs
    python benchmarks/bench.py check [TABLE]           # fail if a document is not what the result files say
    python benchmarks/bench.py import FOLDER           # results of runs elsewhere, one JSON file each, into results/

`benchmarks/README.md` has how tables and numbers stand in a document.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import prose
from benchmarks.accuracy import curves, store
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
        curves.draw(ROOT / "docs" / "images")
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


def words_of(table: str) -> list[str]:
    """The command of a table, as Python takes it: as a module, since a file would not find the others."""
    program, *words = shlex.split(TABLES[table].command)
    return ["-m", f"benchmarks.{program.removesuffix('.py').replace('/', '.')}", *words]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    commands.add_parser("run").add_argument("table", choices=TABLES, metavar="TABLE")
    for name in ("render", "check"):
        commands.add_parser(name).add_argument("table", choices=TABLES, nargs="?", metavar="TABLE")
    commands.add_parser("import").add_argument("folder", type=Path)
    given, options = parser.parse_known_args()
    if options and given.command != "run":
        parser.error(f"unknown: {' '.join(options)}")
    if given.command == "run":
        return subprocess.run([sys.executable, *words_of(given.table), *options], cwd=ROOT).returncode
    if given.command == "import":
        found = [json.loads(path.read_text()) for path in sorted(given.folder.rglob("*_seed*.json"))]
        store.take_in(found)
        print(f"{len(found)} files imported")
        return 0 if found else 1
    if given.command == "list":
        for name in TABLES:
            print(f"{name}: python {shlex.join(words_of(name))}")
        return 0
    return update(given.command == "check", given.table)


if __name__ == "__main__":
    sys.exit(main())
