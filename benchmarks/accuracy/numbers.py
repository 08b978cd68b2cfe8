"""Numbers of networks on CIFAR-10 by recipe, in percent, one for each seed; and the paper's beside them."""

from statistics import mean, stdev
from typing import Any

from benchmarks.accuracy import store
from benchmarks.common import record

Column = tuple[str, str]  # a protocol and a metric
FAMILIES = {
    "swin": ("Swin-mini", "Swin-T", "swin_tiny"),
    "swinv2": ("SwinV2-mini", "SwinV2-T", "swinv2_tiny"),
    "cvt": ("CvT-mini", "CvT-13", "cvt_13"),
    "mvitv2": ("MViTv2-mini", "MViTv2-T", "mvitv2_tiny"),
}
NETWORKS = [(family, adaptive) for family in FAMILIES for adaptive in (False, True)]
TOP1, C_CONS, EXACT = (("circular", metric) for metric in ("top1", "consistency", "bit_exact"))
S_CONS = ("cifar-standard", "consistency")


def recipe_of(family: str, adaptive: bool, shifts: str = "circular") -> str:
    """The recipe that stands for a network; only ordinary CvT and MViTv2 are trained for each kind of shift."""
    return f"{'a_' * adaptive}{family}_mini" + (f"_{shifts}" if _padded(family, adaptive) else "")


def paper_size_recipe(family: str, adaptive: bool, shifts: str = "circular") -> str:
    """The same for the paper's own networks."""
    return f"cifar10/{'a_' * adaptive}{FAMILIES[family][2]}_{shifts if _padded(family, adaptive) else 'circular'}"


def _padded(family: str, adaptive: bool) -> bool:
    return family in ("cvt", "mvitv2") and not adaptive


def title_of(family: str, adaptive: bool, paper: bool = False) -> str:
    """The network's name, or that of the paper's."""
    return "A-" * adaptive + FAMILIES[family][paper]


def runs(recipe: str) -> list[dict[str, Any]]:
    """Commit, machine and so on of each training."""
    return store.about(recipe)["trained"]


def rates(recipe: str, column: Column, part: str = "") -> list[float]:
    """As evaluated when the training ended, or as a part that was measured later, on a GPU or else on a CPU."""
    found = {} if part else store.numbers(recipe, store.FINAL, *column)
    for device in ("cpu", "cuda") if part else ():
        found |= store.numbers(recipe, part, *column, device)
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
