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
MOTION_ROWS = (
    ("flicker", "answer changes", "frames with another answer than the one before"),
    ("worst_case", "answer never changes", "images with one answer in all frames"),
    ("longest_run", "longest run of one answer", "as a part of all frames"),
)
MAGNITUDES = (8, 16, 24, 32)  # pixels of 32
PIXEL_ROWS = (
    ("mean_iou", "mIoU", "intersection over union on the unshifted images, the mean over the classes that occur"),
    ("pixel_accuracy", "pixel accuracy", "pixels with the right label on the unshifted images"),
    ("consistency", "", "pixels with the same label under two shifts of an image"),
    ("bit_exact", "bit-identical", "shifted images whose logits, moved back, have the very same bits"),
    ("largest_logit_change", "largest change of a logit", "over all pixels and shifts, against the unshifted image"),
)


def percent(rate: float | dict[str, float] | None) -> str:
    """A rate, alone or with its interval, as a table shows it; never rounded up to 100."""
    if rate is None:
        return "n/a"
    share = rate["rate"] if isinstance(rate, dict) else rate
    return f"{min(100 * share, 99.99) if share < 1 else 100 * share:.2f}\N{NO-BREAK SPACE}%"


def interval(rate: dict[str, float] | None) -> str:
    """The 95 % interval of a rate."""
    return f"{100 * rate['low']:.1f} to {100 * rate['high']:.1f}" if rate else ""


def number(value: float | None) -> str:
    """A change of logits."""
    return "n/a" if value is None else f"{value:.3g}"


def cell(key: str, value: Any) -> tuple[str, str]:
    """A measure as a table shows it, and its interval if it has one."""
    if key == "largest_logit_change":
        return number(value), ""
    return percent(value), "" if isinstance(value, float) else interval(value)


