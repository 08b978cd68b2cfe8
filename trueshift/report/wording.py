"""Results in words and table cells: the same on the console and on the page."""

from typing import Any

SEGMENTATION = "segmentation"
ROWS = (
    # what, how it is explained
    ("top1", "Top-1", "right answers on the unshifted images"),
    ("consistency", "", "the same answer under two shifts of an image"),
    ("worst_case", "all shifts agree", "images with one answer under all of their shifts"),
    ("worst_case_accuracy", "right under all shifts", "images answered rightly under all of their shifts"),
    ("bit_exact", "bit-identical", "shifted images whose logits have the very same bits"),
    ("largest_logit_change", "largest change of a logit", "over all images and shifts, against the unshifted image"),
)
PIXEL_ROWS = (
    ("mean_iou", "mIoU", "intersection over union on the unshifted images, the mean over the classes that occur"),
    ("pixel_accuracy", "pixel accuracy", "pixels with the right label on the unshifted images"),
    ("consistency", "", "pixels with the same label under two shifts of an image"),
    ("bit_exact", "bit-identical", "shifted images whose logits, moved back, have the very same bits"),
    ("largest_logit_change", "largest change of a logit", "over all pixels and shifts, against the unshifted image"),
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


def cell(key: str, value: Any) -> tuple[str, str]:
    """A measure as a table shows it, and its interval if it has one."""
    if key == "largest_logit_change":
        return number(value), ""
    if isinstance(value, float):
        return percent({"rate": value}), ""
    return percent(value), interval(value)


def table_rows(audit: dict[str, Any]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Title, explanation, and a cell with its interval for each model; circular shifts in full, others briefly."""
    models, protocols = audit["models"], audit["protocols"]
    names = [name for name in protocols if not protocols[name]["against_unshifted"]]
    rows = []
    for name in names:
        for key, title, meaning in PIXEL_ROWS if audit["task"] == SEGMENTATION else ROWS:
            values = [model["measured"][name][key] for model in models]
            first = [model["measured"][names[0]][key] for model in models]
            # images padded for standard shifts differ from those that fill their frame for circular ones
            other_input = key == "mean_iou" and values != first
            if all(value is None for value in values) or (
                name != names[0] and key != "consistency" and not other_input
            ):
                continue
            shown = (
                f"{title}, input of {protocols[name]['title']}" if other_input else title or protocols[name]["title"]
            )
            cells = [cell(key, value) for value in values]
            rows.append((shown, meaning if title else protocols[name]["description"], cells))
    return rows


def assumption(model: dict[str, Any]) -> str:
    """How images were prepared for a model that does not say."""
    wanted = model["preparation"]
    colours = f"mean {list(wanted['mean'])}, std {list(wanted['std'])}"
    if "scale" in wanted:
        size = f"at most {wanted['scale'][0]} x {wanted['scale'][1]} pixels"
        options = "--img-size, --mean, --std"
    else:
        size = f"{' x '.join(map(str, wanted['size']))} pixels, crop_pct {wanted['crop_pct']}"
        options = "--img-size, --crop-pct, --mean, --std"
    return f"{model['name']} does not say how to prepare its images; assumed: {size}, {colours} ({options})."


def other_classes(name: str, classes: int, of_data: int) -> str:
    """Why there is no mIoU."""
    return f"mIoU is not reported: {name} has {classes} classes, the data {of_data}."


def verdict(audit: dict[str, Any]) -> str:
    """One sentence on the first protocol alone; it says which kind of shift that is."""
    if not audit["data"]["images"]:
        return "Nothing was measured."
    kind = next(iter(audit["protocols"].values()))["description"].partition(",")[0]  # circular or standard
    dense = audit["task"] == SEGMENTATION
    return "; ".join(_steadiness(model, audit["data"]["images"], kind, dense) for model in audit["models"]) + "."


def _steadiness(model: dict[str, Any], images: int, kind: str, dense: bool) -> str:
    first = next(iter(model["measured"].values()))
    if dense:
        changed = 100 * (1 - first["consistency"]["rate"])
        moved = f"changes the label of {changed:.2g} % of the pixels"
        kept = f"keeps the label of every pixel of all {images} images"
    else:
        changed = round((1 - first["worst_case"]["rate"]) * images)
        moved = f"changes its answer for {changed} of {images} images"
        kept = f"gives all {images} images the same answer"
    exact = ", bit for bit" if first["bit_exact"]["rate"] == 1 else ""
    said = f"{moved} when the image moves" if changed else f"{kept} under every {kind} shift tried{exact}"
    return f"{model['name']} {said}"


def remarks(audit: dict[str, Any]) -> list[str]:
    """What a reader must know before the numbers."""
    found = []
    if audit["partial"]:
        data = audit["data"]
        found.append(f"Interrupted: {data['images']} of {data['asked']} images were measured.")
    untrained = [model["name"] for model in audit["models"] if model["random"]]
    if untrained:
        found.append(f"Weights are the random initialisation, nothing was learned: {' and '.join(untrained)}.")
    found += [assumption(model) for model in audit["models"] if model["assumed"]]
    if any(not model["labelled"] for model in audit["models"]) and audit["data"]["classes"]:
        measure = "mIoU" if audit["task"] == SEGMENTATION else "Top-1"
        found.append(f"{measure} is not reported where a model's classes are not those of the data.")
    skipped = audit["data"]["skipped"]
    if skipped:
        first = f"{skipped[0]['name']} ({skipped[0]['reason']})"
        found.append(
            f"Skipped: {first}." if len(skipped) == 1 else f"{len(skipped)} images skipped, {first} among them."
        )
    return found
