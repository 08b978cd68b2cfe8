"""Tables of the small models on CIFAR-10 beside the paper's; what was not run says so."""

from collections.abc import Callable, Collection

import small_plots
from record import machine
from small_results import (
    FAMILIES,
    NOT_YET,
    asked,
    cell,
    measured,
    paper,
    paper_caption,
    paper_cell,
    paper_size_recipe,
    recipe_of,
    runs,
    title_of,
    trained,
)

NETWORKS = [(family, adaptive) for family in FAMILIES for adaptive in (False, True)]
SWITCHED = {"a_swin_mini": "of the table above", "shipped/a_swin_mini": "that come with the package"}
SWINS = {"swin_mini": "Swin-T (Default)", "swin_mini_da_circular": "Swin-T DA", "a_swin_mini": "A-Swin-T"}
SWIN_TITLES = {"swin_mini": "Swin-mini", "swin_mini_da_circular": "Swin-mini DA", "a_swin_mini": "A-Swin-mini"}


def _table(head: list[str], rows: list[list[str]], note: str = "") -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, *(["", note] if note else [])])


def _beside(table: str) -> str:
    return f"The paper's are from its table *{paper_caption(table)}*."


def _noted(recipes: list[str]) -> str:
    """What was asked for beside the recipes, if anything, and of which it was not."""
    asked = {recipe: {" ".join(recorded["result"]["overrides"]) for recorded in runs(recipe)} for recipe in recipes}
    found = sorted(set().union(*asked.values()) - {""})
    as_they_are = [f"`{recipe}`" for recipe, options in asked.items() if options == {""}]
    if not found:
        return ""
    but = f", but for {', '.join(as_they_are)}" if as_they_are else ""
    return f" Run with `{'`, `'.join(found)}` beside the recipe{but}."


def _where(recipes: list[str]) -> str:
    """Machines and commits of some runs."""
    found = [recorded for recipe in recipes for recorded in runs(recipe)]
    if not found:
        return ""
    places = sorted({machine(recorded) for recorded in found})
    commits = sorted({recorded["commit"][:10] for recorded in found})
    minutes = [recorded["result"]["seconds"] / 60 for recorded in found]
    return (
        f" Trained on {'; '.join(places)}, at commit {', '.join(commits)}, {_range(minutes)} minutes each beside "
        "others on the same GPU."
    )


def _range(values: Collection[float]) -> str:
    """The least and the largest of some numbers, if they differ."""
    least, most = f"{min(values):.0f}", f"{max(values):.0f}"
    return least if least == most else f"{least} to {most}"


def circular() -> str:
    """(a)."""
    rows = []
    for family, adaptive in NETWORKS:
        recipe, theirs = recipe_of(family, adaptive), paper("cifar")[title_of(family, adaptive, paper=True)]
        own = [cell(trained(recipe, "circular", key)) for key in ("top1", "consistency", "bit_exact")]
        beside = [title_of(family, adaptive, paper=True), *map(paper_cell, theirs[:2])]
        rows.append([title_of(family, adaptive), *own, str(len(runs(recipe))), *beside])
    names = [recipe_of(*network) for network in NETWORKS]
    head = ["model", "Top-1", "C-Cons.", "bit-identical", "seeds", "the paper's", "Top-1", "C-Cons."]
    return _table(head, rows, _beside("cifar") + _where(names) + _noted(names))


def standard() -> str:
    """(b)."""
    rows = []
    for family, adaptive in NETWORKS:
        recipe = recipe_of(family, adaptive, "standard")
        theirs = paper("cifar")[title_of(family, adaptive, paper=True)]
        own = [cell(trained(recipe, "cifar-standard", key)) for key in ("top1", "consistency")]
        beside = [title_of(family, adaptive, paper=True), *map(paper_cell, theirs[4:6])]
        rows.append([title_of(family, adaptive), *own, str(len(runs(recipe))), *beside])
    head = ["model", "Top-1", "S-Cons.", "seeds", "the paper's", "Top-1", "S-Cons."]
    return _table(head, rows, _beside("cifar") + _noted([recipe_of(*network, "standard") for network in NETWORKS]))


