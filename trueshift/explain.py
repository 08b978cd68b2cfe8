"""What a network chose for an image, and how clearly: as data, as a table and as a figure."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from .criteria import Candidates, Criterion
from .layers.attention import AlignWindows
from .models.backbone import Backbone
from .motion import Video
from .ops.geometry.grid import TokenGrid
from .ops.geometry.shift import Pair
from .ops.selection.choose import Choice
from .tasks.dense import DenseModel
from .utils.evaluation_mode import in_evaluation
from .utils.wrappers import unwrapped


@dataclass(frozen=True)
class Decision:
    """One choice of one layer, for every image of the batch; see :class:`.Choice`."""

    layer: str  # where in the model
    stride: Pair  # between how many grids, in rows and columns
    offset: Int64[Tensor, "B 2"]  # from the first token (pixel) the layer was given; of a tokenizer, before the anchor
    margin: Float[Tensor, " B"]
    tied: Bool[Tensor, " B"]


@dataclass(frozen=True)
class Explanation:
    """All choices of one forward pass, in order, and where the tokens and attention windows of each stage lie."""

    image: Float[Tensor, "B C H W"] = field(repr=False)
    decisions: tuple[Decision, ...]
    grids: tuple[TokenGrid, ...]
    windows: tuple[TokenGrid | None, ...]

    def rows(self, index: int = 0) -> list[dict[str, Any]]:
        """The choices for one image, in plain numbers, ready for JSON."""
        return [
            {
                "layer": decision.layer,
                "of": list(decision.stride),
                "offset": decision.offset[index].tolist(),
                "margin": decision.margin[index].item(),
                "tied": bool(decision.tied[index]),
            }
            for decision in self.decisions
        ]

    def table(self, index: int = 0) -> str:
        """The choices for one image, as text."""
        width = max([len(decision.layer) for decision in self.decisions], default=5)
        lines = [f"{'layer':<{width}}  {'of':>7}  {'offset':>9}  {'margin':>9}"]
        for row in self.rows(index):
            of, offset = "x".join(map(str, row["of"])), ",".join(map(str, row["offset"]))
            margin = "tied" if row["tied"] else f"{row['margin']:.1e}"
            lines.append(f"{row['layer']:<{width}}  {of:>7}  {offset:>9}  {margin:>9}")
        for number, grid in enumerate(self.grids):
            lines.append(f"stage {number}: every {grid.stride[0]} pixels from {tuple(grid.origin[index].tolist())}")
        return "\n".join(lines)

    def figure(self, index: int = 0) -> Any:
        """The image under the token grid of each stage, and its attention windows, as a matplotlib figure."""
        from matplotlib.figure import Figure  # not needed by those who draw nothing

        if not self.grids:
            raise ValueError("no grids to draw: needs a model of trueshift's; table() has the choices of any other")
        figure = Figure(figsize=(3.2 * len(self.grids), 3.6), layout="constrained")
        panels = figure.subplots(1, len(self.grids), squeeze=False)[0]
        for number, (axes, grid, window) in enumerate(zip(panels, self.grids, self.windows, strict=True)):
            axes.imshow(_displayable(self.image[index]), extent=(0, grid.image_size[1], grid.image_size[0], 0))
            origin = grid.origin[index].tolist()
            drawn: list[tuple[TokenGrid, dict[str, Any]]] = [(grid, {"color": "white", "lw": 0.5, "alpha": 0.7})]
            drawn += [(window, {"color": "#ffb000", "lw": 2})] if window is not None else []
            for cells, style in drawn:
                for axis, draw in enumerate((axes.axhline, axes.axvline)):
                    for line in first_pixels(cells, grid, index, axis):
                        draw(line, **style)
            title, (height, width) = f"stage {number}: origin {tuple(origin)}", grid.image_size
            axes.set(xticks=[], yticks=[], title=title, xlim=(0, width), ylim=(height, 0))
        return figure

    def save(self, path: str | Path, index: int = 0) -> Path:
        """Write the figure to a file, in the format of its suffix."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.figure(index).savefig(path, dpi=100)
        return path


