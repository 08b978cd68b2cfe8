"""Tables of networks on CIFAR-10, and of segmentation on CamVid, beside the paper's; what was not run says so."""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from statistics import mean
from typing import NamedTuple

from benchmarks.accuracy import camvid, curves, fields, motion, store
from benchmarks.accuracy.store import C_CONS, EXACT, FAMILIES, NETWORKS, S_CONS, TOP1, cell, rates, recipe_of, title_of
from benchmarks.common import record
from benchmarks.common.record import NOT_YET, Table, listing, machine, table
from trueshift.models.bundled_weights import find_shipped
from trueshift.models.registry import resolve_name

STANDARD_TOP1 = ("cifar-standard", "top1")
TITLES = {TOP1: "Top-1", STANDARD_TOP1: "Top-1", C_CONS: "C-Cons.", S_CONS: "S-Cons.", EXACT: "bit-identical"}
ALL, EXACTLY = (TOP1, C_CONS, S_CONS), (TOP1, C_CONS, EXACT)


class Line(NamedTuple):
    """A row: a recipe, the paper's row beside it, the part measured of its weights (none: what ended its training)."""

    title: str
    recipe: str
    theirs: str = ""
    part: str = ""

    def values(self, column: store.Column) -> list[float]:
        return rates(self.recipe, column, self.part)

    def seeds(self) -> str:
        entries = store.about(self.recipe)["measured" if self.part else "trained"]
        return str(len({entry["seed"] for entry in entries if entry.get("part", "") == self.part}))


def by_line(
    lines: list[Line], columns: tuple[store.Column, ...] = ALL, source: str = "", first: int = 0, *notes: str
) -> str:
    """Numbers of each line, how many seeds they are of, and two numbers of a table of the paper from ``first`` on."""
    rows = []
    for line in lines:
        printed = _printed(source, line.theirs)[first : first + 2] if line.theirs else []
        rows.append([line.title, *(cell(line.values(column)) for column in columns), line.seeds(), *printed])
    head = ["model", *(TITLES[column] for column in columns), "seeds"]
    head += [f"the paper's {head[1]}", head[2]] if source else []
    recipes = [line.recipe for line in lines]
    return table(head, rows, *notes, _options(recipes), _beside(source))


def by_family(lines: list[Line], note: str = "", families: Iterable[str] = FAMILIES) -> str:
    """Lines in whose titles and recipes names of a family stand for themselves, for each of them."""
    found = []
    for family in families:
        names = {"plain": title_of(family, False), "adaptive": title_of(family, True), "family": family}
        names |= {"ordinary": recipe_of(family, False), "twin": recipe_of(family, True)}
        found += [Line(line.title.format(**names), line.recipe.format(**names), "", line.part) for line in lines]
    return by_line(found, ALL, "", 0, note)


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


def networks(shifts: str) -> list[Line]:
    return [Line(title_of(*each), recipe_of(*each, shifts), title_of(*each, paper=True)) for each in NETWORKS]


def circular() -> str:
    lines = networks("circular")
    return by_line(lines, EXACTLY, "cifar", 0, _where([line.recipe for line in lines]))


def paper_size() -> str:
    """(a) and (b), the paper's networks at its resolution."""
    rows, recipes = [], []
    for network in NETWORKS:
        title = title_of(*network, paper=True)
        moved, standard = (
            Line(title, store.paper_size_recipe(*network, shifts)) for shifts in ("circular", "standard")
        )
        recipes += list(dict.fromkeys([moved.recipe, standard.recipe]))
        own = [*(moved.values(column) for column in EXACTLY), standard.values(S_CONS)]
        rows.append([title, *map(cell, own), moved.seeds(), *(_printed("cifar", title)[at] for at in (0, 1, 5))])
    head = ["model", "Top-1", "C-Cons.", "bit-identical", "S-Cons.", "seeds", "the paper's Top-1", "C-Cons.", "S-Cons."]
    return table(head, rows, _where(recipes), _options(recipes), _beside("cifar"))


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
    rows = []
    for device, precision in (("cuda", "float32"), ("cuda", "bf16"), ("cpu", "float32")):
        part, networks, counts = f"exactness_{precision}", set(), Counter[str]()
        for recipe in store.recipes():
            rates = {key: store.numbers(recipe, part, "circular", key, device) for key in ("worst_case", "bit_exact")}
            for entry in store.about(recipe)["measured"]:
                if (entry["part"], entry["device"]) == (part, device):
                    networks.add(recipe)
                    of = {"worst_case": entry["images"], "bit_exact": entry["images"] * entry["settings"]["shifts"]}
                    counts.update(images=of["worst_case"], pairs=of["bit_exact"])
                    counts.update({key: round((1 - rates[key][entry["seed"]]) * of[key]) for key in of})
        if networks:
            place = {"cuda": "GPU", "cpu": "CPU"}[device]
            rows.append({"on": place, "precision": precision, "networks": len(networks), **counts})
    head = "on | precision | networks | images | pairs of (image, shift)"
    head += " | images whose answer changes | pairs not bit-identical"
    form = "{on} | {precision} | {networks} | {images:,} | {pairs:,} | {worst_case:,} | {bit_exact:,}"
    return listing(head, form, rows or [{}], "Parts `exactness_*` in `results/*.csv`.")