def table_rows(audit: dict[str, Any]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Title, explanation, and a cell with its interval for each model: real motion, circular shifts in full, others."""
    models, protocols = audit["models"], audit["protocols"]
    curve = {f"magnitude-{pixels}" for pixels in MAGNITUDES}  # a figure, where all of them are there
    compared = [name for name in protocols if not curve < protocols.keys() or name not in curve]
    real = [name for name in compared if protocols[name].get("real_motion")]
    names = [name for name in compared if name not in real]
    rows = []
    for name in [*real, *names]:
        title, described = protocols[name]["title"], protocols[name]["description"]
        if "flicker" in models[0]["measured"][name]:
            for key, what, meaning in MOTION_ROWS:
                cells = [cell(key, model["measured"][name][key]) for model in models]
                rows.append((f"{title}, {what}", f"{meaning}; {described}" if key == "flicker" else meaning, cells))
            continue
        for key, what, meaning in PIXEL_ROWS if audit["task"] == SEGMENTATION else ROWS:
            values, first = ([model["measured"][each][key] for model in models] for each in (name, compared[0]))
            # images padded for standard shifts differ from those that fill their frame for circular ones
            other_input = key == "mean_iou" and values != first
            wanted = name in names[:1] or key == "consistency" or other_input
            if wanted and any(value is not None for value in values):
                shown = what + (f", input of {title}" if other_input else "")
                texts = (shown, meaning) if what else (title, described)
                rows.append((*texts, [cell(key, value) for value in values]))
    return rows


def field_rows(result: dict[str, Any]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """The same of networks for fields; explained is the first row of a kind."""
    measured, settings = [model["measured"] for model in result["models"]], result["settings"]
    after = {str(count): f"after {count} step{'s' * (count != 1)}" for count in result["steps"]}
    errors = [each["relative_l2"] for each in measured]
    shares = [each["harmonics"]["error"] for each in measured]
    shifts = f"{settings['shifts']} random shifts{' of columns' * (settings['circular'] == 'width')} of each trajectory"
    moved = "the largest difference between the rollout of a rolled state and the rolled rollout, in deviations"
    kinds: list[tuple[str, dict[str, list[str]]]] = [
        ("of rollouts from the first states", {f"relative L2, {after[at]}": _shares(errors, at) for at in after}),
        ("", {"relative L2, one step from every state": _shares(measured, "one_step_l2")}),
        ("for comparison", {"relative L2, the state repeated": _shares(measured, "persistence_l2")}),
        (
            f"{moved}, {shifts}",
            {f"shift error, {after[at]}": [number(each["shift_error"][at]) for each in measured] for at in after},
        ),
        (
            "the share of one step's error that repeats with every patch",
            {
                f"pattern of {patch} x {patch} patches": _shares(shares, patch)
                for patch in sorted({patch for each in shares for patch in each}, key=int)
            },
        ),
    ]
    return [
        (title, "" if number else meaning, [(value, "") for value in cells])
        for meaning, rows in kinds
        for number, (title, cells) in enumerate(rows.items())
    ]


def field_verdict(result: dict[str, Any]) -> str:
    """Whether rollouts move with the state."""
    steps = result["steps"][-1]
    said = []
    for model in result["models"]:
        apart = max(model["measured"]["shift_error"].values())
        exact = "moves with the state under every shift tried, bit for bit"
        other = f"differs by up to {number(apart)} deviations when the state is rolled"
        said.append(f"The rollout of {model['name']} {other if apart else exact}, over {steps} step{'s' * (steps > 1)}")
    return "; ".join(said).replace("; The", "; the") + "."


def field_remarks(result: dict[str, Any]) -> list[str]:
    """What a reader must know of the fields."""
    if not result["steps_left_out"]:
        return []
    done, longer = (", ".join(map(str, result[key])) for key in ("steps", "steps_left_out"))
    times = result["data"]["times"]
    return [f"Trajectories have {times} times: rollouts of {done} steps were measured, not those of {longer}."]


def _shares(found: list[dict[str, float]], key: str) -> list[str]:
    return [percent(each.get(key)) for each in found]


def assumption(model: dict[str, Any]) -> str:
    """How images were prepared for a model that does not say."""
    wanted = model["preparation"]
    dense = "scale" in wanted
    size = " x ".join(map(str, wanted["scale" if dense else "size"]))
    size = f"at most {size} pixels" if dense else f"{size} pixels, crop_pct {wanted['crop_pct']}"
    colours = f"mean {list(wanted['mean'])}, std {list(wanted['std'])}"
    options = "--img-size, --mean, --std" if dense else "--img-size, --crop-pct, --mean, --std"
    return f"{model['name']} does not say how to prepare its images; assumed: {size}, {colours} ({options})."


def verdict(audit: dict[str, Any]) -> str:
    """A sentence on the first protocol alone, which says what kind of shift that is, after one on moving crops."""
    images, protocols, models = audit["data"]["images"], audit["protocols"], audit["models"]
    if not images:
        return "Nothing was measured."
    first = next(iter(protocols))
    dense, ways = audit["task"] == SEGMENTATION, _ways(protocols[first]["description"])
    said = "; ".join(_steadiness(model, first, images, ways, dense) for model in models) + "."
    path = next((name for name in protocols if "flicker" in models[0]["measured"][name]), first)
    if path == first:
        return said
    flicker = [f"{model['name']} in {percent(model['measured'][path]['flicker'])}" for model in models]
    return f"While a crop moves over the image, the answer changes from frame to frame: {', '.join(flicker)}. {said}"


def _ways(description: str) -> tuple[str, str]:
    """Under what the answers to an image were compared: where some change, and where none does."""
    kind = description.partition(",")[0]
    if kind in ("circular", "standard"):
        return f"under {kind} shifts", f"under every {kind} shift tried"
    view = "version" if " versions " in description else "crop"
    return f"from {view} to {view}", f"in every {view} tried"


def _steadiness(model: dict[str, Any], protocol: str, images: int, ways: tuple[str, str], dense: bool) -> str:
    first = model["measured"][protocol]
    if dense:
        changed = 100 * (1 - first["consistency"]["rate"])
        moved = f"changes the label of {changed:.2g} % of the pixels"
        kept = f"keeps the label of every pixel of all {images} images"
    else:
        changed = round((1 - first["worst_case"]["rate"]) * images)
        moved = f"changes its answer for {changed} of {images} images"
        kept = f"keeps its answer for all {images} images"
    exact = ", bit for bit" if first["bit_exact"]["rate"] == 1 else ""
    return f"{model['name']} " + (f"{moved} {ways[0]}" if changed else f"{kept} {ways[1]}{exact}")


def remarks(models: list[dict[str, Any]], data: dict[str, Any]) -> list[str]:
    """What a reader must know of models and data before the numbers."""
    found = []
    if untrained := [model["name"] for model in models if model["random"]]:
        found.append(f"Weights are the random initialisation, nothing was learned: {' and '.join(untrained)}.")
    found += [assumption(model) for model in models if model["assumed"]]
    if data["skipped"]:
        first, *more = data["skipped"]
        others = f" and {len(more)} more images" if more else ""
        found.append(f"Skipped: {first['name']} ({first['reason']}){others}.")
    return found


def audit_remarks(audit: dict[str, Any]) -> list[str]:
    """The same of an audit, with what it lacks."""
    data, models, found = audit["data"], audit["models"], []
    if audit["partial"]:
        found.append(f"Interrupted: {data['images']} of {data['asked']} images were measured.")
    if any(not model["labelled"] for model in models) and data["classes"]:
        measure = "mIoU" if audit["task"] == SEGMENTATION else "Top-1"
        found.append(f"{measure} is not reported where a model's classes are not those of the data.")
    return found + remarks(models, data)
