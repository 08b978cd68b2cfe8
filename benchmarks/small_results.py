"""What `results/cifar10_small` and the paper hold, by recipe: numbers in percent, one for each seed."""

import json
from statistics import mean, stdev
from typing import Any

from record import RESULTS

FOLDER = "cifar10_small"
NOT_YET = "not run yet"
FAMILIES = {
    "swin": ("Swin-mini", "Swin-T"),
    "swinv2": ("SwinV2-mini", "SwinV2-T"),
    "cvt": ("CvT-mini", "CvT-13"),
    "mvitv2": ("MViTv2-mini", "MViTv2-T"),
}
Recorded = dict[str, Any]


def recipe_of(family: str, adaptive: bool, shifts: str = "circular") -> str:
    """Which recipe's weights stand for a network: where nothing depends on the shifts, one training is for both."""
    padded = family in ("cvt", "mvitv2") and not adaptive
    return f"{'a_' * adaptive}{family}_mini" + (f"_{shifts}" if padded else "")


def title_of(family: str, adaptive: bool, paper: bool = False) -> str:
    """The network's name, or that of the paper's."""
    return "A-" * adaptive + FAMILIES[family][paper]


def runs(recipe: str) -> list[Recorded]:
    """The finished runs of a recipe, by seed."""
    return _read(f"{recipe.replace('/', '_')}_seed*.json")


def measured(recipe: str, part: str, device: str = "cuda") -> list[Recorded]:
    """A part of what was measured of a recipe's weights, by seed; on another device where there is nothing."""
    name = recipe.replace("/", "_")
    found = _read(f"measured_{name}_seed*_{device}.json")
    kept = [recorded["result"]["parts"][part] for recorded in found if part in recorded["result"]["parts"]]
    return kept or (measured(recipe, part, "cpu") if device == "cuda" else [])


def _read(pattern: str) -> list[Recorded]:
    found = [json.loads(path.read_text()) for path in (RESULTS / FOLDER).glob(pattern)]
    return sorted(found, key=lambda recorded: recorded["seed"])


def rates(evaluations: list[dict[str, Any]], protocol: str, measure: str) -> list[float]:
    """One number for each seed, in percent."""
    found = [evaluation[protocol][measure] for evaluation in evaluations if protocol in evaluation]
    return [100 * each["rate"] for each in found if each]


def trained(recipe: str, protocol: str, measure: str) -> list[float]:
    """The same of what training measured at its end."""
    return rates([recorded["result"]["evaluation"] for recorded in runs(recipe)], protocol, measure)


def asked(recipe: str, part: str, protocol: str, measure: str) -> list[float]:
    """The same of what was measured of finished weights."""
    return rates([found["measured"] for found in measured(recipe, part)], protocol, measure)


def cell(numbers: list[float]) -> str:
    """Mean and sample deviation over seeds."""
    if not numbers:
        return NOT_YET
    return f"{mean(numbers):.2f}" + (f" ± {stdev(numbers):.2f}" if len(numbers) > 1 else "")


def paper(table: str) -> dict[str, list[list[float | None]]]:
    """The rows of one of the paper's tables."""
    return json.loads((RESULTS / "paper_results.json").read_text())["tables"][table]["rows"]


def paper_caption(table: str) -> str:
    """By which the paper's table is found."""
    return json.loads((RESULTS / "paper_results.json").read_text())["tables"][table]["caption"]


def paper_cell(numbers: list[float | None]) -> str:
    """As printed."""
    number, deviation = numbers
    return f"{number:.2f}" + (f" ± {deviation:.2f}" if deviation is not None else "")
