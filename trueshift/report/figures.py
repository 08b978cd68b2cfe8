"""Figures of an audit, for papers and slides: consistency by magnitude, planes of shifts, tokens, flipped labels."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure  # without pyplot: no window system, nothing kept open

from ..data import Source
from ..eval.audit.run import answer_name
from .images import PALETTE, colours_of, error_image, flip_images, plane_image, thumbnail
from .wording import MAGNITUDES

# "Consistency under different shift magnitudes", CIFAR-10, in percent, for offsets up to 8, 16, 24 and 32 pixels of 32
CONSISTENCY_BY_MAGNITUDE = {
    "Swin-T": (92.00, 89.65, 88.93, 88.13),
    "SwinV2-T": (92.13, 90.43, 89.67, 88.75),
    "CvT-13": (88.99, 87.42, 86.96, 86.84),
    "MViTv2-T": (91.49, 90.57, 90.46, 90.22),
    "adaptive (all four)": (100.0, 100.0, 100.0, 100.0),
}
_INK = {"light": ("#1f2328", "#d0d7de"), "dark": ("#e6edf3", "#3d444d")}


@contextmanager
def drawn(size: tuple[float, float], theme: str = "light", **options: Any) -> Iterator[tuple[Figure, io.BytesIO]]:
    """A figure to draw on, and the file that holds it as a PNG afterwards."""
    ink, faint = _INK[theme]
    settings: Any = {
        "text.color": ink, "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink, "axes.edgecolor": faint,
        "grid.color": faint, "axes.spines.top": False, "axes.spines.right": False, "font.size": 10,
        "legend.frameon": False, "savefig.dpi": 200, "savefig.bbox": "tight",
        "text.parse_math": False,  # names may hold a $
    }  # fmt: skip
    file = io.BytesIO()
    with matplotlib.rc_context(settings):
        figure = Figure(size, layout="constrained")
        yield figure, file
        figure.savefig(file, format="png", **options)


def magnitude_figure(audit: dict[str, Any], theme: str = "light", transparent: bool = False) -> bytes | None:
    """Consistency against the largest shift, beside the paper's curves; None if magnitudes were not measured."""
    names = [f"magnitude-{pixels}" for pixels in MAGNITUDES]
    if any(name not in audit["protocols"] for name in names) or not audit["data"]["images"]:
        return None
    share = [100 * pixels / 32 for pixels in MAGNITUDES]
    grey: Any = {"color": _INK[theme][0], "alpha": 0.4, "linewidth": 1}
    with drawn((4.4, 3.5), theme, transparent=transparent) as (figure, file):
        axes = figure.add_subplot()
        for name, curve in CONSISTENCY_BY_MAGNITUDE.items():
            axes.plot(share, curve, linestyle=":" if name.startswith("adaptive") else "--", **grey)
        axes.plot([], [], linestyle="--", label="paper, ordinary (four models)", **grey)
        axes.plot([], [], linestyle=":", label="paper, adaptive", **grey)
        for model, colour in zip(audit["models"], PALETTE, strict=False):
            rates = [model["measured"][name]["consistency"] for name in names]
            low, middle, high = ([100 * rate[key] for rate in rates] for key in ("low", "rate", "high"))
            ends = [np.subtract(middle, low), np.subtract(high, middle)]
            axes.errorbar(share, middle, ends, color=colour, marker="o", markersize=4, capsize=3, label=model["name"])
        axes.set(xlabel="largest circular shift, % of the image", ylabel="same answer as unshifted, %", xticks=share)
        axes.grid(axis="y", linewidth=0.5)
        figure.legend(loc="outside lower center", ncols=1, fontsize=8.5)
    return file.getvalue()


def planes_figure(audit: dict[str, Any], source: Source) -> bytes | None:
    """The answer over the plane of shifts, a row for each example and a column for each model."""
    models = [model for model in audit["models"] if model.get("planes")]
    if not models:
        return None
    rows = min(len(model["planes"]) for model in models)
    with drawn((2.4 * (len(models) + 1), 2.5 * rows)) as (figure, file):
        for line, *planes in zip(
            figure.subplots(rows, len(models) + 1, squeeze=False), *(model["planes"] for model in models), strict=False
        ):
            colours = colours_of(planes)
            line[0].imshow(thumbnail(source[planes[0]["index"]].image))
            line[0].set_title(planes[0]["name"], fontsize=9)
            for axes, model, plane in zip(line[1:], models, planes, strict=True):
                axes.imshow(plane_image(plane, colours), interpolation="nearest")
                answers = plane["different_answers"]
                axes.set_title(f"{model['name']}\n{answers} answer{'s' * (answers > 1)}", fontsize=9)
            for axes in line:
                axes.set(xticks=[], yticks=[])
            named = [(answer_name(models[0], label), colour) for label, colour in list(colours.items())[:6]]
            handles = [line[0].scatter([], [], color=colour, label=name) for name, colour in named]
            line[-1].legend(handles=handles, loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    return file.getvalue()


def tokens_figure(audit: dict[str, Any]) -> bytes | None:
    """The paper's figure on token stability: the change of each stage's tokens under a shift by one row and column."""
    models = [model for model in audit["models"] if model.get("tokens")]
    if not models:
        return None
    stages = max(len(model["tokens"][0]["stages"]) for model in models)
    with drawn((2.1 * stages, 2.4 * len(models))) as (figure, file):
        for row, model in zip(figure.subplots(len(models), stages, squeeze=False), models, strict=True):
            for axes in row:
                axes.set_axis_off()
            for number, (axes, stage) in enumerate(zip(row, model["tokens"][0]["stages"], strict=False), 1):
                axes.imshow(error_image(stage["error"], stage["scale"]), interpolation="nearest")
                height, width = len(stage["error"]), len(stage["error"][0])
                axes.set_title(f"stage {number}, {height} x {width}\nlargest {stage['largest']:.2g}", fontsize=8)
            row[0].text(0, -0.08, model["name"], transform=row[0].transAxes, fontsize=9, va="top")
    return file.getvalue()


def flips_figure(audit: dict[str, Any], source: Source) -> bytes | None:
    """The paper's figure on segmentation: a row for each example and model, from the image to what changed."""
    rows = [
        (model["name"], model["flips"][position])
        for position in range(min((len(model.get("flips", ())) for model in audit["models"]), default=0))
        for model in audit["models"]
    ]
    if not rows:
        return None
    heights = [2.5 * flip["size"][0] / flip["size"][1] + 0.3 for _, flip in rows]
    with drawn((12.5, sum(heights))) as (figure, file):
        grid = figure.subplots(len(rows), 5, squeeze=False, height_ratios=heights)
        for line, (model, flip) in zip(grid, rows, strict=True):
            titles = {
                "image": flip["name"],
                "shifted": f"shifted by ({flip['shift'][0]}, {flip['shift'][1]})",
                "before": model,
                "after": "shifted, moved back",
                "changes": f"{100 * flip['flipped']:.2g} % changed",
            }
            images = flip_images(flip, source)
            for axes, (which, title) in zip(line, titles.items(), strict=True):
                axes.imshow(images[which], interpolation="nearest")
                axes.set_title(title, fontsize=8.5)
                axes.set_axis_off()
    return file.getvalue()
