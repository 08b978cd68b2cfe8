"""One page that shows what an audit found: no other file, no network, no script."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..data import Source
from .picture_sections import picture_sections
from .scene_sections import scene_sections
from .wording import SEGMENTATION, interval, number, percent, remarks, table_rows, verdict

_FOLDER = Path(__file__).parent


def render_page(audit: dict[str, Any], source: Source) -> str:
    """The page as text. Names of files and classes are escaped."""
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.filters.update(percent=percent, interval=interval, number=number)
    return environment.get_template("page.html").render(
        audit=audit,
        style=(_FOLDER / "page.css").read_text(),
        verdict=verdict(audit),
        remarks=remarks(audit),
        rows=table_rows(audit),
        **(scene_sections if audit["task"] == SEGMENTATION else picture_sections)(audit, source),
    )
