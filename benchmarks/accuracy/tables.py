"""Tables of networks on CIFAR-10, and of segmentation on CamVid, beside the paper's; what was not run says so."""

from statistics import mean
from typing import Any

from benchmarks.accuracy import plots, store
from benchmarks.accuracy.numbers import (
    C_CONS,
    EXACT,
    FAMILIES,
    LONGER,
    NETWORKS,
    NOT_YET,
    S_CONS,
    TOP1,
    asked,
    cell,
    paper,
    paper_cell,
    paper_size_recipe,
    recipe_of,
    runs,
    seeds_asked,
    spread,
    title_of,
    trained,
)
from benchmarks.common import record
from benchmarks.common.record import machine, table

SWITCHED = {"a_swin_mini": "of the table above", "shipped/a_swin_mini": "that come with the package"}
SWINS = {
    "swin_mini": ("Swin-mini", "Swin-T (Default)"),
    "swin_mini_da_circular": ("Swin-mini DA", "Swin-T DA"),
    "a_swin_mini": ("A-Swin-mini", "A-Swin-T"),
}
ALL, EXACTLY = (TOP1, C_CONS, S_CONS), (TOP1, C_CONS, EXACT)
HEAD = ["Top-1", "C-Cons.", "S-Cons.", "seeds"]
Column = tuple[str, str]


def _cells(recipe: str, columns: tuple[Column, ...], part: str = "") -> list[str]:
    """Of a recipe as trained, or in a part that was measured of its weights later; at the end its seeds."""
    if part:
        return [*(cell(asked(recipe, part, *column)) for column in columns), str(seeds_asked(recipe, part))]
    return [*(cell(trained(recipe, *column)) for column in columns), str(len(runs(recipe)))]


def _theirs(name: str, row: str) -> list[str]:
    return list(map(paper_cell, paper(name)[row]))


def _beside(name: str) -> str:
    return f"The paper's are from its table *{record.load('paper_results')['tables'][name]['caption']}*."


def _noted(recipes: list[str]) -> str:
    """Options given beside the recipes, and the recipes without."""
    options = {recipe: {" ".join(run["overrides"]) for run in runs(recipe)} for recipe in recipes}
    found = sorted(set().union(*options.values()) - {""})
    as_they_are = ", ".join(f"`{recipe}`" for recipe, given in options.items() if given == {""})
    but = f", but for {as_they_are}" if as_they_are else ""
    return f" Run with `{'`, `'.join(found)}` beside the recipe{but}." if found else ""


def _where(recipes: list[str]) -> str:
    """Machines, commits and minutes of some runs."""
    found = [run for recipe in recipes for run in runs(recipe)]
    if not found:
        return ""
    places, commits = ({machine(run) for run in found}, {run["commit"][:10] for run in found})
    seconds = [store.numbers(recipe, store.TRAINING, "", "seconds").values() for recipe in recipes]
    minutes = spread([number / 60 for numbers in seconds for number in numbers])
    trained_on = f"{'; '.join(sorted(places))}, at commit {', '.join(sorted(commits))}, {minutes} minutes each"
    return f" Trained on {trained_on} beside others on the same GPU."


def _by_network(shifts: str, columns: tuple[Column, ...], first: int, head: list[str]) -> str:
    rows, names = [], [recipe_of(*network, shifts) for network in NETWORKS]
    for network, name in zip(NETWORKS, names, strict=True):
        theirs = title_of(*network, paper=True)
        rows.append([title_of(*network), *_cells(name, columns), theirs, *_theirs("cifar", theirs)[first : first + 2]])
    note = _beside("cifar") + (_where(names) if shifts == "circular" else "") + _noted(names)
    return table(["model", *head, "seeds", "the paper's", *head[:2]], rows, note)


def circular() -> str:
    """(a)."""
    return _by_network("circular", EXACTLY, 0, ["Top-1", "C-Cons.", "bit-identical"])


def standard() -> str:
    """(b)."""
    return _by_network("standard", (("cifar-standard", "top1"), S_CONS), 4, ["Top-1", "S-Cons."])


def longer() -> str:
    """A family whose adaptive network is still learning after 100 epochs."""
    rows = [
        [title_of("swinv2", adaptive), epochs, *_cells(recipe_of("swinv2", adaptive) + more, ALL)]
        for epochs, more in (("100", ""), ("200", LONGER))
        for adaptive in (False, True)
    ]
    return table(["model", "epochs", *HEAD], rows)


