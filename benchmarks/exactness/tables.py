"""Tables of what was found bit-identical, and how often choices change."""

from benchmarks.common.record import load, load_all, machine, table

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
        f"{frame['columns']:.1f}) by the frame finder."
    )
    return table(["change", *(f"{column} kept" for column in columns)], rows, note)


def layers() -> str:
    rows = []
    for recorded in load_all("exactness_*"):
        for row in recorded["result"]["rows"]:
            place = f"{row['where']}, torch {recorded['versions']['torch']}"
            rows.append([place, row["checks"], f"{row['pairs']:,}", f"{row['failures']}"])
    return table(["where", "checks", *PAIRS], rows)


def models() -> str:
    """One line per place and kind of check, all models in it."""
    lines = []
    for recorded in load_all("model_exactness_*"):
        every = "; all shifts" if recorded["result"]["shifts"] == "all" else ""
        rows = recorded["result"]["rows"]
        for where in dict.fromkeys(row["where"] for row in rows):
            here = [row for row in rows if row["where"] == where]
            names = ", ".join(f"`{row['checks']}`" if " x " not in row["checks"] else row["checks"] for row in here)
            pairs, failures = (sum(row[key] for row in here) for key in ("pairs", "failures"))
            place = f"{where}, torch {recorded['versions']['torch']}"
            lines.append([place, f"{names}{every}", f"{pairs:,}", f"{failures}"])
    return table(["where", "models", *PAIRS], lines)


def segmentation() -> str:
    lines, recorded = [], load("segmentation_exactness_cuda")
    rows = recorded["result"]["rows"]
    for name in dict.fromkeys(row["model"] for row in rows):
        here = [row for row in rows if row["model"] == name]
        sizes = ", ".join(f"{row['size'][0]} x {row['size'][1]}" for row in here)
        lines.append([f"`{name}`", sizes, *(str(sum(row[key] for row in here)) for key in ("pairs", "failures"))])
    note = f"Hostile images and photographs, random statistics of every norm, float32, on {machine(recorded)}."
    return table(["UperNet on", "sizes", *PAIRS], lines, note)


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
