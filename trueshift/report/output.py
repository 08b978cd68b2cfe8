"""An audit as files: data, figures, a table of images and the page."""

import csv
import io
from pathlib import Path
from typing import Any

from ..data import Source
from ..utils.files import json_text, write_whole
from .figures import flips_figure, magnitude_figure, planes_figure, tokens_figure
from .page import render_page
from .wording import SEGMENTATION


def write_audit(audit: dict[str, Any], source: Source, folder: Path) -> Path:
    """Write ``audit.json``, ``images.csv``, ``figures/*.png`` and ``report.html``; gives the path of the page."""
    write_whole(folder / "audit.json", json_text(audit))
    write_whole(folder / "images.csv", _images_table(audit, source))
    (folder / "figures").mkdir(exist_ok=True)
    for name, figure in _figures(audit, source).items():
        if figure is not None:
            write_whole(folder / "figures" / f"{name}.png", figure)
    return write_whole(folder / "report.html", render_page(audit, source))


def _figures(audit: dict[str, Any], source: Source) -> dict[str, bytes | None]:
    if audit["task"] == SEGMENTATION:
        return {"flips": flips_figure(audit, source)}
    return {
        "magnitudes": magnitude_figure(audit),
        "planes": planes_figure(audit, source),
        "tokens": tokens_figure(audit),
    }


def _images_table(audit: dict[str, Any], source: Source) -> str:
    """The consistency of each image under each model."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["index", "name", *(model["name"] for model in audit["models"])])
    columns = [dict(model["consistency_of_images"]) for model in audit["models"]]
    for index in columns[0]:
        writer.writerow([index, source.name(index), *(column.get(index, "") for column in columns)])
    return file.getvalue()
