"""Networks on CIFAR-10 and Tiny ImageNet beside the paper's: the rows of tables, and a plot."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.accuracy import store
from benchmarks.accuracy.store import C_CONS, EXACT, FAMILIES, NETWORKS, S_CONS, TOP1, cell, rates, recipe_of, title_of
from benchmarks.common import record
from benchmarks.common.record import Recorded
from trueshift.models.bundled_weights import find_shipped
from trueshift.models.registry import resolve_name

RATES = {"top1": TOP1, "c_cons": C_CONS, "s_cons": S_CONS}
COLUMNS = {**RATES, "exact": EXACT, "standard_top1": ("cifar-standard", "top1")}
CURVES = "small_learning_curves.svg"
# text stays text and no date is written, so that files are small and reproducible
PLOT: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "trueshift", "font.size": 9, "legend.frameon": False}


def named(families: Iterable[str]) -> list[Recorded]:
    """For each family the titles and recipes of its ordinary and its adaptive network."""
    rows = []
    for family in families:
        title = {"plain": title_of(family, False), "adaptive": title_of(family, True)}
        recipe = {"ordinary": recipe_of(family, False), "twin": recipe_of(family, True)}
        standard = recipe["ordinary"].replace("_circular", "_standard")
        rows.append({"family": family, "paper": FAMILIES[family].title, "standard": standard, **title, **recipe})
    return rows


def networks(
    lines: Sequence[Sequence[str]], families: Iterable[str], source: str, beside: Sequence[int]
) -> list[Recorded]:
    """Numbers of each line, how many seeds they are of, and numbers ``beside`` them in a table of the paper."""
    rows = []
    for names in named(families) or [{}]:
        for title, recipe, *more in lines:
            parts, theirs, standard = [*more, "", "", ""][:3]
            for part in [parts] if isinstance(parts, str) else parts:
                over = f", `grids={part[-1]}`" if part.startswith("grids_") else ""
                row = {"title": title.format(over=over, **names), "part": part, "beside": theirs.format(**names)}
                row |= {"recipe": recipe.format(**names), "standard": standard.format(**names)}
                rows.append(row | _numbers(row) | {"theirs": _printed(source, row["beside"], beside)})
    return rows


def _numbers(row: Recorded) -> Recorded:
    entries = store.about(row["recipe"])["measured" if row["part"] else "trained"]
    found = {"seeds": len({entry["seed"] for entry in entries if entry.get("part", "") == row["part"]})}
    for key, column in COLUMNS.items():
        standard = column[0] == "cifar-standard" and row["standard"]  # where there are networks for each kind of shift
        found[key] = cell(rates(standard or row["recipe"], column, row["part"]))
    return found


def _printed(source: str, row: str, at: Sequence[int]) -> list[str]:
    return [store.paper_cell(store.paper(source)[row][number]) for number in at] if row else [""] * len(at)


def above_the_papers(rows: Iterable[Recorded], measured: Sequence[str]) -> list[Recorded]:
    """What was measured of some networks, each above the paper's row."""
    found = []
    for row in rows:
        own = [cell(rates(row["recipe"], tuple(column.split()), row["part"])) for column in measured]
        theirs = {"title": f"the paper's {row['beside'].removesuffix(' (Default)')}", "cells": row["theirs"]}
        found += [{"title": row["title"], "cells": own}, theirs]
    return found


def caption(source: str) -> str:
    return f"The paper's: *{record.load('paper_results')['tables'][source]['caption']}*."


def _recipes(rows: Iterable[Recorded]) -> list[str]:
    return list(dict.fromkeys(recipe for row in rows for recipe in (row["recipe"], row["standard"]) if recipe))


def run_with(rows: Iterable[Recorded]) -> str:
    """Options given beside the recipes, and the recipes without."""
    runs = {recipe: store.about(recipe)["trained"] for recipe in _recipes(rows)}
    options = {recipe: {" ".join(run["overrides"]) for run in trained} for recipe, trained in runs.items()}
    found = sorted(set().union(*options.values()) - {""})
    as_they_are = ", ".join(f"`{recipe}`" for recipe, given in options.items() if given == {""})
    but = f", but for {as_they_are}" if as_they_are else ""
    return f"Run with `{'`, `'.join(found)}` beside the recipe{but}." if found else ""


def trained_on(rows: Iterable[Recorded], how: str = "beside others on the same GPU") -> str:
    """Machines, commits and minutes of the runs."""
    recipes = _recipes(rows)
    found = [run for recipe in recipes for run in store.about(recipe)["trained"]]
    if not found:
        return ""
    places, commits = ({record.measured_on(run) for run in found}, {run["commit"][:10] for run in found})
    seconds = [store.numbers(recipe, store.TRAINING, "", "seconds").values() for recipe in recipes]
    minutes = store.spread([number / 60 for each in seconds for number in each])
    trained_on = f"{'; '.join(sorted(places))}, at commit {', '.join(sorted(commits))}, {minutes} minutes each"
    return f"Trained on {trained_on} {how}."


def means(recipe: str, part: str = "") -> str:
    """Top-1, C-Cons. and S-Cons., means over the seeds."""
    return " / ".join(f"{mean(rates(recipe, column, part)):.1f}" for column in RATES.values())


def shipped(name: str) -> str:
    """The same on the card of a network of the package: of the mean over four grids, if it has that."""
    card = find_shipped(resolve_name(name)).about["measured"]
    card = next((each for each in card.get("several", ()) if each["grids"] == 4), card)
    return " / ".join(f"{100 * card[key]:.1f}" for key in RATES)


def exactness() -> list[Recorded]:
    """Trained weights under many shifts, all networks together."""
    rows, measured = [], [(recipe, entry) for recipe in store.recipes() for entry in store.about(recipe)["measured"]]
    for place, device, precision in (("GPU", "cuda", "float32"), ("GPU", "cuda", "bf16"), ("CPU", "cpu", "float32")):
        part, counts = f"exactness_{precision}", Counter[str]()
        here = [(recipe, entry) for recipe, entry in measured if (entry["part"], entry["device"]) == (part, device)]
        for recipe, entry in here:
            pairs = entry["images"] * entry["settings"]["shifts"]
            counts.update(images=entry["images"], pairs=pairs)
            for metric, count in (("worst_case", entry["images"]), ("bit_exact", pairs)):
                rate = store.numbers(recipe, part, "circular", metric, device)[entry["seed"]]
                counts[metric] += round((1 - rate) * count)
        if here:
            names = {recipe for recipe, _ in here}
            rows.append({"place": place, "precision": precision, "networks": len(names), **counts})
    return rows


def curves() -> str:
    """The plot of Top-1 while learning, as Markdown shows it."""
    title = "Top-1 on the test images while learning"
    there = any(store.curves(recipe_of(*network)) for network in NETWORKS)
    return f"![{title}](images/{CURVES})" if there else f"{title}: {record.NOT_YET}."


def draw_curves(folder: Path) -> None:
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
        figure.savefig(folder / CURVES, format="svg", facecolor="white", metadata={"Date": None})
