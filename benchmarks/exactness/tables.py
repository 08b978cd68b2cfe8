"""Tables of what was found bit-identical, and how often choices change."""

from benchmarks.common.record import Recorded, load, load_all, machine, table

PAIRS = ["pairs of (image, shift)", "not bit-identical"]


def frame_stability() -> str:
    result = load("frame_stability")["result"]
    columns = list(next(iter(result["kept_percent"].values())))
    rows = [[change, *(f"{row[name]:.1f} %" for name in columns)] for change, row in result["kept_percent"].items()]
    seam, frame = (result["true_corner_found_percent"][name] for name in ("seam", "frame found"))
    note = (
        f"{result['images']} ImageNet photographs at {result['size']} pixels that the finder was not trained on, "
        f"untrained projection. The photograph's own border is found in {seam['both']:.1f} % (rows {seam['rows']:.1f}, "
        f"columns {seam['columns']:.1f}) by the seam, in {frame['both']:.1f} % ({frame['rows']:.1f}, "
        f"{frame['columns']:.1f}) by the frame finder, the first one, which was smaller than today's."
    )
    return table(["change", *(f"{column} kept" for column in columns)], rows, note)


def layers() -> str:
    rows = [
        [_place(recorded, row), row["checks"], *_counts([row])]
        for recorded in load_all("exactness_*")
        for row in recorded["result"]["rows"]
    ]
    return table(["where", "checks", *PAIRS], rows)


def models() -> str:
    """One line per place and kind of check, all models in it."""
    rows = []
    for recorded in load_all("model_exactness_*"):
        every = "; all shifts" if recorded["result"]["shifts"] == "all" else ""
        for here in _grouped(recorded["result"]["rows"], "where"):
            names = ", ".join(row["checks"] if " x " in row["checks"] else f"`{row['checks']}`" for row in here)
            rows.append([_place(recorded, here[0]), f"{names}{every}", *_counts(here)])
    return table(["where", "models", *PAIRS], rows)


def segmentation() -> str:
    rows, recorded = [], load("segmentation_exactness_cuda")
    for here in _grouped(recorded["result"]["rows"], "model"):
        sizes = ", ".join(f"{row['size'][0]} x {row['size'][1]}" for row in here)
        rows.append([f"`{here[0]['model']}`", sizes, *_counts(here)])
    note = f"Hostile images and photographs, random statistics of every norm, float32, on {machine(recorded)}."
    return table(["UperNet on", "sizes", *PAIRS], rows, note)


def _grouped(rows: list[Recorded], key: str) -> list[list[Recorded]]:
    return [[row for row in rows if row[key] == value] for value in dict.fromkeys(row[key] for row in rows)]


def _place(recorded: Recorded, row: Recorded) -> str:
    return f"{row['where']}, torch {recorded['versions']['torch']}"


def _counts(rows: list[Recorded]) -> list[str]:
    return [f"{sum(row[key] for row in rows):,}" for key in ("pairs", "failures")]


def without_anchor() -> str:
    rows = []
    for recorded in load_all("without_anchor_*"):
        where = recorded["machine"]["gpu"] or recorded["machine"]["processor"]
        for row in recorded["result"]["rows"]:
            rows.append([where, row["model"]])
            for kind in ("clear", "close"):
                rows[-1] += [f"{row[kind]}", f"{row[f'{kind}_flipped']}", f"{row[f'{kind}_change']:.1e}"]
    counts = ["flipped", "largest change"]
    return table(["where", "model", "clear pairs", *counts, "close pairs", *counts], rows)


def sample_consistency() -> str:
    recorded, rows = load("sample_consistency_cuda"), []
    for row in recorded["result"]["rows"]:
        rates = [f"{100 * row[key]['rate']:.2f} %" for key in ("consistency", "worst_case", "bit_exact")]
        rows.append([row["model"], *rates, f"{row['largest_logit_change']:.3g}"])
    head = ["model", "C-Cons.", "images with one answer under all shifts", "bit-identical", "largest change of a logit"]
    note = f"{recorded['result']['views']:,} views for each model, float32, on {machine(recorded)}."
    return table(head, rows, note)