def _for_each_family(*entries: tuple[str, str, str]) -> str:
    """Rows of titles and recipes, in which names of the family stand for themselves, and a part."""
    rows = []
    for family in FAMILIES:
        names = {"plain": title_of(family, False), "adaptive": title_of(family, True), "family": family}
        names |= {"ordinary": recipe_of(family, False), "twin": recipe_of(family, True)}
        rows += [[title.format(**names), *_cells(recipe.format(**names), ALL, part)] for title, recipe, part in entries]
    return table(["model", *HEAD], rows)


def random_grids() -> str:
    """Flips only: is it the choice of the grid, or shifted images, that an adaptive network lacks?"""
    return _for_each_family(
        ("{plain}", "{ordinary}", ""),
        ("{plain}, trained on circular shifts (DA)", "{family}_mini_da_circular", ""),
        ("{adaptive}", "{twin}", ""),
        ("{adaptive}, random grids", "{twin}_random_grids", ""),
        ("{plain} DA, adapted as it is", "{family}_mini_da_circular", "adapted"),
    )


def canonical() -> str:
    """(h)."""
    return _for_each_family(
        ("{plain}", "{ordinary}", ""),
        ("{plain}, canonicalized", "{ordinary}", "canonical"),
        ("{plain}, adapted as it is", "{ordinary}", "adapted"),
        ("{adaptive}", "{twin}", ""),
    )


def anchored() -> str:
    """The weights that come with the package, as they are and in the frame that the anchor finds."""
    return _for_each_family(
        ("{plain}", "shipped/{family}_mini", ""),
        ("{plain}, `anchor=True`", "shipped/{family}_mini", "canonical"),
        ("{adaptive}", "shipped/a_{family}_mini", ""),
    )


def paper_size() -> str:
    """(a) and (b), the paper's networks at its resolution."""
    rows, recipes = [], []
    for family, adaptive in NETWORKS:
        title = title_of(family, adaptive, paper=True)
        circular, standard = (paper_size_recipe(family, adaptive, shifts) for shifts in ("circular", "standard"))
        recipes += list(dict.fromkeys([circular, standard]))
        *own, seeds = _cells(circular, EXACTLY)
        own += [cell(trained(standard, *S_CONS)), seeds]
        rows.append([title, *own, *(_theirs("cifar", title)[at] for at in (0, 1, 5))])
    head = ["model", "Top-1", "C-Cons.", "bit-identical", "S-Cons.", "seeds", "the paper's Top-1", "C-Cons.", "S-Cons."]
    return table(head, rows, _beside("cifar") + _where(recipes) + _noted(recipes))


def summary() -> str:
    """Every family by the same recipe: ordinary, on shifted images, as in the paper, and with random grids."""
    rows = []
    for family in FAMILIES:
        plain, adaptive = recipe_of(family, False), recipe_of(family, True)
        recipes = (plain, f"{family}_mini_da_circular", adaptive, f"{adaptive}_random_grids")
        means = [[trained(recipe, *column) for column in ALL] for recipe in recipes]
        cells = [" / ".join(f"{mean(values):.1f}" for values in each) if all(each) else NOT_YET for each in means]
        rows.append([title_of(family, False), *cells[:3], f"**{cells[3]}**"])
    head = ["32 pixels, 2 to 3 M parameters", "ordinary", "ordinary, trained on circular shifts"]
    note = "Top-1 / C-Cons. / S-Cons., percent of CIFAR-10's 10,000 test images; 100 epochs, flips only, 3 seeds."
    note += " Ordinary CvT and MViTv2 have circular padding here."
    return table([*head, "adaptive, as in the paper", "adaptive, random grids"], rows, note)


def ablation() -> str:
    """(c)."""
    configurations = (
        ("A-Swin-mini", "a_swin_mini", None),
        ("without the anchor: the paper's modules alone", "a_swin_mini_no_anchor", "A-Swin-T"),
        ("no A-token", "a_swin_mini_no_a_token", "(i) No A-token"),
        ("no A-WSA", "a_swin_mini_no_a_wsa", "(ii) No A-WSA"),
        ("no A-PMerge", "a_swin_mini_no_a_pmerge", "(iii) No A-PMerge"),
        ("Swin-mini", "swin_mini", "Swin-T (Default)"),
    )
    rows = [
        [title, *_cells(recipe, EXACTLY), *(_theirs("ablation", theirs) if theirs else ())]
        for title, recipe, theirs in configurations
    ]
    head = ["configuration", "Top-1", "C-Cons.", "bit-identical", "seeds", "the paper's Top-1", "C-Cons."]
    note = "Rows without a module have no anchor either, which would hide what the other modules do. "
    return table(head, rows, note + _beside("ablation") + _noted([recipe for _, recipe, _ in configurations]))


