"""An audit of networks for fields: spectra, maps, a rollout beside the truth as an animation, and the page of all."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rcParams
from PIL import Image

from ..utils.files import json_text, write_whole
from . import wording
from .figures import drawn
from .images import PALETTE
from .page import rendered

_SIDE = 192  # pixels of a map in the animation, at least
_GAP, _GREY = 8, 160  # pixels between maps, and their brightness, on light and dark pages
_FRAME_MS = 150


def write_field_audit(result: dict[str, Any], rollouts: dict[str, Any], folder: Path) -> Path:
    """Write ``audit.json``, ``figures/`` and ``report.html``; returns the path of the page.

    Args:
        rollouts: as :func:`~trueshift.eval.fields.example_rollouts` gives them; of the first channel.
    """
    (folder / "figures").mkdir(exist_ok=True)
    animation, names = _animation(rollouts), [model["name"] for model in result["models"]]
    figures = {
        "spectrum.png": _spectrum_figure(result, result["steps"]),
        "maps.png": _maps_figure(names, result["steps"], rollouts),
        "rollout.gif": animation,
    }
    for name, figure in figures.items():
        write_whole(folder / "figures" / name, figure)
    write_whole(folder / "audit.json", json_text(result))
    return write_whole(folder / "report.html", render_field_page(result, rollouts, animation))


def render_field_page(result: dict[str, Any], rollouts: dict[str, Any], animation: bytes) -> str:
    """The page as text."""
    rows, columns = (side // 2 + 1 for side in result["data"]["size"])
    return rendered(
        "fields.html",
        result,
        question="Does the forecast move with the field?",
        verdict=wording.field_verdict(result),
        remarks=wording.field_remarks(result),
        rows=wording.field_rows(result),
        animation=animation,
        largest=_largest(rollouts),
        rolled=f"{rows} rows and {columns} columns"
        if result["settings"]["circular"] == "both"
        else f"{columns} columns",
        maps=[
            (model["name"], [_tiles(rollouts, made, count) for count in result["steps"]])
            for model, made in zip(result["models"], rollouts["models"], strict=True)
        ],
        spectra=[
            (count, {theme: _spectrum_figure(result, [count], theme, transparent=True) for theme in ("light", "dark")})
            for count in result["steps"]
        ],
    )


def _largest(rollouts: dict[str, Any]) -> float:
    """The scale of all colours."""
    return float(np.abs(rollouts["true"][:, 0]).max()) or 1.0


def _coloured(fields: np.ndarray, largest: float) -> np.ndarray:
    """From blue over white to red."""
    return colormaps["RdBu_r"](np.clip(fields / largest / 2 + 0.5, 0, 1), bytes=True)[..., :3]


def _maps(rollouts: dict[str, Any], made: dict[str, Any], steps: int) -> dict[str, np.ndarray]:
    """What is shown of a rollout after some steps."""
    true, said, apart = (field[steps, 0] for field in (rollouts["true"], made["predicted"], made["apart"]))
    return {"truth": true, "rollout": said, "error": said - true, "rolled, difference": apart}


def _tiles(rollouts: dict[str, Any], made: dict[str, Any], steps: int) -> dict[str, Any]:
    """The same for the page."""
    maps, largest = _maps(rollouts, made, steps), _largest(rollouts)
    tiles = [(title, _coloured(field, largest)) for title, field in maps.items()]
    return {"steps": steps, "apart": float(np.abs(maps["rolled, difference"]).max()), "tiles": tiles}


def _spectrum_figure(result: dict[str, Any], steps: list[int], theme: str = "light", **options: Any) -> bytes:
    """Energy by wave number, of the truth and of each network's rollout."""
    waves = slice(1, min(result["data"]["size"]) // 2 + 1)  # up to 2 points per wave
    with drawn((3.2 * len(steps) + 0.8, 3.2), theme, **options) as (figure, file):
        for axes, count in zip(np.atleast_1d(figure.subplots(1, len(steps), sharey=True)), steps, strict=True):
            found = [model["measured"]["spectrum"][str(count)] for model in result["models"]]
            numbers, ink = np.arange(len(found[0]["true"]))[waves], rcParams["text.color"]
            axes.loglog(numbers, found[0]["true"][waves], color=ink, linestyle="--", label="truth")
            for model, each, colour in zip(result["models"], found, PALETTE, strict=False):
                axes.loglog(numbers, each["predicted"][waves], color=colour, label=model["name"])
            axes.set(title=f"after {count} step{'s' * (count > 1)}", xlabel="waves per shorter side")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            axes.grid(alpha=0.5)
        figure.axes[0].set_ylabel("energy")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1, fontsize=8.5)
    return file.getvalue()


def _maps_figure(names: list[str], steps: list[int], rollouts: dict[str, Any]) -> bytes:
    """A row for each network and length: truth, rollout, its error, and how far it is from moving with the state."""
    largest = _largest(rollouts)
    rows = [(name, made, count) for name, made in zip(names, rollouts["models"], strict=True) for count in steps]
    with drawn((8, 2.1 * len(rows) + 0.3)) as (figure, file):
        grid = figure.subplots(len(rows), 4, squeeze=False)
        for line, (name, made, count) in zip(grid, rows, strict=True):
            maps = _maps(rollouts, made, count)
            for axes, field in zip(line, maps.values(), strict=True):
                axes.imshow(_coloured(field, largest))
                axes.set(xticks=[], yticks=[])
            line[0].set_ylabel(f"{name}\nstep {count}")
            line[3].set_xlabel(f"at most {np.abs(maps['rolled, difference']).max():.2g}")
        for axes, title in zip(grid[0], maps, strict=True):
            axes.set_title(title)
    return file.getvalue()


def _animation(rollouts: dict[str, Any]) -> bytes:
    """The truth, then the rollout of each network, from left to right."""
    fields = [rollouts["true"], *(made["predicted"] for made in rollouts["models"])]
    times = np.stack([field[:, 0] for field in fields], 1)  # time, panel, row, column
    scale = -(-_SIDE // max(times.shape[2:]))
    colours = _coloured(times, _largest(rollouts))
    gaps = ((0, 0), (0, 0), (0, 0), (0, _GAP), (0, 0))
    panels = np.pad(colours.repeat(scale, 2).repeat(scale, 3), gaps, constant_values=_GREY)
    first, *others = (Image.fromarray(np.concatenate(list(frame), 1)[:, :-_GAP]) for frame in panels)
    file = io.BytesIO()
    first.save(file, format="GIF", save_all=True, append_images=others, duration=_FRAME_MS, loop=0)
    return file.getvalue()
