"""One page that shows what an audit found: no other file, no network, no script. And the files beside it."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from ..data import Source
from ..eval.audit.run import answer_name
from ..utils.files import json_text, write_whole
from .figures import flips_figure, magnitude_figure, planes_figure, tokens_figure
from .images import classes_in, colour_of, colours_of, data_uri, error_image, flip_images, photo, plane_image
from .wording import SEGMENTATION, interval, number, percent, remarks, table_rows, verdict

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
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.filters.update(percent=percent, interval=interval, number=number)
    dense = audit["task"] == SEGMENTATION
    return environment.get_template("page.html").render(
        audit=audit,
        dense=dense,
        style=(_FOLDER / "page.css").read_text(),
        verdict=verdict(audit),
        remarks=remarks(audit),
        rows=table_rows(audit),
        examples=[_planes(audit, source, *found) for found in _examples(audit, "planes")],
        magnitudes=_magnitudes(audit),
        tokens=[_tokens(*found) for found in _examples(audit, "tokens")],
        flips=[_flips(source, *found) for found in _examples(audit, "flips")],
        worst=_worst(audit, source),
        classes=_iou_by_class(audit) if dense else _consistency_by_class(audit),
    )


def _examples(audit: dict[str, Any], kind: str) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """The models that have details of a kind, and their entries for each example."""
    models = [model for model in audit["models"] if model.get(kind)]
    return [(models, list(entries)) for entries in zip(*(model[kind] for model in models), strict=False)]


def _legend(model: dict[str, Any], colours: dict[int, str]) -> dict[str, Any]:
    """Names of the first colours, and how many are left out."""
    named = [{"name": answer_name(model, label), "colour": colour} for label, colour in colours.items()]
    return {"legend": named[:_NAMED], "unnamed": max(0, len(colours) - _NAMED)}


def _planes(
    audit: dict[str, Any], source: Source, models: list[dict[str, Any]], planes: list[dict[str, Any]]
) -> dict[str, Any]:
    """An example with the plane of every model and a legend they share."""
    colours = colours_of(planes)
    return {
        "name": planes[0]["name"],
        "label": _label_name(audit, planes[0]["label"]),
        **photo(source, planes[0]["index"], 128),
        "planes": [
            {**plane, "model": model["name"], "image": data_uri(plane_image(plane, colours))}
            for model, plane in zip(models, planes, strict=True)
        ],
        **_legend(models[0], colours),
    }


def _tokens(models: list[dict[str, Any]], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """An example with the error maps of every stage, model beside model."""
    return {
        "name": entries[0]["name"],
        "models": [
            {
                "name": model["name"],
                "stages": [
                    {
                        "size": f"{len(stage['error'])} x {len(stage['error'][0])}",
                        "largest": stage["largest"],
                        "image": data_uri(error_image(stage["error"], stage["scale"])),
                    }
                    for stage in entry["stages"]
                ],
            }
            for model, entry in zip(models, entries, strict=True)
        ],
    }


def _flips(source: Source, models: list[dict[str, Any]], flips: list[dict[str, Any]]) -> dict[str, Any]:
    """An example with the flip maps of every model and a legend they share."""
    drawn = [flip_images(flip, source) for flip in flips]
    return {
        "name": flips[0]["name"],
        "shift": flips[0]["shift"],
        "image": _inside_page(drawn[0]["image"]),
        "shifted": _inside_page(drawn[0]["shifted"]),
        "models": [
            {
                "model": model["name"],
                "shift": flip["shift"],
                "flipped": flip["flipped"],
                "before": _inside_page(images["before"], labels=True),
                "after": _inside_page(images["after"], labels=True),
                "changes": _inside_page(images["changes"]),
            }
            for model, flip, images in zip(models, flips, drawn, strict=True)
        ],
        **_legend(models[0], {label: colour_of(label) for label in classes_in(flips)}),
    }


def _inside_page(image: np.ndarray, labels: bool = False) -> str:
    """An image at the size of the page; labels have no colours between them."""
    small = Image.fromarray(image)
    small.thumbnail((_LONGEST, _LONGEST), Image.Resampling.NEAREST if labels else Image.Resampling.BOX)
    return data_uri(np.asarray(small))


def _magnitudes(audit: dict[str, Any]) -> dict[str, str] | None:
    figures = {theme: magnitude_figure(audit, theme, transparent=True) for theme in ("light", "dark")}
    return {theme: data_uri(figure) for theme, figure in figures.items() if figure} or None


def _label_name(audit: dict[str, Any], label: int | None) -> str | None:
    classes = audit["data"]["classes"]
    return classes[label] if classes and label is not None else None


def _worst(audit: dict[str, Any], source: Source) -> list[dict[str, Any]]:
    """For each model its least consistent images."""
    return [
        {
            "model": model["name"],
            "images": [
                {
                    **entry,
                    **photo(source, entry["index"], 96),
                    "true": _label_name(audit, entry.get("label")),
                    "answers": [
                        {**answer, "name": answer_name(model, answer["label"])} for answer in entry.get("answers", [])
                    ],
                }
                for entry in model["worst_images"]
            ],
        }
        for model in audit["models"]
    ]


def _consistency_by_class(audit: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per class of the data, the least consistent first."""
    found: dict[int, list[Any]] = {}
    for model in audit["models"]:
        for entry in model["by_class"]:
            found.setdefault(entry["label"], []).append(entry)
    whole = {label: entries for label, entries in found.items() if len(entries) == len(audit["models"])}
    return [
        {
            "name": _label_name(audit, label),
            "images": entries[0]["images"],
            "cells": [
                (f"{_hundred(each['consistency'])} same answer", _hundred(each["top1"], " right")) for each in entries
            ],
        }
        for label, entries in sorted(whole.items(), key=lambda item: item[1][0]["consistency"])
    ]


def _iou_by_class(audit: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per class that occurs for any model, the worst of the first model first."""
    columns = [next(iter(model["measured"].values()))["iou_by_class"] or [] for model in audit["models"]]
    rows = []
    for label in range(max(map(len, columns))):
        shares = [column[label] if label < len(column) else None for column in columns]
        if any(share is not None for share in shares):
            rows.append((shares, answer_name(audit["models"][0], label)))
    rows.sort(key=lambda row: 2.0 if row[0][0] is None else row[0][0])
    return [{"name": name, "cells": [(_hundred(share) or "n/a", "") for share in shares]} for shares, name in rows]


def _hundred(share: float | None, meaning: str = "") -> str:
    return "" if share is None else f"{100 * share:.1f} %{meaning}"
