"""Top-1 while the small networks learn, drawn."""

from pathlib import Path
from typing import Any

from benchmarks.accuracy import store
from benchmarks.accuracy.store import FAMILIES, NETWORKS, recipe_of, title_of
from benchmarks.common.record import NOT_YET

LEARNING = "small_learning_curves.svg"
# text stays text and no date is written, so that files are small and reproducible
PLOT: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "trueshift", "font.size": 9, "legend.frameon": False}


def shown() -> str:
    """The plot, as Markdown shows it."""
    title = "Top-1 on the test images while learning"
    there = any(store.curves(recipe_of(*network)) for network in NETWORKS)
    return f"![{title}](images/{LEARNING})" if there else f"{title}: {NOT_YET}."


def draw(folder: Path) -> None:
    """Top-1 over epochs, one panel for each family; dotted where trained for longer."""
    import matplotlib
    from matplotlib.figure import Figure

    if not any(store.curves(recipe_of(*network)) for network in NETWORKS):
        return
    with matplotlib.rc_context(PLOT):
        figure = Figure((9, 2.7), layout="constrained")
        grid = figure.subplots(1, len(FAMILIES), sharey=True)
        for axes, family in zip(grid, FAMILIES, strict=True):
            for adaptive, colour in ((False, "#d1495b"), (True, "#00798c")):
                for more, style, title in (("", "-", title_of(family, adaptive)), ("_200_epochs", ":", "200 epochs")):
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
