"""Results and progress on the console."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..eval.options import Progress as Report
from . import wording


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
    data, shifts = audit["data"], audit["settings"]["shifts"]
    title = f"{data['images']} images of {escape(data['title'])}, {shifts} shifts each"
    heads = [escape(each["name"]) + "\n[yellow]random weights[/]" * each["random"] for each in audit["models"]]
    _print_table(console, title, heads, wording.table_rows(audit))
    _print_remarks(console, wording.audit_remarks(audit))
    console.print(escape(wording.verdict(audit)), highlight=False)


def print_fields(console: Console, result: dict[str, Any]) -> None:
    """What was measured of rollouts, a column for each network, and which ones the data is too short for."""
    data = result["data"]
    shape = " x ".join(map(str, (data["channels"], *data["size"])))
    heads = [f"{escape(each['name'])}\n[dim]{escape(each['title'])}[/]" for each in result["models"]]
    title = f"{data['trajectories']} trajectories of {escape(data['title'])}, {shape}"
    _print_table(console, title, heads, wording.field_rows(result))
    _print_remarks(console, wording.field_remarks(result))
    console.print(escape(wording.field_verdict(result)), highlight=False)


def _print_table(console: Console, title: str, heads: list[str], rows: list[Any]) -> None:
    """A row for each measure, a column for each model."""
    table = Table(title=title)
    table.add_column("measure", overflow="fold")
    for head in heads:
        table.add_column(head, justify="right", overflow="fold")
    for title, meaning, cells in rows:
        table.add_row(_above(escape(title), escape(meaning)), *(_above(*cell) for cell in cells))
    console.print(table)


def _above(value: str, small: str) -> str:
    """A cell of a table, with a second line in small print."""
    return f"{value}\n[dim]{small}[/]" if small else value


def print_evaluation(console: Console, result: dict[str, Any]) -> None:
    """A row for each protocol, as the paper's tables have them, with the ranges behind the numbers."""
    model, data = result["model"], result["data"]
    table = Table(title=f"{escape(model['name'])} on {data['images']} images of {escape(data['title'])}")
    table.add_column("protocol")
    rows = wording.PIXEL_ROWS if result["task"] == wording.SEGMENTATION else wording.ROWS
    columns = {key: title.removesuffix(" of a logit") or key for key, title, _ in rows if key != "worst_case_accuracy"}
    for title in columns.values():
        table.add_column(title, justify="right")
    for name, measured in result["measured"].items():
        cells = {key: wording.cell(key, measured[key]) for key in columns}
        shown = [_above(*each) if key == "consistency" else each[0] for key, each in cells.items()]
        table.add_row(_above(escape(result["protocols"][name]["title"]), name), *shown)
    console.print(table)
    for name, measured in result["measured"].items():
        if "flicker" in measured:
            said = [f"{title} {wording.cell(key, measured[key])[0]}" for key, title, _ in wording.MOTION_ROWS]
            console.print(f"{name}: {', '.join(said)}", highlight=False)
    for name, protocol in result["protocols"].items():
        console.print(f"[dim]{name}: {escape(protocol['description'])}[/]", highlight=False)
    _print_classes(console, result)
    _print_remarks(console, wording.remarks([model], data))


def _print_remarks(console: Console, remarks: list[str]) -> None:
    for remark in remarks:
        console.print(f"[yellow]{escape(remark)}[/]", highlight=False)


def _print_classes(console: Console, result: dict[str, Any]) -> None:
    """The intersection over union of each class, or why there is none."""
    if result["task"] != wording.SEGMENTATION:
        return
    first = next(iter(result["measured"].values()))
    names, classes = result["data"]["classes"], result["model"]["num_classes"]
    if first["iou_by_class"] is None:
        if names and len(names) != classes:
            reason = f"{result['model']['name']} has {classes} classes, the data {len(names)}"
            console.print(f"[yellow]mIoU is not reported: {escape(reason)}.[/]")
        return
    shares = [
        f"{names[label] if names else f'class {label}'} {wording.percent(share)}"
        for label, share in enumerate(first["iou_by_class"])
        if share is not None
    ]
    console.print(f"IoU by class: {escape(', '.join(shares))}", highlight=False)
