"""What the page shows of segmentation models: maps of flipped labels, the worst images, classes."""

from typing import Any

import numpy as np
from PIL import Image

from ..data import Source
from ..eval.audit.run import answer_name
from .flip_pictures import classes_in, colour_of, flip_pictures
from .pictures import data_uri, photo

_NAMED = 12  # classes in a legend, at most
_LONGEST = 512  # side of a picture on the page


def scene_sections(audit: dict[str, Any], source: Source) -> dict[str, Any]:
    """Everything that ``page_scenes.html`` asks for."""
    return {"flips": _flips(audit, source), "worst": _worst(audit, source), "classes": _classes(audit)}


def _flips(audit: dict[str, Any], source: Source) -> list[dict[str, Any]]:
    """Each example with the flip maps of every model and a legend they share."""
    models, shown = audit["models"], []
    for position in range(min((len(model["flips"]) for model in models), default=0)):
        flips = [model["flips"][position] for model in models]
        drawn = [flip_pictures(flip, source) for flip in flips]
        labels = classes_in(flips)
        shown.append(
            {
                "name": flips[0]["name"],
                "shift": flips[0]["shift"],
                "image": _smooth(drawn[0]["image"]),
                "shifted": _smooth(drawn[0]["shifted"]),
                "models": [
                    {
                        "model": model["name"],
                        "shift": flip["shift"],
                        "flipped": flip["flipped"],
                        "before": _crisp(pictures["before"]),
                        "after": _crisp(pictures["after"]),
                        "changes": _smooth(pictures["changes"]),
                    }
                    for model, flip, pictures in zip(models, flips, drawn, strict=True)
                ],
                "legend": [
                    {"name": answer_name(models[0], label), "colour": colour_of(label)} for label in labels[:_NAMED]
                ],
                "unnamed": max(0, len(labels) - _NAMED),
            }
        )
    return shown


def _smooth(picture: np.ndarray) -> str:
    return _inside_page(picture, Image.Resampling.BOX)


def _crisp(picture: np.ndarray) -> str:
    """Labels have no colours between them."""
    return _inside_page(picture, Image.Resampling.NEAREST)


def _inside_page(picture: np.ndarray, filter: Image.Resampling) -> str:
    image = Image.fromarray(picture)
    image.thumbnail((_LONGEST, _LONGEST), filter)
    return data_uri(np.asarray(image))


def _worst(audit: dict[str, Any], source: Source) -> list[dict[str, Any]]:
    """For each model its least consistent images."""
    return [
        {
            "model": model["name"],
            "images": [{**entry, **photo(source, entry["index"], 96)} for entry in model["worst_images"]],
        }
        for model in audit["models"]
    ]


def _classes(audit: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per class that occurs for any model, the worst of the first model first."""
    columns = [next(iter(model["measured"].values()))["iou_by_class"] or [] for model in audit["models"]]
    rows = []
    for label in range(max(map(len, columns))):
        shares = [column[label] if label < len(column) else None for column in columns]
        if any(share is not None for share in shares):
            rows.append({"name": answer_name(audit["models"][0], label), "shares": shares})
    return sorted(rows, key=lambda row: 2.0 if row["shares"][0] is None else row["shares"][0])
