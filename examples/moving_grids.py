"""Draw an image, some shifts of it, and the grids that A-token and A-WSA choose: they move along with the content."""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

from trueshift import AdaptiveTokenize, AlignWindows, Criterion, FixedOffset, MaxNorm, TokenGrid, circular_shift
from trueshift.ops.geometry.shift import IMAGE_DIMS
from trueshift.testing import photographs

SIZE, PATCH, WINDOW = 112, 8, 7
SHIFTS = ((0, 0), (3, 5), (10, -13), (-37, 22))


class Grids(nn.Module):
    """Tokens, then windows: where does each grid start?"""

    def __init__(self, criterion: Criterion, anchor: bool) -> None:
        super().__init__()
        self.tokenize = AdaptiveTokenize(3, 48, PATCH, criterion=criterion, anchor=anchor)
        self.align = AlignWindows(WINDOW, criterion=criterion)

    def forward(self, image: torch.Tensor) -> tuple[TokenGrid, TokenGrid]:
        tokens = self.tokenize(image)
        return tokens.grid, self.align(tokens).grid


def draw(axes: plt.Axes, image: torch.Tensor, patches: TokenGrid, windows: TokenGrid) -> None:
    axes.imshow(image[0].permute(1, 2, 0).clamp(0, 1), extent=(0, SIZE, SIZE, 0))
    for grid, step, style in (
        (patches, PATCH, {"color": "white", "lw": 0.4, "alpha": 0.7}),
        (windows, PATCH * WINDOW, {"color": "#ffb000", "lw": 2.2}),
    ):
        row, column = grid.origin[0].tolist()
        for line in range(row % step, SIZE, step):
            axes.axhline(line, **style)
        for line in range(column % step, SIZE, step):
            axes.axvline(line, **style)
    axes.set(xticks=[], yticks=[], xlim=(0, SIZE), ylim=(SIZE, 0))


def describe(shift: tuple[int, int]) -> str:
    """A shift moves the frame, so the content moves the other way."""
    row, column = shift
    moves = [(row, "up"), (-row, "down"), (column, "left"), (-column, "right")]
    return ", ".join(f"{pixels} {way}" for pixels, way in moves if pixels > 0) or "the image"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/moving_grids.png"))
    parser.add_argument("--photo", default="chelsea", choices=sorted(photographs(16)))
    arguments = parser.parse_args()

    image = photographs(SIZE)[arguments.photo][None]
    torch.manual_seed(0)
    adaptive = Grids(MaxNorm(), anchor=True).eval()
    ordinary = Grids(FixedOffset(), anchor=False).eval()
    ordinary.load_state_dict(adaptive.state_dict())

    figure, axes = plt.subplots(2, len(SHIFTS), figsize=(3 * len(SHIFTS), 6.6), layout="constrained")
    start = adaptive(image)
    for column, shift in enumerate(SHIFTS):
        moved = circular_shift(image, shift, IMAGE_DIMS)
        draw(axes[0, column], moved, *ordinary(moved))
        chosen = adaptive(moved)
        draw(axes[1, column], moved, *chosen)
        for before, after in zip(start, chosen, strict=True):
            travelled = (before.origin - after.origin - torch.tensor(shift)) % SIZE
            assert not travelled.any(), "a grid did not move with the image"
        axes[0, column].set_title(describe(shift))
    axes[0, 0].set_ylabel("ordinary network")
    axes[1, 0].set_ylabel("trueshift")
    figure.suptitle("Patches (white) and attention windows (orange): fixed to the frame, or to the content")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output, dpi=80)
    print(f"moving grids: both grids followed the image through {len(SHIFTS)} shifts; drawn in {arguments.output}")


if __name__ == "__main__":
    main()