def explain(model: nn.Module, image: Float[Tensor, "*B C H W"]) -> Explanation:
    """What the model chooses for this image (or batch): each layer's offset, margin and tie, and the grids.

    Works for our models and for any module built of adaptive layers; grids are known for our models only. Those of a
    segmentation network are its encoder's, which alone chooses.

    Shift law: margins and ties do not change when the image moves; grids move with it.

    >>> found = trueshift.explain(trueshift.create_model("a_swin_mini").eval(), torch.rand(3, 32, 32))
    >>> [decision.layer for decision in found.decisions][:3]
    ['patch_embed', 'layers.0.align', 'layers.1.downsample']
    """
    batch = image[None] if image.dim() == 3 else image
    model = unwrapped(model)
    backbone, inside = (model.encoder, "encoder.") if isinstance(model, DenseModel) else (model, "")
    grids: tuple[TokenGrid, ...] = ()
    with in_evaluation(model), torch.no_grad(), _recorded(model) as decisions:
        if isinstance(backbone, Backbone):
            grids = tuple(tokens.grid for tokens in backbone.features(batch))
        else:
            model(batch)
    starts = {decision.layer: decision for decision in decisions}
    layers = [f"{inside}{backbone.stages_name}.{number}.align" for number in range(len(grids))]
    stages: Any = backbone.stage_list if grids else ()
    windows = tuple(  # their grids: the stride is that of the tokens times the window
        grid.advance(starts[layer].offset, stage.align.window_size) if layer in starts else None
        for layer, grid, stage in zip(layers, grids, stages, strict=True)
    )
    return Explanation(batch, tuple(decisions), grids, windows)


@contextmanager
def _recorded(model: nn.Module) -> Iterator[list[Decision]]:
    """The choices of every criterion of the model."""
    decisions: list[Decision] = []
    criteria = {part: name for name, part in model.named_modules() if isinstance(part, Criterion)}
    parents = {part.criterion: part for part in model.modules() if isinstance(part, AlignWindows)}
    if not criteria:
        raise TypeError(
            f"a {type(model).__name__} chooses nothing: needs a model or layers of trueshift, e.g. adapt(model)"
        )

    def note(criterion: nn.Module, arguments: tuple[Candidates], choice: Choice) -> None:
        # layers.1.downsample.criterion is the choice of layers.1.downsample; query_criterion keeps its role
        layer = criteria[criterion].removesuffix("criterion").rstrip("._")  # type: ignore[index]
        offset = choice.offset
        if criterion in parents:  # which may stop windows at a border
            offset = parents[criterion].first_window(offset, arguments[0].grid)
        decisions.append(Decision(layer, arguments[0].phases, offset, choice.margin, choice.tied))

    with ExitStack() as hooks:
        for criterion in criteria:
            hooks.enter_context(criterion.register_forward_hook(note))
        for part in model.modules():
            if isinstance(part, Video):  # which keeps its memory of the last frame
                hooks.callback(vars(part).update, dict(vars(part)))
        yield decisions


def _displayable(image: Float[Tensor, "C H W"]) -> Any:
    """Scaled to between 0 and 1; other than three channels as grey."""
    shown = image.detach().float().cpu()
    shown = shown if shown.shape[0] == 3 else shown.mean(0, keepdim=True).expand(3, -1, -1)
    low, high = shown.amin(), shown.amax()
    if low < 0 or high > 1:
        shown = (shown - low) / (high - low).clamp_min(1e-12)
    return shown.permute(1, 2, 0).numpy()


def first_pixels(cells: TokenGrid, tokens: TokenGrid, index: int, axis: int) -> list[int]:
    """The rows or columns of an image at which cells of so many tokens start: the tokens themselves, or windows.

    Windows that do not divide the grid are cut off at its border, after which the next one starts.
    """
    count, step, size = tokens.shape[axis], tokens.stride[axis], tokens.image_size[axis]
    first, side = int(tokens.origin[index, axis]), cells.stride[axis] // step
    begin, whole = (int(cells.origin[index, axis]) - first) % size // step, count + -count % side
    starts = {(begin + at) % whole for at in range(0, whole, side)} | ({0} if whole > count else set())
    return sorted((first + step * at) % size for at in starts if at < count)
