"""Results in words and table cells: the same on the console and on the page."""

from typing import Any

ROWS = (
    # what, how it is explained
    ("top1", "Top-1", "right answers on the unshifted images"),
    ("consistency", "", "the same answer under two shifts of an image"),
    ("worst_case", "all shifts agree", "images with one answer under all of their shifts"),
    ("worst_case_accuracy", "right under all shifts", "images answered rightly under all of their shifts"),
    ("bit_exact", "bit-identical", "shifted images whose logits have the very same bits"),
    ("largest_logit_change", "largest change of a logit", "over all images and shifts, against the unshifted image"),
)


def percent(rate: dict[str, float] | None) -> str:
    """A rate as a table shows it; never rounded up to 100."""
    if rate is None:
        return "n/a"
    value = 100 * rate["rate"]
    return f"{min(value, 99.99) if rate['rate'] < 1 else value:.2f}\N{NO-BREAK SPACE}%"


def interval(rate: dict[str, float] | None) -> str:
    """The 95 % interval of a rate."""
    return f"{100 * rate['low']:.1f} to {100 * rate['high']:.1f}" if rate else ""


def number(value: float | None) -> str:
    """A change of logits."""
    if value is None:
        return "n/a"
    return "0" if value == 0 else f"{value:.3g}"


def table_rows(audit: dict[str, Any]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Title, explanation, and a cell with its interval for each model; circular shifts in full, others briefly."""
    models, protocols = audit["models"], audit["protocols"]
    names = [name for name in protocols if not protocols[name]["against_unshifted"]]
    rows = []
    for position, name in enumerate(names):
        for key, title, told in ROWS:
            if (position and key != "consistency") or all(model["measured"][name][key] is None for model in models):
                continue
            values = [model["measured"][name][key] for model in models]
            if key == "largest_logit_change":
                cells = [(number(value), "") for value in values]
            else:
                cells = [(percent(value), interval(value)) for value in values]
            rows.append(
                (title or protocols[name]["title"], protocols[name]["description"] if not title else told, cells)
            )
    return rows


def assumption(model: dict[str, Any]) -> str:
    """How pictures were prepared for a model that does not say."""
    wanted = model["preparation"]
    size = " x ".join(map(str, wanted["size"]))
    values = f"crop_pct {wanted['crop_pct']}, mean {list(wanted['mean'])}, std {list(wanted['std'])}"
    options = "--img-size, --crop-pct, --mean, --std"
    return f"{model['name']} does not say how it wants its pictures; assumed: {size} pixels, {values} ({options})."


def verdict(audit: dict[str, Any]) -> str:
    """One sentence for someone in a hurry."""
    if not audit["data"]["images"]:
        return "Nothing was measured."
    parts = []
    for model in audit["models"]:
        first = next(iter(model["measured"].values()))
        images = audit["data"]["images"]
        flipped = round((1 - first["worst_case"]["rate"]) * images)
        exact = ", bit for bit" if first["bit_exact"]["rate"] == 1 else ""
        if flipped:
            parts.append(f"{model['name']} changes its answer for {flipped} of {images} images when the picture moves")
        else:
            parts.append(f"{model['name']} gives all {images} images the same answer under every shift tried{exact}")
    return "; ".join(parts) + "."


def remarks(audit: dict[str, Any]) -> list[str]:
    """What a reader must know before the numbers."""
    told = []
    if audit["partial"]:
        data = audit["data"]
        told.append(f"Interrupted: {data['images']} of {data['asked']} images were measured.")
    untrained = [model["name"] for model in audit["models"] if model["random"]]
    if untrained:
        told.append(f"Weights are the random initialisation, nothing was learned: {' and '.join(untrained)}.")
    told += [assumption(model) for model in audit["models"] if model["assumed"]]
    if any(not model["labelled"] for model in audit["models"]) and audit["data"]["classes"]:
        told.append("Top-1 is not told where a model's classes are not those of the data.")
    skipped = audit["data"]["skipped"]
    if skipped:
        first = f"{skipped[0]['name']} ({skipped[0]['reason']})"
        told.append(
            f"Skipped: {first}." if len(skipped) == 1 else f"{len(skipped)} images skipped, {first} among them."
        )
    return told
