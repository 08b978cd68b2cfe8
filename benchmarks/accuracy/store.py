"""What was trained and measured on images: numbers in one CSV file per collection, words in one JSON file per recipe.

``results/COLLECTION.csv`` has a row for each number. Its part is ``training`` (a number of the run, or of an epoch),
``final`` (the evaluation that ends the training), or what was measured later on a device (see ``parts.toml``).
``results/COLLECTION/RECIPE.json`` holds the configuration, and for each seed commit, date, machine and versions.
Runs leave a JSON file each, which `python benchmarks/bench.py import` puts there too.
"""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from benchmarks.common import record
from benchmarks.common.contestants import FAMILIES
from benchmarks.common.record import Recorded
from trueshift.utils.files import json_text, write_whole

SMALL = "cifar10_small"  # the collection of recipes that are named without one
COLLECTIONS = (SMALL, "cifar10", "tiny_imagenet")
TRAINING, FINAL = "training", "final"
Column = tuple[str, str]  # a protocol and a metric
NETWORKS = [(family, adaptive) for family in FAMILIES for adaptive in (False, True)]
TOP1, C_CONS, EXACT = (("circular", metric) for metric in ("top1", "consistency", "bit_exact"))
S_CONS = ("cifar-standard", "consistency")


class Row(NamedTuple):
    """One number; rates are between 0 and 1."""

    recipe: str
    seed: int
    device: str
    part: str
    protocol: str
    metric: str
    epoch: int | None
    value: float
    images: int | None = None


def collection_of(recipe: str) -> tuple[str, str]:
    """Collection and name: of ``cifar10/a`` those two, of ``a`` and ``cifar10_small/a`` the small models'."""
    collection, _, name = recipe.partition("/")
    return (collection, name) if collection in COLLECTIONS else (SMALL, recipe)


def about(recipe: str, results: Path | None = None) -> Recorded:
    """The words: configuration, ``trained`` and ``measured``; empty if there is nothing."""
    path = _words(recipe, results or record.RESULTS)
    return json.loads(path.read_text()) if path.exists() else {"trained": [], "measured": []}


def recipes() -> list[str]:
    """All recipes of which there is something, the small models' without their collection."""
    paths = [path for name in COLLECTIONS for path in sorted((record.RESULTS / name).glob("*.json"))]
    return [json.loads(path.read_text())["recipe"].removeprefix(f"{SMALL}/") for path in paths]


def numbers(recipe: str, part: str, protocol: str, metric: str, device: str = "") -> dict[int, float]:
    """One number for each seed."""
    return {row.seed: row.value for row in _rows(recipe, device, part, protocol, metric)}


def curves(recipe: str, metric: str = "top1") -> list[list[tuple[int | None, float]]]:
    """Epochs and values, one list for each seed."""
    by_seed = groupby(_rows(recipe, "", TRAINING, "", metric), lambda row: row.seed)
    return [[(row.epoch, row.value) for row in group] for _, group in by_seed]


def _rows(recipe: str, *key: str) -> list[Row]:
    """The rows of a device, part, protocol and metric, by seed."""
    collection, name = collection_of(recipe)
    path = record.RESULTS / f"{collection}.csv"
    return _indexed(path, path.stat().st_mtime_ns if path.exists() else 0).get((name, *key), [])


def recipe_of(family: str, adaptive: bool) -> str:
    """The recipe that stands for a network: of ordinary CvT and MViTv2, which are trained for each kind of shift, the
    one for circular shifts."""
    return f"{'a_' * adaptive}{family}_mini" + "_circular" * (family in ("cvt", "mvitv2") and not adaptive)


def title_of(family: str, adaptive: bool) -> str:
    return f"{'A-' * adaptive}{FAMILIES[family].title.rpartition('-')[0]}-mini"


def rates(recipe: str, column: Column, part: str = "") -> list[float]:
    """As evaluated when the training ended, or as a part that was measured later, on a GPU or else on a CPU."""
    found = {} if part else numbers(recipe, FINAL, *column)
    for device in ("cpu", "cuda") if part else ():
        found |= numbers(recipe, part, *column, device)
    return [100 * found[seed] for seed in sorted(found)]


def cell(numbers: list[float]) -> str:
    """Mean and sample deviation over seeds."""
    return paper_cell([mean(numbers), stdev(numbers) if len(numbers) > 1 else None]) if numbers else record.NOT_YET


def paper(table: str) -> dict[str, list[list[float | None]]]:
    """The rows of one of the paper's tables."""
    return record.load("paper_results")["tables"][table]["rows"]