def switched_off() -> str:
    """(c), at the end of training."""
    modules = {"no_a_token": "A-token", "no_a_wsa": "A-WSA", "no_a_pmerge": "A-PMerge"}
    rows = [
        [title, *(cell(asked(recipe, part, *column)) for recipe in SWITCHED for column in (TOP1, C_CONS))]
        for part, title in modules.items()
    ]
    head = ["switched off", *(f"{weights}: {key}" for weights in SWITCHED.values() for key in ("Top-1", "C-Cons."))]
    return table(head, rows, f"Seeds: {' and '.join(str(seeds_asked(recipe, 'no_a_token')) for recipe in SWITCHED)}.")


def erased() -> str:
    """(d), erased squares."""
    sides, rows = (0, 28, 42, 56, 70), []
    for recipe, (title, theirs) in SWINS.items():
        own = [
            [cell(asked(recipe, "distorted", f"erased-{side}", key)) for key in ("top1", "consistency")]
            for side in sides
        ]
        rows.append([title, *(NOT_YET if NOT_YET in pair else " / ".join(pair) for pair in own)])
        numbers = _theirs("erased", theirs)
        beside = (" / ".join(numbers[at : at + 2]) for at in range(0, len(numbers), 2))
        rows.append([f"the paper's {theirs.removesuffix(' (Default)')}", *beside])
    note = "Top-1 / C-Cons.; sides are counted as in the paper, at 224 pixels. " + _beside("erased")
    return table(["model", *(f"max {side}" for side in sides)], rows, note)


def flips() -> str:
    """(d), images upside down."""
    rows = []
    columns = [(name, key) for name in ("circular", "flipped") for key in ("top1", "consistency")]
    for recipe, (title, theirs) in SWINS.items():
        rows.append([title, *(cell(asked(recipe, "distorted", *column)) for column in columns)])
        rows.append([f"the paper's {theirs.removesuffix(' (Default)')}", *_theirs("flips", theirs)])
    return table(["model", "Top-1", "C-Cons.", "flipped: Top-1", "C-Cons."], rows, _beside("flips"))


def magnitude() -> str:
    """(e)."""
    rows = []
    for family, adaptive in NETWORKS:
        recipe, theirs = recipe_of(family, adaptive), title_of(family, adaptive, paper=True)
        own = (cell(asked(recipe, "magnitude", f"magnitude-{most}", "consistency")) for most in plots.PIXELS)
        rows.append([title_of(family, adaptive), *own])
        rows.append([f"the paper's {theirs}", *_theirs("magnitude", theirs)])
    return table(["model", *(f"0 to {most} pixels" for most in plots.PIXELS)], rows, _beside("magnitude"))


def adapted() -> str:
    """(f)."""
    entries = (
        ("CvT-mini", "cvt_mini_circular", "", "CvT-13 (Default)"),
        ("+ Adapt, as it is", "cvt_mini_circular", "adapted", "CvT-13 + Adapt (No Fine-tuning)"),
        ("+ Adapt, 10 epochs", "cvt_mini_adapted_10_epochs", "", "CvT-13 + Adapt (10 epoch Fine-tuning)"),
        ("+ Adapt, 20 epochs", "cvt_mini_adapted_20_epochs", "", "CvT-13 + Adapt (20 epoch Fine-tuning)"),
        ("A-CvT-mini, from random weights", "a_cvt_mini", "", "A-CvT-13"),
    )
    rows = [
        [title, *_cells(recipe, (TOP1, C_CONS), part), *_theirs("adapt", theirs)]
        for title, recipe, part, theirs in entries
    ]
    return table(["model", "Top-1", "C-Cons.", "seeds", "the paper's Top-1", "C-Cons."], rows, _beside("adapt"))


