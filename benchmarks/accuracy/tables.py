"""Tables of networks on CIFAR-10, and of segmentation on CamVid, beside the paper's; what was not run says so."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.accuracy import camvid, curves, fields, motion, store
from benchmarks.accuracy.store import C_CONS, EXACT, FAMILIES, NETWORKS, S_CONS, TOP1, cell, rates, recipe_of, title_of
from benchmarks.common import record
from benchmarks.common.record import NOT_YET, Table, listing, machine, table
from trueshift.models.bundled_weights import find_shipped
from trueshift.models.registry import resolve_name

STANDARD_TOP1 = ("cifar-standard", "top1")
TITLES = {TOP1: "Top-1", STANDARD_TOP1: "Top-1", C_CONS: "C-Cons.", S_CONS: "S-Cons.", EXACT: "bit-identical"}
ALL, EXACTLY = (TOP1, C_CONS, S_CONS), (TOP1, C_CONS, EXACT)
WRITTEN = tomllib.loads(Path(__file__).with_name("tables.toml").read_text())


class Line(NamedTuple):
    """A row: a recipe, the part measured of its weights (none: what ended its training), the paper's row beside it.

    Where networks are trained for each kind of shift, ``standard`` is the recipe of those for standard shifts.
    """

    title: str
    recipe: str
    part: str = ""
    theirs: str = ""
    standard: str = ""

    def cell(self, column: store.Column) -> str:
        standard = column[0] == "cifar-standard" and self.standard
        return cell(rates(standard or self.recipe, column, self.part))

    def seeds(self) -> str:
        entries = store.about(self.recipe)["measured" if self.part else "trained"]
        return str(len({entry["seed"] for entry in entries if entry.get("part", "") == self.part}))


def lines_of(rows: list[list[Any]], families: Iterable[str] = ()) -> list[Line]:
    """The lines of a table as ``tables.toml`` writes them, for each family if there are any."""
    found = []
    for family in families or [""]:
        names = {"plain": title_of(family, False), "adaptive": title_of(family, True)} if family else {}
        names |= {"ordinary": recipe_of(family, False), "twin": recipe_of(family, True), "family": family}
        for title, recipe, *more in rows:
            parts, *theirs = more or [""]
            for part in [parts] if isinstance(parts, str) else parts:
                over = f", `grids={part[-1]}`" if part.startswith("grids_") else ""
                found.append(Line(title.format(over=over, **names), recipe.format(**names), part, *theirs))
    return found


def by_line(
    lines: list[Line],
    columns: Iterable[store.Column] = ALL,
    source: str = "",
    beside: Sequence[int] = (0, 1),
    note: str = "",
    where: bool = False,
) -> str:
    """Numbers of each line, how many seeds they are of, and numbers ``beside`` them in a table of the paper."""
    rows = []
    for line in lines:
        theirs = [_printed(source, line.theirs)[at] for at in beside] if line.theirs else []
        rows.append([line.title, *map(line.cell, columns), line.seeds(), *theirs])
    head = ["model", *(TITLES[column] for column in columns), "seeds"]
    names = [TITLES[column] for column in columns if column != EXACT][: len(beside)]
    head += [f"the paper's {names[0]}", *names[1:]] if source else []
    recipes = list(dict.fromkeys(recipe for line in lines for recipe in (line.recipe, line.standard) if recipe))
    return table(head, rows, note, _where(recipes) if where else "", _options(recipes), _beside(source))


def written(lines: list[list[Any]], families: Iterable[str] = (), columns: Iterable[str] = (), **more: Any) -> str:
    """A table of ``tables.toml``."""
    return by_line(lines_of(lines, families), [tuple(each.split()) for each in columns] or ALL, **more)


def above_the_papers(source: str, part: str, networks: list[Line], columns: dict[str, list[store.Column]]) -> str:
    """What was measured of some networks, each above the paper's row; numbers in a cell are parted by a slash."""
    rows = []
    for line in networks:
        printed = iter(_printed(source, line.theirs))
        own = [[cell(rates(line.recipe, each, part)) for each in group] for group in columns.values()]
        rows.append([line.title, *(" / ".join(group) for group in own)])
        beside = [" / ".join(next(printed) for _ in group) for group in columns.values()]
        rows.append([f"the paper's {line.theirs.removesuffix(' (Default)')}", *beside])
    return table(["model", *columns], rows, _beside(source))