def paper_cell(numbers: list[float | None]) -> str:
    number, deviation = numbers
    return f"{number:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")


def spread(values: list[float], digits: int = 0) -> str:
    """The least and the largest number, if they differ."""
    least, most = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return least if least == most else f"{least} to {most}"


def take_in(found: Iterable[Recorded], results: Path | None = None) -> None:
    """Put what runs left, trained or measured, in the place of what was there of the same seed, part and device."""
    results = results or record.RESULTS
    for result in found:
        recipe = result["result"]["recipe"]
        collection, name = collection_of(recipe)
        words, numbers = _words(recipe, results), results / f"{collection}.csv"
        words.parent.mkdir(parents=True, exist_ok=True)
        write_whole(words, json_text(_with_words(about(recipe, results), result)))
        new = list(_new_rows(name, result))
        replaced = {row[:4] for row in new}
        kept = [row for row in _read(numbers) if row[:4] not in replaced]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Row._fields)
        ordered = sorted([*kept, *new], key=lambda row: row[:4])
        writer.writerows(row._replace(value=repr(row.value).removesuffix(".0")) for row in ordered)
        write_whole(numbers, text.getvalue())


def _words(recipe: str, results: Path) -> Path:
    collection, name = collection_of(recipe)
    return results / collection / f"{name.replace('/', '_')}.json"


@cache
def _indexed(path: Path, changed: int) -> dict[tuple[str, ...], list[Row]]:
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in _read(path):
        found[row.recipe, row.device, row.part, row.protocol, row.metric].append(row)
    return found


def _read(path: Path) -> list[Row]:
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    return [
        Row(recipe, int(seed), *words, int(epoch) if epoch else None, float(value), int(images) if images else None)
        for recipe, seed, *words, epoch, value, images in csv.reader(lines)
    ]


def _new_rows(name: str, result: Recorded) -> Iterator[Row]:
    seed, kept = result["seed"], result["result"]
    if "parts" in kept:
        for part, found in kept["parts"].items():
            yield from _rates(name, seed, found["settings"]["device"], part, found["measured"])
        return
    for metric in ("steps", "seconds", "images_per_second", "best_top1"):
        yield Row(name, seed, "", TRAINING, "", metric, None, kept[metric])
    for metric, curve in kept["curve"].items():
        yield from (Row(name, seed, "", TRAINING, "", metric, epoch, value) for epoch, value in curve)
    yield from _rates(name, seed, "", FINAL, kept["evaluation"])


def _rates(name: str, seed: int, device: str, part: str, measured: Recorded) -> Iterator[Row]:
    """Their 95 % intervals are not kept: ``wilson_interval`` makes them of a rate and the number of images."""
    for protocol, metrics in measured.items():
        for metric, value in metrics.items():
            rate, images = (value["rate"], value["images"]) if isinstance(value, dict) else (value, None)
            if rate is not None:
                yield Row(name, seed, device, part, protocol, metric, None, rate, images)


def _with_words(words: Recorded, result: Recorded) -> Recorded:
    kept, seed = result["result"], result["seed"]
    said = {"seed": seed, **{key: result[key] for key in ("commit", "date", "machine", "versions")}}
    words = {"recipe": "/".join(collection_of(kept["recipe"])), "model": kept["model"], **words}
    if "parts" in kept:
        for name, part in kept["parts"].items():
            own = {key: part.get(key, said[key]) for key in said}  # parts may be of different days and commits
            settings = {key: value for key, value in part["settings"].items() if key not in ("device", "seed")}
            of = {"part": name, "device": part["settings"]["device"], "images": part["images"]}
            of |= {"weights": part["weights"], "settings": settings}
            described = {key: each["description"] for key, each in part["protocols"].items()}
            _replace(words["measured"], {**own, **of, "protocols": described})
        return words
    config = {**kept["config"], "seed": None}
    differing = {} if config == words.setdefault("config", config) else {"config": config}
    words.setdefault("data", kept["data"])
    words.setdefault("command", result["command"].replace(f"--seed {seed}", "--seed SEED"))
    _replace(words["trained"], {**said, "overrides": kept["overrides"], **differing})
    return words


def _replace(entries: list[Recorded], new: Recorded) -> None:
    def key(entry: Recorded) -> tuple[str, str, int]:
        return entry.get("device", ""), entry.get("part", ""), entry["seed"]

    entries[:] = sorted([*(entry for entry in entries if key(entry) != key(new)), new], key=key)
