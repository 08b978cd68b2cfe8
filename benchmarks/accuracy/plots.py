"""The plot of the small models' learning curves."""

from pathlib import Path
from typing import Any

from benchmarks.accuracy import store
from benchmarks.accuracy.numbers import FAMILIES, recipe_of, title_of

LEARNING = "small_learning_curves.svg"
LONGER = "_200_epochs"
_COLOURS = {False: "#d1495b", True: "#00798c"}  # ordinary, adaptive
# text stays text and no date is written, so that files are small and reproducible
_STYLE: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "trueshift", "font.size": 9, "legend.frameon": False}


def curves() -> bool:
    """Whether there is anything to draw."""
    return any(store.curves(recipe_of(family, adaptive)) for family in FAMILIES for adaptive in (False, True))


def draw(folder: Path) -> None:
    """Top-1 over epochs, one panel for each family; dotted where trained for longer."""
    import matplotlib
    from matplotlib.figure import Figure

    if not curves():
        return
    with matplotlib.rc_context(_STYLE):
        figure = Figure((9, 2.7), layout="constrained")
        grid = figure.subplots(1, len(FAMILIES), sharey=True)
        for axes, family in zip(grid, FAMILIES, strict=True):
            for adaptive, colour in _COLOURS.items():
                for more, style, title in (("", "-", title_of(family, adaptive)), (LONGER, ":", "200 epochs")):
                    for number, curve in enumerate(store.curves(recipe_of(family, adaptive) + more)):
                        epochs, top1 = zip(*curve, strict=True)
                        line = {"color": colour, "linestyle": style, "linewidth": 1.2, "alpha": 0.8}
                        label = None if number else title
                        axes.plot(epochs, [100 * rate for rate in top1], label=label, **line)
            axes.set_xlabel("epoch", fontsize=8)
            axes.grid(axis="y", linewidth=0.4)
            axes.spines[["top", "right"]].set_visible(False)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8, loc="best")
        grid[0].set_ylabel("Top-1, %")
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / LEARNING, format="svg", facecolor="white", metadata={"Date": None})