def _printed(source: str, row: str) -> list[str]:
    return list(map(store.paper_cell, store.paper(source)[row]))


def _beside(source: str) -> str:
    return f"The paper's: *{record.load('paper_results')['tables'][source]['caption']}*." if source else ""


def _options(recipes: list[str]) -> str:
    """Options given beside the recipes, and the recipes without."""
    options = {recipe: {" ".join(run["overrides"]) for run in store.about(recipe)["trained"]} for recipe in recipes}
    found = sorted(set().union(*options.values()) - {""})
    as_they_are = ", ".join(f"`{recipe}`" for recipe, given in options.items() if given == {""})
    but = f", but for {as_they_are}" if as_they_are else ""
    return f"Run with `{'`, `'.join(found)}` beside the recipe{but}." if found else ""


def _where(recipes: list[str]) -> str:
    """Machines, commits and minutes of some runs."""
    found = [run for recipe in recipes for run in store.about(recipe)["trained"]]
    if not found:
        return ""
    places, commits = ({machine(run) for run in found}, {run["commit"][:10] for run in found})
    seconds = [store.numbers(recipe, store.TRAINING, "", "seconds").values() for recipe in recipes]
    minutes = store.spread([number / 60 for each in seconds for number in each])
    trained_on = f"{'; '.join(sorted(places))}, at commit {', '.join(sorted(commits))}, {minutes} minutes each"
    return f"Trained on {trained_on} beside others on the same GPU."


def networks(shifts: str = "circular", paper: bool = False) -> list[Line]:
    """Ours, trained for one kind of shift; or the paper's own at its resolution, each measured by its own recipe."""
    found = []
    for each in NETWORKS:
        standard = recipe_of(*each, "standard", paper) if paper else ""
        found.append(Line(title_of(*each, paper), recipe_of(*each, shifts, paper), "", title_of(*each, True), standard))
    return found


def summary() -> str:
    """Every family by one recipe: ordinary, on shifted images, as in the paper, with random grids; and as shipped."""
    rows = []
    for family in FAMILIES:
        adaptive, shipped = recipe_of(family, True), []
        trained = [(recipe_of(family, False), ""), (f"{family}_mini_da_circular", ""), (adaptive, "")]
        trained += [(f"{adaptive}_random_grids", "grids_2")]
        for name in (f"{family}_mini", f"a_{family}_mini"):
            card = find_shipped(resolve_name(name)).about["measured"]
            card = next((each for each in card.get("several", ()) if each["grids"] == 4), card)
            shipped.append([[100 * card[key]] for key in ("top1", "c_cons", "s_cons")])
        found = [[rates(recipe, column, part) for column in ALL] for recipe, part in trained] + shipped
        cells = [" / ".join(f"{mean(values):.1f}" for values in each) if all(each) else NOT_YET for each in found]
        rows.append([title_of(family, False), *cells[:3], f"**{cells[3]}**", cells[4], f"**{cells[5]}**"])
    head = ["32 pixels, 2 to 3 M parameters", "flips only: ordinary", "ordinary, trained on circular shifts"]
    head += ["adaptive, as in the paper", "adaptive, random grids, `grids=2`"]
    head += ["the package's: ordinary", "adaptive, `grids=4`"]
    note = (
        "Top-1 / C-Cons. / S-Cons., percent of CIFAR-10's 10,000 test images. Flips only: 100 epochs, 3 seeds, ordinary"
    )
    note += " CvT and MViTv2 with circular padding. The package's: crops, CutMix and more, both alike; one seed."
    return table(head, rows, note)


def exactness() -> str:
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
            rows.append({"on": place, "precision": precision, "networks": len(names), **counts})
    head = "on | precision | networks | images | pairs of (image, shift)"
    head += " | images whose answer changes | pairs not bit-identical"
    form = "{on} | {precision} | {networks} | {images:,} | {pairs:,} | {worst_case:,} | {bit_exact:,}"
    return listing(head, form, rows or [{}], "Parts `exactness_*` in `results/*.csv`.")


