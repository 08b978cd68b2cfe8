"""What `results/` and the paper hold of networks on CIFAR-10, by recipe: numbers in percent, one for each seed."""

import json
from statistics import mean, stdev
from typing import Any

from record import RESULTS

SMALL, PAPER_SIZE = "cifar10_small", "cifar10"  # a recipe without a folder is one of the small models
NOT_YET = "not run yet"
FAMILIES = {
    "swin": ("Swin-mini", "Swin-T"),
    "swinv2": ("SwinV2-mini", "SwinV2-T"),
    "cvt": ("CvT-mini", "CvT-13"),
    "mvitv2": ("MViTv2-mini", "MViTv2-T"),
}
PAPER_SIZE_NAMES = {"swin": "swin_tiny", "swinv2": "swinv2_tiny", "cvt": "cvt_13", "mvitv2": "mvitv2_tiny"}
Recorded = dict[str, Any]


def recipe_of(family: str, adaptive: bool, shifts: str = "circular") -> str:
    """Which recipe's weights stand for a network: where nothing depends on the shifts, one training is for both."""
    return f"{'a_' * adaptive}{family}_mini" + (f"_{shifts}" if _padded(family, adaptive) else "")


def paper_size_recipe(family: str, adaptive: bool, shifts: str = "circular") -> str:
    """The same of the paper's own networks."""
    shifts = shifts if _padded(family, adaptive) else "circular"
    return f"{PAPER_SIZE}/{'a_' * adaptive}{PAPER_SIZE_NAMES[family]}_{shifts}"


def _padded(family: str, adaptive: bool) -> bool:
    return family in ("cvt", "mvitv2") and not adaptive


def title_of(family: str, adaptive: bool, paper: bool = False) -> str:
    """The network's name, or that of the paper's."""
    return "A-" * adaptive + FAMILIES[family][paper]


def runs(recipe: str) -> list[Recorded]:
    """The finished runs of a recipe, by seed."""
    return _read(recipe, "{}_seed*.json")


def measured(recipe: str, part: str, device: str = "cuda") -> list[Recorded]:
    """A part of what was measured of a recipe's weights, by seed; of a seed without a GPU's measurement the CPU's."""
    kept = {}
    for where in ("cpu", "cuda") if device == "cuda" else (device,):
        for recorded in _read(recipe, f"measured_{{}}_seed*_{where}.json"):
            if part in recorded["result"]["parts"]:
                kept[recorded["seed"]] = recorded["result"]["parts"][part]
    return [kept[seed] for seed in sorted(kept)]


def _read(recipe: str, pattern: str) -> list[Recorded]:
    folder = PAPER_SIZE if recipe.startswith(f"{PAPER_SIZE}/") else SMALL
    files = (RESULTS / folder).glob(pattern.format(recipe.removeprefix(f"{PAPER_SIZE}/").replace("/", "_")))
    found = [json.loads(path.read_text()) for path in files]
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