def criterion() -> str:
    """(g)."""
    criteria = {
        "max_norm": "norm of the tokens, the paper's",
        "input_norm": "norm of the values before they are merged",
        "learned": "a small network, learned with the rest",
    }
    rows = []
    for family, name in [("swin", name) for name in criteria] + [("swinv2", "max_norm"), ("swinv2", "learned")]:
        recipe = recipe_of(family, True) + (f"_{name}" if name != "max_norm" else "")
        rows.append([title_of(family, True), f"`{name}`: {criteria[name]}", *_cells(recipe, ALL)])
    return table(["model", "criterion", *HEAD], rows)


def exactness() -> str:
    """Trained weights under many shifts."""
    rows = []
    names = [recipe_of(family, True) for family in FAMILIES]
    more = [*(f"{name}_random_grids" for name in names), "a_swinv2_mini" + LONGER]
    more += ["a_swin_mini_input_norm", "a_swin_mini_learned", "a_swinv2_mini_learned"]
    more += ["cvt_mini_adapted_10_epochs", "cvt_mini_adapted_20_epochs", *(f"shipped/{name}" for name in names)]
    for device, place in (("cuda", "GPU"), ("cpu", "CPU")):
        for recipe in [*names, *more, *(paper_size_recipe(family, True) for family in FAMILIES)]:
            for precision in ("float32", "bf16"):
                counts = _exact_counts(recipe, f"exactness_{precision}", device)
                rows += [[f"`{recipe}`", place, precision, *(f"{number:,}" for number in counts)]] if counts else []
    head = ["weights", "on", "precision", "images", "pairs of (image, shift)"]
    head += ["images whose answer changes", "pairs not bit-identical"]
    return table(head, rows or [[NOT_YET]])


def _exact_counts(recipe: str, part: str, device: str) -> list[int]:
    """Images, pairs, changed answers and differing pairs, over all seeds."""
    same, exact = (store.numbers(recipe, part, "circular", key, device) for key in ("worst_case", "bit_exact"))
    counts = []
    for entry in store.about(recipe)["measured"]:
        if (entry["part"], entry["device"]) == (part, device):
            images, seed = entry["images"], entry["seed"]
            pairs = images * entry["settings"]["shifts"]
            counts.append((images, pairs, round((1 - same[seed]) * images), round((1 - exact[seed]) * pairs)))
    return [sum(column) for column in zip(*counts, strict=True)]


def shipped() -> str:
    """The weights that come with the package."""
    names = [f"shipped/{'a_' * adaptive}{family}_mini" for family, adaptive in NETWORKS]
    rows = [[title_of(*network), *_cells(name, ALL)[:3]] for network, name in zip(NETWORKS, names, strict=True)]
    return table(["model", "Top-1", "C-Cons.", "S-Cons."], rows, _noted(names).strip())


def curves() -> str:
    there = f"![Top-1 on the test images while learning](images/{plots.LEARNING})"
    return there if plots.curves() else f"Top-1 on the test images while learning: {NOT_YET}."


def magnitude_picture() -> str:
    there = f"![Consistency against the largest circular shift](images/{plots.MAGNITUDE})"
    return there if plots.magnitudes() else f"Consistency against the largest circular shift: {NOT_YET}."


def camvid() -> str:
    rows = []
    recorded: dict[str, Any] = {}
    for name in ("swin_tiny", "a_swin_tiny", "swinv2_tiny", "a_swinv2_tiny"):
        if not (record.RESULTS / f"camvid_{name}.json").exists():
            rows.append([f"`{name}`", NOT_YET])
            continue
        recorded = record.load(f"camvid_{name}")
        circular, standard = (recorded["result"]["evaluation"][f"ade20k-{kind}"] for kind in ("circular", "standard"))
        shares = [circular["mean_iou"], *(circular[key]["rate"] for key in ("consistency", "bit_exact"))]
        rows.append([f"`{name}`", *(f"{100 * share:.2f} %" for share in (*shares, standard["consistency"]["rate"]))])
    steps, images = recorded["result"]["steps"], recorded["result"]["evaluation"]["ade20k-circular"]["consistency"]
    note = (
        f"CamVid from random weights, {steps:,} steps of 16 images, one seed, the same recipe and circular padding for "
        f"all; measured in float32 on {images['images']} test images with one random pair of shifts each, on "
        f"{machine(recorded)}. The logs are in `results/camvid_*.json`."
    )
    return table(["backbone", "mIoU", "mASCC", "logits bit-identical under circular shifts", "mASSC"], rows, note)