def tried() -> str:
    rows = [row | {key: 100 * row[key] for key in ("top1", "c_cons", "s_cons")} for row in record.rows_of("tried_*")]
    form = "{network} | {change} | {top1:.2f} | {c_cons:.2f} | {s_cons:.2f}"
    return listing("network | what was changed | Top-1 | C-Cons. | S-Cons.", form, rows, TRIED)


SWINS = [
    Line("Swin-mini", "swin_mini", theirs="Swin-T (Default)"),
    Line("Swin-mini DA", "swin_mini_da_circular", theirs="Swin-T DA"),
    Line("A-Swin-mini", "a_swin_mini", theirs="A-Swin-T"),
]
TRIED = "One seed. Frames of the finder while training were a change of one line, which is not in the repository."
ERASED = {f"max {side}": [(f"erased-{side}", key) for key in ("top1", "consistency")] for side in (0, 28, 42, 56, 70)}
FLIPPED = {f"flipped: {TITLES[column]}": [("flipped", column[1])] for column in (TOP1, C_CONS)}
MAGNITUDES = {f"0 to {most} pixels": [(f"magnitude-{most}", "consistency")] for most in (8, 16, 24, 32)}


CIFAR = "accuracy/cifar.py --data data/cifar10 --runs"
VIEWS = {"cifar10": "--data data/cifar10", "tiny_imagenet": "--data data/tiny_imagenet.npz"}
VIEWS |= {"photos": "--photos data/photos"}
MOVING = "--networks ordinary=FOLDER adaptive=FOLDER"
SMALL = f"{CIFAR} * shipped/* --seeds 0 1 2 --jobs 8"
PAPER_SIZE = "cifar10/*_circular cifar10/*_standard --jobs 1 --override batch_size=256 evaluate.every_epochs=10"
FLIPS = {"Top-1": [TOP1], "C-Cons.": [C_CONS], **FLIPPED}
ASKED = f"{SMALL} --measure-only"
TABLES = {
    "small_summary": Table(SMALL, summary),
    "small_circular": Table(SMALL, partial(by_line, networks(), EXACTLY, "cifar", where=True)),
    "small_standard": Table(SMALL, partial(by_line, networks("standard"), (STANDARD_TOP1, S_CONS), "cifar", (4, 5))),
    "small_curves": Table(SMALL, curves.table),
    "small_erased": Table(ASKED, partial(above_the_papers, "erased", "distorted", SWINS, ERASED)),
    "small_flips": Table(ASKED, partial(above_the_papers, "flips", "distorted", SWINS, FLIPS)),
    "small_magnitude": Table(ASKED, partial(above_the_papers, "magnitude", "magnitude", networks(), MAGNITUDES)),
    "small_exactness": Table(ASKED, exactness),
    **{f"small_{name}": Table(SMALL, partial(written, **about)) for name, about in WRITTEN["trained"].items()},
    **{f"small_{name}": Table(ASKED, partial(written, **about)) for name, about in WRITTEN["measured"].items()},
    "paper_size": Table(
        f"{CIFAR} {PAPER_SIZE} evaluate.protocols=[circular,cifar-standard]",
        partial(by_line, networks(paper=True), (*EXACTLY, S_CONS), "cifar", (0, 1, 5), where=True),
    ),
    "paper_readings": Table(
        f"{CIFAR} cifar10/*swin_tiny_mixed* cifar10/*swin_tiny_96 --jobs 1",
        partial(written, **WRITTEN["paper_readings"]),
    ),
    "tiny_imagenet": Table(
        "accuracy/cifar.py --data data/tiny_imagenet --runs tiny_imagenet/* --seeds 0 --jobs 8",
        partial(written, **WRITTEN["tiny_imagenet"]),
    ),
    "tried": Table(f"{CIFAR} shipped/* --seeds 0 --compile", tried),
    "camvid": Table("accuracy/camvid.py --data data/camvid", camvid.table),
    **{
        f"motion_{where}": Table(f"accuracy/motion.py --title Swin-mini {MOVING} {data}", partial(motion.table, where))
        for where, data in VIEWS.items()
    },
    **{
        f"fields_{task}": Table(f"accuracy/fields.py --task {task} --seeds 0 1 2 --jobs 6", partial(fields.table, task))
        for task in fields.TASKS
    },
}