def longer() -> str:
    """The family whose adaptive network is still learning when the tables' time is over."""
    rows = []
    for epochs, name in ((100, ""), (200, small_plots.LONGER)):
        for adaptive in (False, True):
            recipe = recipe_of("swinv2", adaptive) + name
            own = [cell(trained(recipe, "circular", key)) for key in ("top1", "consistency")]
            own.append(cell(trained(recipe, "cifar-standard", "consistency")))
            rows.append([title_of("swinv2", adaptive), str(epochs), *own, str(len(runs(recipe)))])
    return _table(["model", "epochs", "Top-1", "C-Cons.", "S-Cons.", "seeds"], rows)


def paper_size() -> str:
    """(a) and (b), the paper's networks at its resolution."""
    rows, recipes = [], []
    for family, adaptive in NETWORKS:
        title = title_of(family, adaptive, paper=True)
        theirs = paper("cifar")[title]
        circular, standard = (paper_size_recipe(family, adaptive, shifts) for shifts in ("circular", "standard"))
        recipes += [circular, standard] if circular != standard else [circular]
        own = [cell(trained(circular, "circular", key)) for key in ("top1", "consistency", "bit_exact")]
        own.append(cell(trained(standard, "cifar-standard", "consistency")))
        beside = [paper_cell(theirs[at]) for at in (0, 1, 5)]
        rows.append([title, *own, str(len(runs(circular))), *beside])
    head = ["model", "Top-1", "C-Cons.", "bit-identical", "S-Cons.", "seeds", "the paper's Top-1", "C-Cons.", "S-Cons."]
    return _table(head, rows, _beside("cifar") + _where(recipes) + _noted(recipes))


def summary() -> str:
    """(a) and (b) in a line for each family."""
    rows = []
    for family in FAMILIES:
        cells = [title_of(family, False)]
        for protocol, key in (("circular", "top1"), ("circular", "consistency"), ("cifar-standard", "consistency")):
            trainings = [recipe_of(family, adaptive, protocol.removeprefix("cifar-")) for adaptive in (False, True)]
            cells.append(" → ".join(cell(trained(recipe, protocol, key)) for recipe in trainings))
        rows.append(cells)
    seeds = {len(runs(recipe_of(*network))) for network in NETWORKS}
    counted = "one seed" if seeds == {1} else f"{_range(seeds)} seeds"
    note = f"Ordinary → adaptive, percent of CIFAR-10's 10,000 test images; 100 epochs by the same recipe, {counted}."
    longer = [
        cell(trained(recipe_of("swinv2", each) + small_plots.LONGER, "circular", "top1")) for each in (False, True)
    ]
    note += f" SwinV2-mini after 200 epochs: Top-1 {' → '.join(longer)}."
    return _table(["32 pixels, 2 to 3 M parameters", "Top-1", "C-Cons.", "S-Cons."], rows, note)


def ablation() -> str:
    """(c)."""
    rows = []
    configurations = (
        ("A-Swin-mini", "a_swin_mini", None),
        ("without the anchor: the paper's modules alone", "a_swin_mini_no_anchor", "A-Swin-T"),
        ("no A-token", "a_swin_mini_no_a_token", "(i) No A-token"),
        ("no A-WSA", "a_swin_mini_no_a_wsa", "(ii) No A-WSA"),
        ("no A-PMerge", "a_swin_mini_no_a_pmerge", "(iii) No A-PMerge"),
        ("Swin-mini", "swin_mini", "Swin-T (Default)"),
    )
    for title, recipe, theirs in configurations:
        own = [cell(trained(recipe, "circular", key)) for key in ("top1", "consistency", "bit_exact")]
        beside = list(map(paper_cell, paper("ablation")[theirs])) if theirs else ["", ""]
        rows.append([title, *own, str(len(runs(recipe))), *beside])
    head = ["configuration", "Top-1", "C-Cons.", "bit-identical", "seeds", "the paper's Top-1", "C-Cons."]
    note = "Rows without a module have no anchor either, which would hide what the other modules do. "
    return _table(head, rows, note + _beside("ablation") + _noted([recipe for _, recipe, _ in configurations]))


def switched_off() -> str:
    """(c), at the end of training."""
    modules = {"no_a_token": "A-token", "no_a_wsa": "A-WSA", "no_a_pmerge": "A-PMerge"}
    rows = [
        [title, *(cell(asked(recipe, part, "circular", key)) for recipe in SWITCHED for key in ("top1", "consistency"))]
        for part, title in modules.items()
    ]
    head = ["switched off", *(f"{weights}: {key}" for weights in SWITCHED.values() for key in ("Top-1", "C-Cons."))]
    seeds = [len(measured(recipe, "no_a_token")) for recipe in SWITCHED]
    return _table(head, rows, f"Seeds: {' and '.join(map(str, seeds))}.")


