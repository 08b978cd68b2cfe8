"""What numbers in sentences are made of, `<!-- number EXPRESSION -->1.2<!-- end -->`, and what tables are.

A recipe without a folder is one of the small models. Rates are in percent.
"""

# ruff: noqa: F401 -- names for expressions
import itertools
from functools import partial
from inspect import ismodule
from statistics import mean, stdev
from typing import Any

from benchmarks.accuracy import fields, motion, store
from benchmarks.accuracy import rows as accuracy
from benchmarks.accuracy.store import C_CONS, S_CONS, TOP1, rates, spread
from benchmarks.common import record
from benchmarks.common.contestants import FAMILIES
from benchmarks.common.record import load, rows_of
from benchmarks.speed import rows as speed


def rate(column: tuple[str, str], recipe: str, part: str = "") -> float:
    """Mean over the seeds, at the end of training or in a part that was measured later."""
    return mean(rates(recipe, column, part))


top1, c_cons, s_cons = (partial(rate, column) for column in (TOP1, C_CONS, S_CONS))


def gaps(recipe: str, other: str, column: tuple[str, str] = TOP1) -> list[float]:
    """By how much the first is ahead, for each seed that both have."""
    first, second = (store.numbers(name, store.FINAL, *column) for name in (recipe, other))
    return [100 * (first[seed] - second[seed]) for seed in sorted(first.keys() & second.keys())]


def listed(values: list[float], digits: int = 1) -> str:
    *first, last = [f"{value:.{digits}f}" for value in values]
    return f"{', '.join(first)} and {last}" if first else last


def steps(recipe: str) -> int:
    return int(store.numbers(recipe, store.TRAINING, "", "steps")[0])


def paper(table: str, row: str, column: int) -> float:
    """As printed, without its deviation."""
    return store.paper(table)[row][column][0] or 0.0


def row(file: str, **wanted: Any) -> dict[str, Any]:
    """The row of a result file that has these values."""
    result = load(file)["result"]
    rows = result.get("rows") or [{**each, **row} for each in result["results"] for row in each["rows"]]
    return next(row for row in rows if wanted.items() <= row.items())


def pairs(*files: str) -> int:
    """How many pairs of image and shift were checked, of which all were bit-identical."""
    rows = [row for pattern in files for row in rows_of(pattern)]
    if any(row["failures"] for row in rows):
        raise ValueError(f"not all pairs of {files} are bit-identical")
    return sum(row["pairs"] for row in rows)


def compared(family: str, *setting: Any) -> dict[str, Any]:
    """What was measured of the reference and of the adaptive network: work, precision, mode, batch and device."""
    return next(each for each in speed.for_each_model([setting]) if each["model"] == FAMILIES[family].name)


def moving(protocol: str, metric: str, file: str, method: str) -> float:
    """A rate of a network while the camera moves, in percent."""
    return 100 * load(file)["result"]["methods"][method]["measured"][protocol][metric]["rate"]


flicker, crops = partial(moving, "path-32", "flicker"), partial(moving, "crop-1", "consistency")
motion_top1 = partial(moving, "crop-1", "top1")


MODULES = {name: value for name, value in globals().items() if ismodule(value)}


def number(expression: str) -> str:
    """One digit after the point for a float, thousands apart for an int, text as it is."""
    try:
        value = eval(expression, {**globals(), "__builtins__": {}})
    except Exception as error:
        raise SystemExit(f"<!-- number {expression} -->: {type(error).__name__}: {error}") from error
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"
