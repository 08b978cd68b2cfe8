"""One page that shows what an audit found: no other file, no network, no script. And the files beside it."""

import csv
import io
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from ..data import Source
from ..eval.audit.run import answer_name
from ..utils.files import json_text, write_whole
from . import images, wording
from .figures import flips_figure, magnitude_figure, planes_figure, tokens_figure

_FOLDER = Path(__file__).parent
_NAMED = 12  # classes in a legend, at most
_LONGEST = 512  # side of an image on the page


def write_audit(audit: dict[str, Any], source: Source, folder: Path) -> Path:
    """Write ``audit.json``, ``images.csv``, ``figures/*.png`` and ``report.html``; returns the path of the page."""
    write_whole(folder / "audit.json", json_text(audit))
    write_whole(folder / "images.csv", _images_table(audit, source))
    (folder / "figures").mkdir(exist_ok=True)
    figures = {
        "magnitudes": magnitude_figure(audit),
        "planes": planes_figure(audit, source),
        "tokens": tokens_figure(audit),
        "flips": flips_figure(audit, source),
    }
    for name, figure in figures.items():
        if figure is not None:
            write_whole(folder / "figures" / f"{name}.png", figure)
    return write_whole(folder / "report.html", render_page(audit, source))


def _images_table(audit: dict[str, Any], source: Source) -> str:
    """The consistency of each image under each model."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["index", "name", *(model["name"] for model in audit["models"])])
    columns = [dict(model["consistency_of_images"]) for model in audit["models"]]
    for index in columns[0]:
        writer.writerow([index, source.name(index), *(column.get(index, "") for column in columns)])
    return file.getvalue()


def render_page(audit: dict[str, Any], source: Source) -> str:
    """The page as text. Names of files and classes are escaped."""
    dense = audit["task"] == wording.SEGMENTATION
    return rendered(
        "images.html",
        audit,
        question="Does the answer change when the image moves?",
        verdict=wording.verdict(audit),
        remarks=wording.audit_remarks(audit),
        rows=wording.table_rows(audit),
        dense=dense,
        examples={kind: _examples(audit, kind) for kind in ("planes", "tokens", "flips")},
        magnitudes={theme: magnitude_figure(audit, theme, transparent=True) for theme in ("light", "dark")},
        classes=_iou_by_class(audit) if dense else _consistency_by_class(audit),
        answer_name=answer_name,
        colours_of=images.colours_of,
        error_image=images.error_image,
        flip_images=partial(images.flip_images, source=source),
        label_name=partial(_label_name, audit),
        legend=_legend,
        legend_of_flips=lambda model, flips: _legend(
            model, {at: images.colour_of(at) for at in images.classes_in(flips)}
        ),
        photo=lambda index, side: images.thumbnail(source[index].image, side),
        plane_image=images.plane_image,
    )


def rendered(template: str, audit: dict[str, Any], **values: Any) -> str:
    """A page from a template that fills in ``page.html``; all text is escaped."""
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.filters.update(number=wording.number, percent=wording.percent)
    environment.filters.update(data_uri=images.data_uri, in_page=_in_page)
    environment.globals.update(values)  # macros see these alone
    return environment.get_template(template).render(audit=audit, style=(_FOLDER / "page.css").read_text())


def _examples(audit: dict[str, Any], kind: str) -> list[list[tuple[dict[str, Any], dict[str, Any]]]]:
    """For each example, the models that have details of a kind, each with its entry."""
    models = [model for model in audit["models"] if model.get(kind)]
    entries = zip(*(model[kind] for model in models), strict=False)
    return [list(zip(models, example, strict=True)) for example in entries]


def _legend(model: dict[str, Any], colours: dict[int, str]) -> dict[str, Any]:
    """Names of the first colours, and how many are left out."""
    named = [(answer_name(model, label), colour) for label, colour in colours.items()]
    return {"named": named[:_NAMED], "more": max(0, len(colours) - _NAMED)}


def _in_page(image: np.ndarray, labels: bool = False) -> str:
    """An image at the size of the page; labels have no colours between them."""
    small = Image.fromarray(image)
    small.thumbnail((_LONGEST, _LONGEST), Image.Resampling.NEAREST if labels else Image.Resampling.BOX)
    return images.data_uri(np.asarray(small))


def _label_name(audit: dict[str, Any], label: int | None) -> str | None:
    classes = audit["data"]["classes"]
    return classes[label] if classes and label is not None else None


def _consistency_by_class(audit: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per class of the data, the least consistent first."""
    found: dict[int, list[Any]] = {}
    for model in audit["models"]:
        for entry in model["by_class"]:
            found.setdefault(entry["label"], []).append(entry)
    return [
        {
            "name": _label_name(audit, label),
            "images": entries[0]["images"],
            "cells": [
                (
                    f"{wording.percent(each['consistency'])} same answer",
                    "" if each["top1"] is None else f"{wording.percent(each['top1'])} right",
                )
                for each in entries
            ],
        }
        for label, entries in sorted(found.items(), key=lambda each: (each[1][0]["consistency"], each[0]))
        if len(entries) == len(audit["models"])
    ]


def _iou_by_class(audit: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per class that occurs for any model, the worst of the first model first."""
    columns = [next(iter(model["measured"].values()))["iou_by_class"] or [] for model in audit["models"]]
    found = [each for each in enumerate(itertools.zip_longest(*columns)) if any(share is not None for share in each[1])]
    found.sort(key=lambda each: 2.0 if each[1][0] is None else each[1][0])
    return [
        {"name": answer_name(audit["models"][0], at), "cells": [(wording.percent(share), "") for share in shares]}
        for at, shares in found
    ]
