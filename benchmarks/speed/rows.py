"""Time and memory, from whichever of ``results/model_speed_*.json`` and the like are there: the rows of tables.

Of a setting that was measured more than once the latest result counts.
"""

from collections.abc import Iterable
from itertools import pairwise, product
from operator import itemgetter
from statistics import linear_regression
from typing import Any

import torch

from benchmarks.common.contestants import ADAPTIVE, FAMILIES, KEPT, REFERENCE
from benchmarks.common.record import NOT_YET, Recorded, load, load_all, measured_on
from benchmarks.common.table import filled
from trueshift import create_model

TITLES = {family.name: family.title or family.name for family in (FAMILIES | KEPT).values()}
WORDS = {"graph": "CUDA graph", "tf32": "TF32"}
WINOGRAD_UNTIL = "2026-11-17T02:02"  # d7ad81a
KEYS = ("work", "precision", "mode", "batch", "device")


def measured(pattern: str = "model_speed_*") -> list[Recorded]:
    """The latest result of each setting, with where it was measured, both networks, and adaptive / reference."""
    found: dict[Any, Recorded] = {}
    for recorded in sorted(load_all(pattern), key=itemgetter("date"), reverse=True):
        for result in recorded["result"]["results"]:
            where, by = measured_on(recorded, result["device"]), {row["name"]: row for row in result["rows"]}
            if result["device"] == "cpu" and recorded["date"] < WINOGRAD_UNTIL:
                where += f" (at commit {recorded['commit'][:10]}, when merges on a CPU used Winograd's products)"
            theirs, ours = by.get(REFERENCE, {}), by.get(ADAPTIVE, {})
            both = {key: ours[key] / theirs[key] for key in ("allocated_mib", "reserved_mib") if key in ours}
            if "ratio" in ours:
                low, high = ours["quartiles"]
                both |= {"ratios": (ours["ratio"], low, high), "times": (1 / ours["ratio"], 1 / high, 1 / low)}
            if "error" in ours:
                both["error"] = ours["error"]
            setting = tuple(map(result.get, ("model", "size", *KEYS)))
            found.setdefault(setting, {**_named(result), "where": where, "reference": theirs, **both})
    return list(found.values())


def _named(setting: Recorded) -> Recorded:
    precision, mode = (WORDS.get(setting[key], setting[key]) for key in ("precision", "mode"))
    words = f"{precision}, {mode}, batch {setting['batch']}"
    return {**setting, "title": TITLES.get(setting.get("model", "")), "words": words}


def for_each_model(settings: list[list[Any]]) -> list[Recorded]:
    """What was measured of each model in each setting, or the setting alone."""
    results, found = measured(), []
    for setting, family in product(settings, FAMILIES.values()):
        wanted = dict(zip(KEYS, setting, strict=True)) | {"model": family.name, "size": family.size}
        found.append(next((each for each in results if wanted.items() <= each.items()), _named(wanted)))
    return found


def places(rows: Iterable[Recorded]) -> str:
    """Where rows were measured."""
    found = "; ".join(dict.fromkeys(row["where"] for row in rows if "where" in row))
    return f"On {found}." if found else f"{NOT_YET.capitalize()}."


def resolution() -> list[Recorded]:
    """The same number of pixels in larger images, after the model's own size in the same setting."""
    found, inference = [], [each for each in measured() if (each["work"], each["device"]) == ("inference", "cuda")]
    for family in FAMILIES.values():
        own = [each for each in inference if each["model"] == family.name]
        for how in dict.fromkeys((each["precision"], each["mode"]) for each in own if each["size"] != family.size):
            alike = [each for each in own if (each["precision"], each["mode"]) == how]
            used = [each for each in alike if each["size"] != family.size or each["batch"] == 128]
            found += sorted(used, key=itemgetter("size"))
    return found


def modules(device: str) -> list[Recorded]:
    """What each module took, beside the paper's; what failed comes last in its mode."""
    paper, rows = load("paper_speed")["modules"], []
    for result in reversed(measured("modules_speed_*")):
        for row in sorted(result["rows"], key=lambda row: "error" in row) if result["device"] == device else ():
            theirs = paper.get(row["name"].removeprefix("MViTv2: ").removesuffix(", stage 1"), {})
            rows.append({**result, "missing": "", "paper": theirs, **row})
    return rows


def summary(settings: list[list[Any]]) -> list[Recorded]:
    """The adaptive network's size, and its throughput beside the reference's in some settings, for each family."""
    found, rows = for_each_model(settings), []
    for family in FAMILIES.values():
        with torch.device("meta"):
            parameters = sum(weight.numel() for weight in create_model(f"a_{family.name}").parameters())
        of_family = [filled("{ratios[0]:.2f}", each, {}) or NOT_YET for each in found if each["model"] == family.name]
        paper = load("paper_speed")["throughput"][family.name]
        rows.append({**family._asdict(), "parameters": parameters, "ratios": of_family, "paper": paper})
    return rows


def seconds_per_step(log: list[Recorded]) -> float:
    """Slope of time over steps without the first interval, which compiles: a constant error per interval drops out."""
    entries = [entry for entry in log if entry["kind"] == "train"]
    steps = [after["step"] - before["step"] for before, after in pairwise(entries)]
    return linear_regression(steps, [entry["seconds"] for entry in entries[1:]]).slope
