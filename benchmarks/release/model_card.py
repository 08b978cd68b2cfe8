"""The card of shipped weights, written from their JSON file and ``model_card.md.jinja`` alone."""

from pathlib import Path
from textwrap import fill
from typing import Any

from jinja2 import Environment, StrictUndefined

FAMILIES = {"swin": "Swin", "swinv2": "SwinV2", "cvt": "CvT", "mvitv2": "MViTv2"}
TEMPLATE = Path(__file__).with_name("model_card.md.jinja")


def card(about: dict[str, Any]) -> str:
    """The text of ``NAME.TAG.md``."""
    name, cfg, stored = about["architecture"], about["pretrained_cfg"], about["weights"]["stored"]
    made = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    made.filters |= {"paragraph": _paragraph, "percent": _percent, "thousands": "{:,}".format}
    return made.from_string(TEMPLATE.read_text()).render(
        about,
        cfg=cfg,
        adaptive=name.startswith("a_"),
        family=FAMILIES[name.removeprefix("a_").partition("_")[0]],
        stored=" and ".join(f"{count:,} in {kind}" for kind, count in stored.items() if kind != "int64"),
        needed=", ".join(f"`{key}={value!r}`" for key, value in about["arguments"].items()) or "nothing",
        mean=tuple(cfg["mean"]),
        std=tuple(cfg["std"]),
    )


def _paragraph(text: str, bullet: str = "") -> str:
    return fill(" ".join(text.split()), 120, initial_indent=bullet, subsequent_indent=" " * len(bullet))


def _percent(rate: float | None) -> str:
    return "not measured" if rate is None else f"{100 * rate:.2f} %"
