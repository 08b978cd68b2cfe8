"""Results and progress on the console."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..eval.audit import Progress as Report
from .wording import assumption, interval, number, percent, remarks, table_rows, verdict


@contextmanager
def progress_bars(console: Console) -> Iterator[Report]:
    """A bar for each kind of work, made when it begins."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def print_audit(console: Console, audit: dict[str, Any]) -> None:
    """The table of an audit, with everything that must be known to read it."""
    data = audit["data"]
    table = Table(
        title=f"{data['images']} images of {escape(data['title'])}, {audit['settings']['shifts']} shifts each"
    )
    table.add_column("measure")
    for model in audit["models"]:
        note = "\n[yellow]random weights[/]" if model["random"] else ""
        table.add_column(escape(model["name"]) + note, justify="right")
    for title, told, cells in table_rows(audit):
        shown = [f"{value}\n[dim]{between}[/]" if between else value for value, between in cells]
        table.add_row(f"{escape(title)}\n[dim]{escape(told)}[/]", *shown)
    console.print(table)
    for remark in remarks(audit):
        console.print(f"[yellow]{escape(remark)}[/]", highlight=False)
    console.print(escape(verdict(audit)), highlight=False)


def print_evaluation(console: Console, result: dict[str, Any]) -> None:
    """A row for each protocol, as the paper's tables have them, with the ranges behind the numbers."""
    model, data = result["model"], result["data"]
    table = Table(title=f"{escape(model['name'])} on {data['images']} images of {escape(data['title'])}")
    table.add_column("protocol")
    for title in ("Top-1", "consistency", "all shifts agree", "bit-identical", "largest change"):
        table.add_column(title, justify="right")
    for name, measured in result["measured"].items():
        agreed = measured["consistency"]
        table.add_row(
            f"{escape(result['protocols'][name]['title'])}\n[dim]{name}[/]",
            percent(measured["top1"]),
            f"{percent(agreed)}\n[dim]{interval(agreed)}[/]",
            percent(measured["worst_case"]),
            percent(measured["bit_exact"]),
            number(measured["largest_logit_change"]),
        )
    console.print(table)
    for name, protocol in result["protocols"].items():
        console.print(f"[dim]{name}: {escape(protocol['description'])}[/]", highlight=False)
    if model["random"]:
        console.print("[yellow]Weights are the random initialisation, nothing was learned.[/]")
    if model["assumed"]:
        console.print(f"[yellow]{escape(assumption(model))}[/]", highlight=False)
    if data["skipped"]:
        first = data["skipped"][0]
        console.print(
            f"[yellow]{len(data['skipped'])} images skipped, e.g. {escape(first['name'])}: {escape(first['reason'])}[/]"
        )
