"""Figures of an audit of networks for fields: spectra, maps, and a rollout beside the truth as an animation."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from ..utils.files import write_whole
from .figures import drawn
from .images import PALETTE

_SIDE = 192  # pixels of a map in the animation, at least
_GAP = 8  # pixels between maps
_FRAME_MS = 150


def write_field_figures(result: dict[str, Any], rollouts: dict[str, Any], folder: Path) -> None:
    """Write ``spectrum.png``, ``maps.png`` and ``rollout.gif``.

    Args:
        rollouts: as :func:`~trueshift.eval.runner.fields.example_rollouts` gives them; of the first channel.
    """
    folder.mkdir(exist_ok=True)
    names = [model["name"] for model in result["models"]]
    write_whole(folder / "spectrum.png", _spectrum_figure(result))
    write_whole(folder / "maps.png", _maps_figure(names, result["steps"], rollouts))
    write_whole(folder / "rollout.gif", _animation(rollouts))


def _spectrum_figure(result: dict[str, Any]) -> bytes:
    """Energy by wave number, of the truth and of each network's rollout."""
    steps, waves = result["steps"], slice(1, max(result["data"]["size"]) // 2 + 1)

    def draw(figure: Figure) -> None:
        for axes, count in zip(np.atleast_1d(figure.subplots(1, len(steps), sharey=True)), steps, strict=True):
            found = [model["measured"]["spectrum"][str(count)] for model in result["models"]]
            numbers = np.arange(len(found[0]["true"]))[waves]
            axes.loglog(numbers, found[0]["true"][waves], color="black", linestyle="--", label="truth")
            for model, each, colour in zip(result["models"], found, PALETTE, strict=False):
                axes.loglog(numbers, each["predicted"][waves], color=colour, label=model["name"])
            axes.set(title=f"after {count} step{'s' * (count > 1)}", xlabel="wave number")
            axes.grid(alpha=0.5)
        axes.legend()
        figure.axes[0].set_ylabel("energy")

    return drawn(draw, (3.2 * len(steps) + 0.8, 3.2))


def _maps_figure(names: list[str], steps: list[int], rollouts: dict[str, Any]) -> bytes:
    """A row for each network and length: truth, rollout, its error, and how far it is from moving with the state."""
    largest = np.abs(rollouts["true"][:, 0]).max() or 1.0
    rows = [(name, made, count) for name, made in zip(names, rollouts["models"], strict=True) for count in steps]

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(rows), 4, squeeze=False)
        for line, (name, made, count) in zip(grid, rows, strict=True):
            true, said, apart = (field[count, 0] for field in (rollouts["true"], made["predicted"], made["apart"]))
            for axes, field in zip(line, (true, said, said - true, apart), strict=True):
                axes.imshow(field, cmap="RdBu_r", vmin=-largest, vmax=largest)
                axes.set(xticks=[], yticks=[])
            line[0].set_ylabel(f"{name}\nstep {count}")
            line[3].set_xlabel(f"at most {np.abs(apart).max():.2g}")
        for axes, title in zip(grid[0], ("truth", "rollout", "error", "rolled, difference"), strict=True):
            axes.set_title(title)

    return drawn(draw, (8, 2.1 * len(rows) + 0.3))


def _animation(rollouts: dict[str, Any]) -> bytes:
    """The truth, then the rollout of each network, from left to right."""
    fields = [rollouts["true"], *(made["predicted"] for made in rollouts["models"])]
    largest = float(np.abs(fields[0][:, 0]).max()) or 1.0
    times = np.stack([field[:, 0] for field in fields], 1)  # time, panel, row, column
    scale = -(-_SIDE // max(times.shape[2:]))
    colours = colormaps["RdBu_r"](np.clip(times / largest / 2 + 0.5, 0, 1), bytes=True)[..., :3]
    panels = np.pad(
        colours.repeat(scale, 2).repeat(scale, 3), ((0, 0), (0, 0), (0, 0), (0, _GAP), (0, 0)), constant_values=255
    )
    first, *others = (Image.fromarray(np.concatenate(list(frame), 1)) for frame in panels)
    file = io.BytesIO()
    first.save(file, format="GIF", save_all=True, append_images=others, duration=_FRAME_MS, loop=0)
    return file.getvalue()
