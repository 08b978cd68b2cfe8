"""Plots of the small models: learning curves, and consistency against the size of the shift."""

from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.accuracy import store
from benchmarks.accuracy.numbers import FAMILIES, LONGER, NETWORKS, asked, paper, recipe_of, title_of

LEARNING, MAGNITUDE = "small_learning_curves.svg", "small_shift_magnitude.svg"
PIXELS = (8, 16, 24, 32)
_ORDINARY, _ADAPTIVE, _PAPER = "#d1495b", "#00798c", "#8a8f98"
# epochs and Top-1 of each seed, by family and adaptive
Curves = dict[tuple[str, bool], list[list[tuple[int | None, float]]]]
# text stays text and no date is written, so that files are small and reproducible
_STYLE: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "trueshift", "font.size": 9, "legend.frameon": False}


def curves(longer: bool = False) -> Curves:
    """Of the tables' runs, or of the longer ones."""
    found = {network: store.curves(recipe_of(*network) + LONGER * longer) for network in NETWORKS}
    return {key: each for key, each in found.items() if each}


def magnitudes() -> dict[tuple[str, bool], list[float]]:
    """Consistency at each magnitude, the mean over seeds."""
    found = {}
    for network in NETWORKS:
        rates = [asked(recipe_of(*network), "magnitude", f"magnitude-{most}", "consistency") for most in PIXELS]
        if all(rates):
            found[network] = [mean(each) for each in rates]
    return found


def draw_all(folder: Path) -> None:
    """Both plots, as far as there is something to show."""
    if found := curves():
        longer = curves(longer=True)
        _draw(folder / LEARNING, lambda axes, family: _learning(axes, family, found, longer), "epoch", "Top-1, %")
    if levels := magnitudes():
        labels = ("largest circular shift, pixels of 32", "same answer as unshifted, %")
        _draw(folder / MAGNITUDE, lambda axes, family: _magnitude(axes, family, levels), *labels)


def _learning(axes: Any, family: str, found: Curves, longer: Curves) -> None:
    for adaptive, colour in ((False, _ORDINARY), (True, _ADAPTIVE)):
        for trainings, style, title in ((found, "-", title_of(family, adaptive)), (longer, ":", "200 epochs")):
            for number, curve in enumerate(trainings.get((family, adaptive), [])):
                label = title if not number else None
                epochs, top1 = zip(*curve, strict=True)
                line = {"color": colour, "linestyle": style, "linewidth": 1.2, "alpha": 0.8}
                axes.plot(epochs, [100 * rate for rate in top1], label=label, **line)


def _magnitude(axes: Any, family: str, levels: dict[tuple[str, bool], list[float]]) -> None:
    for adaptive, colour in ((False, _ORDINARY), (True, _ADAPTIVE)):
        if (family, adaptive) in levels:
            axes.plot(PIXELS, levels[family, adaptive], color=colour, marker="o", label=title_of(family, adaptive))
        name = title_of(family, adaptive, paper=True)
        theirs = [number for number, _ in paper("magnitude")[name]]
        axes.plot(PIXELS, theirs, color=_PAPER, linestyle="--", linewidth=1, label=None if adaptive else "the paper's")
    axes.set_xticks(PIXELS)


def _draw(path: Path, fill: Callable[[Any, str], None], across: str, up: str) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure((9, 2.7), layout="constrained")
        grid = figure.subplots(1, len(FAMILIES), sharey=True)
        for axes, family in zip(grid, FAMILIES, strict=True):
            fill(axes, family)
            axes.set_xlabel(across, fontsize=8)
            axes.grid(axis="y", linewidth=0.4)
            axes.spines[["top", "right"]].set_visible(False)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8, loc="best")
        grid[0].set_ylabel(up)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None})