def tried() -> str:
    rows = [row | {key: 100 * row[key] for key in ("top1", "c_cons", "s_cons")} for row in record.rows_of("tried_*")]
    form = "{network} | {change} | {top1:.2f} | {c_cons:.2f} | {s_cons:.2f}"
    return listing("network | what was changed | Top-1 | C-Cons. | S-Cons.", form, rows, TRIED)


SWINS = [
    Line("Swin-mini", "swin_mini", "Swin-T (Default)"),
    Line("Swin-mini DA", "swin_mini_da_circular", "Swin-T DA"),
    Line("A-Swin-mini", "a_swin_mini", "A-Swin-T"),
]
ABLATION = [
    Line("A-Swin-mini", "a_swin_mini"),
    Line("without the anchor: the paper's modules alone", "a_swin_mini_no_anchor", "A-Swin-T"),
    Line("no A-token", "a_swin_mini_no_a_token", "(i) No A-token"),
    Line("no A-WSA", "a_swin_mini_no_a_wsa", "(ii) No A-WSA"),
    Line("no A-PMerge", "a_swin_mini_no_a_pmerge", "(iii) No A-PMerge"),
    Line("Swin-mini", "swin_mini", "Swin-T (Default)"),
]
SWITCHED_OFF = [
    Line(f"{weights}, {title} switched off", recipe, part=f"no_{title.lower().replace('-', '_')}")
    for weights, recipe in (("A-Swin-mini", "a_swin_mini"), ("the package's A-Swin-mini", "shipped/a_swin_mini"))
    for title in ("A-token", "A-WSA", "A-PMerge")
]
ADAPTED = [
    Line("CvT-mini", "cvt_mini_circular", "CvT-13 (Default)"),
    Line("+ Adapt, as it is", "cvt_mini_circular", "CvT-13 + Adapt (No Fine-tuning)", "adapted"),
    Line("+ Adapt, 10 epochs", "cvt_mini_adapted_10_epochs", "CvT-13 + Adapt (10 epoch Fine-tuning)"),
    Line("+ Adapt, 20 epochs", "cvt_mini_adapted_20_epochs", "CvT-13 + Adapt (20 epoch Fine-tuning)"),
    Line("A-CvT-mini, from random weights", "a_cvt_mini", "A-CvT-13"),
]
PLAIN, ADAPTIVE = Line("{plain}", "{ordinary}"), Line("{adaptive}", "{twin}")
FINE_TUNED = [
    PLAIN,
    Line("{plain} + Adapt, as it is", "{ordinary}", part="adapted"),
    Line("{plain} + Adapt, 20 epochs, random grids", "{family}_mini_adapted_random_grids"),
]
CRITERIA = [
    Line("A-Swin-mini, `max_norm`: norm of the tokens, the paper's", "a_swin_mini"),
    Line("A-Swin-mini, `input_norm`: norm of the values before they are merged", "a_swin_mini_input_norm"),
    Line("A-Swin-mini, `learned`: a small network, learned with the rest", "a_swin_mini_learned"),
    Line("A-SwinV2-mini, `max_norm`", "a_swinv2_mini"),
    Line("A-SwinV2-mini, `learned`", "a_swinv2_mini_learned"),
]
LONGER = [
    Line("SwinV2-mini, 100 epochs", "swinv2_mini"),
    Line("A-SwinV2-mini, 100 epochs", "a_swinv2_mini"),
    Line("SwinV2-mini, 200 epochs", "swinv2_mini_200_epochs"),
    Line("A-SwinV2-mini, 200 epochs", "a_swinv2_mini_200_epochs"),
]
RANDOM_GRIDS = [
    PLAIN,
    Line("{plain}, trained on circular shifts (DA)", "{family}_mini_da_circular"),
    ADAPTIVE,
    Line("{adaptive}, random grids", "{twin}_random_grids"),
    Line("{adaptive}, random grids, mean over 2", "{twin}_random_grids", part="grids_2"),
    Line("{plain} DA, adapted as it is", "{family}_mini_da_circular", part="adapted"),
]
CANONICAL = [
    PLAIN,
    Line("{plain}, canonicalized by the seam", "{ordinary}", part="canonical"),
    Line("{plain}, adapted as it is", "{ordinary}", part="adapted"),
    ADAPTIVE,
]
SHIPPED = [
    Line("{plain}", "shipped/{family}_mini", part="itself"),
    Line("{plain}, `anchor=True`", "shipped/{family}_mini", part="canonical"),
    Line("{adaptive}", "shipped/a_{family}_mini"),
    Line("{plain} + Adapt, 20 epochs", "shipped/{family}_mini_adapted_20_epochs"),
    Line("{plain} + Adapt, 20 epochs, `grids=2`", "shipped/{family}_mini_adapted_20_epochs", part="grids_2"),
    Line("{plain}, adapted by `spot` as it is", "shipped/{family}_mini", part="adapted_by_spot"),
    Line("{plain} + Adapt by `spot`, 20 epochs", "shipped/{family}_mini_spot_20_epochs"),
    Line("{plain} + Adapt by `spot`, 20 epochs, `grids=2`", "shipped/{family}_mini_spot_20_epochs", part="grids_2"),
    Line("{plain}, `anchor=True`, 20 epochs more", "shipped/{family}_mini_anchored_20_epochs"),
]
OVER = {"grids_2": ", `grids=2`", "grids_4": ", `grids=4`"}
LENGTH, TAUGHT = (
    [
        Line(title_of(family, part != "itself") + f"{OVER.get(part, '')}, {how}", f"shipped/{recipe}", part=part)
        for family, how, plain, twin in runs
        for recipe, part in ((plain, "itself"), (twin, ""), (twin, "grids_2"), (twin, "grids_4"))
        if recipe
    ]
    for runs in (
        (
            ("swin", "100 epochs", "swin_mini", "a_swin_mini_random_grids"),
            ("swin", "100 epochs, `spot`", "", "a_swin_mini_spot"),
            ("swin", "200 epochs", "swin_mini_200_epochs", "a_swin_mini_random_grids_200_epochs"),
            ("swinv2", "100 epochs", "swinv2_mini", "a_swinv2_mini_random_grids"),
            ("swinv2", "100 epochs, `spot`", "", "a_swinv2_mini_spot"),
            ("cvt", "100 epochs", "cvt_mini", "a_cvt_mini_random_grids"),
            ("cvt", "100 epochs, `spot`", "", "a_cvt_mini_spot"),
            ("cvt", "100 + 50 epochs", "cvt_mini_longest", "a_cvt_mini_longest"),
            ("cvt", "100 + 200 epochs", "cvt_mini_300_epochs", "a_cvt_mini_300_epochs"),
            ("mvitv2", "200 epochs", "mvitv2_mini", ""),
            ("mvitv2", "200 epochs, `spot`", "", "a_mvitv2_mini_spot"),
            ("mvitv2", "200 + 200 epochs", "mvitv2_mini_longest", "a_mvitv2_mini_longest"),
        ),
        (
            ("swin", "consistency loss", "swin_mini_consistency", "a_swin_mini_consistency"),
            ("swin", "distilled", "", "a_swin_mini_distilled"),
            ("swinv2", "distilled", "", "a_swinv2_mini_distilled"),
            ("cvt", "100 + 50 epochs, distilled", "", "a_cvt_mini_distilled"),
        ),
    )
)
READINGS = [
    Line(f"{title}, {how}", f"cifar10/{name}{ending}", title)
    for title, name in (("Swin-T", "swin_tiny"), ("A-Swin-T", "a_swin_tiny"))
    for how, ending in (
        ("flips only, 256 images in a step", "_circular"),
        ("flips only, 96", "_96"),
        ("Mixup and CutMix, 256", "_mixed"),
        ("Mixup and CutMix, 96", "_mixed_96"),
    )
]
READINGS += [
    Line("A-Swin-T, Mixup and CutMix, 256, random grids", "cifar10/a_swin_tiny_mixed_random_grids", "A-Swin-T")
]
VIT = [
    Line("ViT-mini", "vit_mini"),
    Line("ViT-mini, trained on circular shifts (DA)", "vit_mini_da_circular"),
    Line("ViT-mini DA, adapted as it is", "vit_mini_da_circular", part="canonical"),
    Line("ViT-mini, adapted, random grids", "a_vit_mini_random_grids"),
    Line("ViT-mini, crops and CutMix", "shipped/vit_mini"),
    Line("ViT-mini, crops and CutMix, adapted as it is", "shipped/vit_mini", part="canonical"),
    Line("ViT-mini, crops and CutMix, adapted, random grids", "shipped/a_vit_mini"),
]
TINY_CROPS = "tiny_imagenet/a_{family}_mini_crops_"
TINY = [
    Line("{plain}", "tiny_imagenet/{family}_mini"),
    Line("{plain}, trained on circular shifts (DA)", "tiny_imagenet/{family}_mini_da_circular"),
    Line("{adaptive}, random grids", "tiny_imagenet/a_{family}_mini_random_grids"),
    Line("{adaptive}, random grids, mean over 2", "tiny_imagenet/a_{family}_mini_random_grids", part="grids_2"),
    Line("{plain}, crops and CutMix", "tiny_imagenet/{family}_mini_crops"),
    Line("{plain}, crops and CutMix, `anchor=True`", "tiny_imagenet/{family}_mini_crops", part="canonical"),
    Line("{adaptive}, crops and CutMix", "tiny_imagenet/a_{family}_mini_crops"),
    *(
        Line(f"{{adaptive}}, crops and CutMix, {how}{OVER.get(part, '')}", TINY_CROPS + name, part=part)
        for name, how in (("random_grids", "random grids"), ("spot", "random grids, `spot`, closed border"))
        for part in ("", *OVER)
    ),
]
TRIED = "One seed. Frames of the finder while training were a change of one line, which is not in the repository."
SEAM = "By the seam: measured before the [frame finder](exactness.md) took its place in `canonicalize`."
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
ABLATED = "Rows without a module have no anchor, which would hide its absence."
TRAINED = {
    "summary": summary,
    "circular": circular,
    "standard": partial(by_line, networks("standard"), (STANDARD_TOP1, S_CONS), "cifar", 4),
    "longer": partial(by_line, LONGER),
    "ablation": partial(by_line, ABLATION, EXACTLY, "ablation", 0, ABLATED),
    "criterion": partial(by_line, CRITERIA),
    "random_grids": partial(by_family, RANDOM_GRIDS),
    "vit": partial(by_line, VIT),
    "curves": curves.table,
}
MEASURED = {
    "switched_off": partial(by_line, SWITCHED_OFF, (TOP1, C_CONS)),
    "erased": partial(above_the_papers, "erased", "distorted", SWINS, ERASED),
    "flips": partial(above_the_papers, "flips", "distorted", SWINS, FLIPS),
    "magnitude": partial(above_the_papers, "magnitude", "magnitude", networks("circular"), MAGNITUDES),
    "adapted": partial(by_line, ADAPTED, (TOP1, C_CONS), "adapt"),
    "fine_tuned": partial(by_family, FINE_TUNED),
    "canonical": partial(by_family, CANONICAL, SEAM),
    "shipped": partial(by_family, SHIPPED),
    "length": partial(by_line, LENGTH),
    "taught": partial(by_line, TAUGHT),
    "exactness": exactness,
}
TABLES = {
    **{f"small_{name}": Table(SMALL, render) for name, render in TRAINED.items()},
    **{f"small_{name}": Table(f"{SMALL} --measure-only", render) for name, render in MEASURED.items()},
    "paper_size": Table(f"{CIFAR} {PAPER_SIZE} evaluate.protocols=[circular,cifar-standard]", paper_size),
    "paper_readings": Table(
        f"{CIFAR} cifar10/*swin_tiny_mixed* cifar10/*swin_tiny_96 --jobs 1", partial(by_line, READINGS, ALL, "cifar")
    ),
    "tiny_imagenet": Table(
        "accuracy/cifar.py --data data/tiny_imagenet --runs tiny_imagenet/* --seeds 0 --jobs 8",
        partial(by_family, TINY, families=("swin", "swinv2")),
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
