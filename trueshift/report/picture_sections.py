"""What the page shows of classifiers: planes of answers, magnitudes, classes, the worst images, tokens."""

from typing import Any

from ..data import Source
from ..eval.audit.run import answer_name
from .figures import magnitude_figure
from .pictures import colours_of, data_uri, error_picture, photo, plane_picture


def picture_sections(audit: dict[str, Any], source: Source) -> dict[str, Any]:
    """Everything that ``page_pictures.html`` asks for."""
    return {
        "examples": _examples(audit, source),
        "magnitudes": _magnitudes(audit),
        "classes": _classes(audit),
        "worst": _worst(audit, source),
        "tokens": _tokens(audit),
    }


def _examples(audit: dict[str, Any], source: Source) -> list[dict[str, Any]]:
    """Each example image with the plane of every model and a legend they share."""
    models = [model for model in audit["models"] if model["planes"]]
    shown = []
    for position in range(min((len(model["planes"]) for model in models), default=0)):
        planes = [model["planes"][position] for model in models]
        colours = colours_of(planes)
        shown.append(
            {
                "name": planes[0]["name"],
                "label": _label_name(audit, planes[0]["label"]),
                **photo(source, planes[0]["index"], 128),
                "planes": [
                    {**plane, "model": model["name"], "picture": data_uri(plane_picture(plane, colours))}
                    for model, plane in zip(models, planes, strict=True)
                ],
                "legend": [
                    {"name": answer_name(models[0], label), "colour": colour} for label, colour in colours.items()
                ][:12],
                "unnamed": max(0, len(colours) - 12),
            }
        )
    return shown


def _label_name(audit: dict[str, Any], label: int | None) -> str | None:
    classes = audit["data"]["classes"]
    return classes[label] if classes and label is not None else None


def _magnitudes(audit: dict[str, Any]) -> dict[str, str] | None:
    pictures = {theme: magnitude_figure(audit, theme, transparent=True) for theme in ("light", "dark")}
    return {theme: data_uri(picture) for theme, picture in pictures.items() if picture} or None


def _classes(audit: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per class of the data, the least consistent first."""
    found: dict[int, list[Any]] = {}
    for model in audit["models"]:
        for entry in model["by_class"]:
            found.setdefault(entry["label"], []).append(entry)
    rows = [
        {"name": _label_name(audit, label), "images": entries[0]["images"], "entries": entries}
        for label, entries in found.items()
        if len(entries) == len(audit["models"])
    ]
    return sorted(rows, key=lambda row: row["entries"][0]["consistency"])


def _worst(audit: dict[str, Any], source: Source) -> list[dict[str, Any]]:
    """For each model its least consistent images."""
    return [
        {
            "model": model["name"],
            "images": [
                {
                    **entry,
                    **photo(source, entry["index"], 96),
                    "true": _label_name(audit, entry["label"]),
                    "answers": [{**answer, "name": answer_name(model, answer["label"])} for answer in entry["answers"]],
                }
                for entry in model["worst_images"]
            ],
        }
        for model in audit["models"]
    ]


def _tokens(audit: dict[str, Any]) -> list[dict[str, Any]]:
    """For each example the error maps of every stage, model beside model."""
    models = [model for model in audit["models"] if model["tokens"]]
    shown = []
    for position in range(min((len(model["tokens"]) for model in models), default=0)):
        entries = [model["tokens"][position] for model in models]
        shown.append(
            {
                "name": entries[0]["name"],
                "models": [
                    {
                        "name": model["name"],
                        "stages": [
                            {
                                "size": f"{len(stage['error'])} x {len(stage['error'][0])}",
                                "largest": stage["largest"],
                                "picture": data_uri(error_picture(stage["error"], stage["scale"])),
                            }
                            for stage in entry["stages"]
                        ],
                    }
                    for model, entry in zip(models, entries, strict=True)
                ],
            }
        )
    return shown