def erased() -> str:
    """(d), erased squares."""
    sides = (0, 28, 42, 56, 70)
    rows = []
    for recipe, theirs in SWINS.items():
        pairs = [
            " / ".join(cell(asked(recipe, "distorted", f"erased-{side}", key)) for key in ("top1", "consistency"))
            for side in sides
        ]
        numbers = paper("erased")[theirs]
        rows.append([SWIN_TITLES[recipe], *(NOT_YET if NOT_YET in pair else pair for pair in pairs)])
        beside = [" / ".join(map(paper_cell, numbers[at : at + 2])) for at in range(0, len(numbers), 2)]
        rows.append([f"the paper's {theirs.removesuffix(' (Default)')}", *beside])
    note = "Top-1 / C-Cons.; sides are counted as in the paper, at 224 pixels. " + _beside("erased")
    return _table(["model", *(f"max {side}" for side in sides)], rows, note)


def flips() -> str:
    """(d), images upside down."""
    rows = []
    for recipe, theirs in SWINS.items():
        own = [
            cell(asked(recipe, "distorted", name, key))
            for name in ("circular", "flipped")
            for key in ("top1", "consistency")
        ]
        rows.append([SWIN_TITLES[recipe], *own])
        rows.append([f"the paper's {theirs.removesuffix(' (Default)')}", *map(paper_cell, paper("flips")[theirs])])
    return _table(["model", "Top-1", "C-Cons.", "flipped: Top-1", "C-Cons."], rows, _beside("flips"))


def magnitude() -> str:
    """(e)."""
    pixels = (8, 16, 24, 32)
    rows = []
    for family, adaptive in NETWORKS:
        recipe = recipe_of(family, adaptive)
        own = [cell(asked(recipe, "magnitude", f"magnitude-{most}", "consistency")) for most in pixels]
        rows.append([title_of(family, adaptive), *own])
        theirs = title_of(family, adaptive, paper=True)
        rows.append([f"the paper's {theirs}", *map(paper_cell, paper("magnitude")[theirs])])
    return _table(["model", *(f"0 to {most} pixels" for most in pixels)], rows, _beside("magnitude"))


def adapted() -> str:
    """(f)."""
    first = recipe_of("cvt", False)
    rows = []
    for title, recipe, theirs in (
        ("CvT-mini", first, "CvT-13 (Default)"),
        ("+ Adapt, as it is", None, "CvT-13 + Adapt (No Fine-tuning)"),
        ("+ Adapt, 10 epochs", "cvt_mini_adapted_10_epochs", "CvT-13 + Adapt (10 epoch Fine-tuning)"),
        ("+ Adapt, 20 epochs", "cvt_mini_adapted_20_epochs", "CvT-13 + Adapt (20 epoch Fine-tuning)"),
        ("A-CvT-mini, from random weights", "a_cvt_mini", "A-CvT-13"),
    ):
        keys = ("top1", "consistency")
        if recipe is None:
            own, seeds = [asked(first, "adapted", "circular", key) for key in keys], len(measured(first, "adapted"))
        else:
            own, seeds = [trained(recipe, "circular", key) for key in keys], len(runs(recipe))
        rows.append([title, *map(cell, own), str(seeds), *map(paper_cell, paper("adapt")[theirs])])
    return _table(["model", "Top-1", "C-Cons.", "seeds", "the paper's Top-1", "C-Cons."], rows, _beside("adapt"))


def criterion() -> str:
    """(g)."""
    rows = []
    criteria = {
        "max_norm": "norm of the tokens, the paper's",
        "input_norm": "norm of the values before they are merged",
        "learned": "a small network, learned with the rest",
    }
    compared = [("swin", name) for name in criteria] + [("swinv2", name) for name in ("max_norm", "learned")]
    for family, name in compared:
        recipe = recipe_of(family, True) + (f"_{name}" if name != "max_norm" else "")
        own = [trained(recipe, "circular", key) for key in ("top1", "consistency")]
        own.append(trained(recipe, "cifar-standard", "consistency"))
        told = f"`{name}`: {criteria[name]}"
        rows.append([title_of(family, True), told, *map(cell, own), str(len(runs(recipe)))])
    return _table(["model", "criterion", "Top-1", "C-Cons.", "S-Cons.", "seeds"], rows)


def canonical() -> str:
    """(h)."""
    rows = []
    columns = (("circular", "top1"), ("circular", "consistency"), ("cifar-standard", "consistency"))
    for family in FAMILIES:
        plain, twin = recipe_of(family, False), recipe_of(family, True)
        title = title_of(family, False)
        rows += [
            [title, *(cell(trained(plain, *column)) for column in columns), str(len(runs(plain)))],
            *(
                [f"{title}, {told}", *(cell(asked(plain, part, *column)) for column in columns), _seeds(plain, part)]
                for part, told in (("canonical", "canonicalized"), ("adapted", "adapted as it is"))
            ),
            [title_of(family, True), *(cell(trained(twin, *column)) for column in columns), str(len(runs(twin)))],
        ]
    return _table(["model", "Top-1", "C-Cons.", "S-Cons.", "seeds"], rows)


def _seeds(recipe: str, part: str) -> str:
    return str(len(measured(recipe, part)))


def exactness() -> str:
    """Trained weights under many shifts."""
    rows = []
    names = [recipe_of(family, True) for family in FAMILIES]
    large = [paper_size_recipe(family, True) for family in FAMILIES]
    more = [
        f"{recipe_of('swinv2', True)}{small_plots.LONGER}",
        "a_swin_mini_input_norm",
        "a_swin_mini_learned",
        "a_swinv2_mini_learned",
        "cvt_mini_adapted_10_epochs",
        "cvt_mini_adapted_20_epochs",
    ]
    for device in ("cuda", "cpu"):
        for recipe in [*names, *more, *(f"shipped/{name}" for name in names), *large]:
            for precision in ("float32", "bf16"):
                parts = measured(recipe, f"exactness_{precision}", device)
                parts = [part for part in parts if part["settings"]["device"] == device]
                if parts:
                    rows.append([f"`{recipe}`", "GPU" if device == "cuda" else "CPU", precision, *_exact_cells(parts)])
    head = [
        "weights",
        "on",
        "precision",
        "images",
        "pairs of (image, shift)",
        "images whose answer changes",
        "pairs not bit-identical",
    ]
    return _table(head, rows or [[NOT_YET, *[""] * 6]])


def _exact_cells(parts: list[dict]) -> list[str]:
    """Sums over seeds."""
    images = pairs = flips = different = 0
    for part in parts:
        found, shifts = part["measured"]["circular"], part["settings"]["shifts"]
        images += part["images"]
        pairs += part["images"] * shifts
        flips += round((1 - found["worst_case"]["rate"]) * part["images"])
        different += round((1 - found["bit_exact"]["rate"]) * part["images"] * shifts)
    return [f"{number:,}" for number in (images, pairs, flips, different)]


def shipped() -> str:
    """The weights that come with the package."""
    rows, names = [], [f"shipped/{'a_' * adaptive}{family}_mini" for family, adaptive in NETWORKS]
    for (family, adaptive), recipe in zip(NETWORKS, names, strict=True):
        columns = (("circular", "top1"), ("circular", "consistency"), ("cifar-standard", "consistency"))
        rows.append([title_of(family, adaptive), *(cell(trained(recipe, *column)) for column in columns)])
    return _table(["model", "Top-1", "C-Cons.", "S-Cons."], rows, _noted(names).strip())


def curves() -> str:
    """The picture of learning curves, if there are any."""
    return _picture(small_plots.LEARNING, "Top-1 on the test images while learning", bool(small_plots.curves()))


def magnitude_picture() -> str:
    """The picture of consistency against magnitudes, if measured."""
    return _picture(
        small_plots.MAGNITUDE, "Consistency against the largest circular shift", bool(small_plots.magnitudes())
    )


def _picture(name: str, told: str, there: bool) -> str:
    return f"![{told}](images/{name})" if there else f"{told}: {NOT_YET}."


TABLES: dict[str, Callable[[], str]] = {
    "small_summary": summary,
    "small_circular": circular,
    "small_standard": standard,
    "small_longer": longer,
    "paper_size": paper_size,
    "small_ablation": ablation,
    "small_switched_off": switched_off,
    "small_erased": erased,
    "small_flips": flips,
    "small_magnitude": magnitude,
    "small_adapted": adapted,
    "small_criterion": criterion,
    "small_canonical": canonical,
    "small_exactness": exactness,
    "small_shipped": shipped,
    "small_curves": curves,
    "small_magnitude_picture": magnitude_picture,
}
