"""A panorama turns around: the classes of its parts from an ordinary network, and from its adaptive twin.

No photograph of 360 degrees comes with the package. The panorama is the first sample image of each class of CIFAR-10,
side by side and closed to a ring; `--image` takes one of yours. The networks are CIFAR-10's classifiers that come with
the package: their last layer, applied to each token instead of to the mean, gives a coarse map of classes. They were
trained neither for maps nor on panoramas, and which of the two is right more often depends on `--model`.

Writes an animation and one frame of it, and prints how many pixels change their class while the panorama turns.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Rectangle
from PIL import Image

import trueshift
from trueshift.data import EmbeddedSample, Preparation

ROWS, BATCH = 32, 16  # pixels the networks were trained on, which widths must be multiples of; frames at once
COLOURS = np.array(plt.get_cmap("tab10").colors)


def ring_of_samples() -> tuple[np.ndarray, np.ndarray]:
    """The first image of each class, side by side, and the class of each column."""
    sample = EmbeddedSample()
    classes, first = np.unique(sample.labels, return_index=True)
    return np.concatenate([np.asarray(sample[int(index)].image) for index in first], 1), classes.repeat(ROWS)


def read_panorama(path: Path) -> np.ndarray:
    """An image that goes around along its width, as high as those the networks were trained on.

    Of one that is less than four times as wide as high the rows in the middle are taken: the poles of an
    equirectangular image are stretched.
    """
    with Image.open(path) as image:
        rows = min(image.height, image.width // 4)
        top = (image.height - rows) // 2
        columns = round(image.width / rows) * ROWS
        return np.array(image.convert("RGB").resize((columns, ROWS), box=(0, top, image.width, top + rows)))


def scores_of(model: torch.nn.Module, panorama: torch.Tensor, turns: list[int]) -> torch.Tensor:
    """Scores ``[turn, row, column, class]`` of the panorama turned by so many columns, turned back again."""
    normalise = Preparation.from_config(model.pretrained_cfg).normalise
    count = -(-len(turns) // BATCH) * BATCH  # whole batches: others may round differently
    views = torch.stack([panorama.roll(-turns[index % len(turns)], 2) for index in range(count)])
    found = []
    for batch in normalise(views).split(BATCH):
        *_, tokens = model.features(batch)
        grid = replace(tokens.grid, fixed_rows=True)  # the ordinary network's rows end above and below, too
        classes = trueshift.Tokens(model.get_classifier()(model.norm(tokens.values)), grid)
        found.append(trueshift.resample(classes, trueshift.TokenGrid.of_image(batch, fixed_rows=True)).values)
    return torch.stack([scores.roll(turn, 1) for scores, turn in zip(torch.cat(found), turns, strict=False)])


def draw(panorama: np.ndarray, turns: list[int], maps: dict, names: list[str], truth: list[int], folder: Path) -> None:
    """The panorama turning, the same at rest, and the classes of each network, turned back to the panorama at rest."""
    height, width = panorama.shape[:2]
    titles = ["the panorama turns", "turned back; the line is where the network's input begins and ends", *maps]
    size = (9.2, len(titles) * (min(9 * height / width, 1.5) + 0.3) + 0.6)  # inches
    figure, axes = plt.subplots(len(titles), figsize=size, dpi=100, layout="constrained")
    strips = [axis.imshow(panorama, extent=(0, width, height, 0), interpolation="nearest") for axis in axes]
    for axis, title in zip(axes, titles, strict=True):
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        axis.set_title(title, loc="left", fontsize=10)
    axes[1].tick_params(length=0)
    axes[1].set_xticks([(index + 0.5) * ROWS for index in range(len(truth))], [names[label] for label in truth])
    edges = [axis.axvline(0, color="black", lw=1.5) for axis in axes[1:]]
    numbers = [axis.set_title(" ", loc="right", fontsize=10, weight="bold") for axis in axes[2:]]
    figure.legend([Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS], names, loc="outside lower center",
                  ncols=len(names), frameon=False, handlelength=1, columnspacing=1)  # fmt: skip
    figure.canvas.draw()
    still = figure.canvas.copy_from_bbox(figure.bbox)  # the rest is drawn over it for each frame

    def show(frame: int) -> Image.Image:
        figure.canvas.restore_region(still)
        strips[0].set_data(np.roll(panorama, -turns[frame], 1))
        for strip, number, labels in zip(strips[2:], numbers, maps.values(), strict=True):
            changed = ever_changed(labels[: frame + 1])
            strip.set_data(COLOURS[labels[frame]])
            number.set(text=f"{100 * changed:.0f} % of the pixels have changed", color="C3" if changed else "C2")
        for edge in edges:
            edge.set_xdata([turns[frame]] * 2)
        for artist in (*strips, *edges, *numbers):
            figure.draw_artist(artist)
        return Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")

    images = [show(frame) for frame in range(len(turns))]
    folder.mkdir(parents=True, exist_ok=True)
    palette = palette_of(panorama)
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    images[len(images) // 2].save(folder / "panorama.png")
    images[0].save(folder / "panorama.gif", save_all=True, append_images=images[1:], duration=120, loop=0)


def palette_of(panorama: np.ndarray) -> Image.Image:
    """The colours of all frames, so that what stands still keeps them: of the panorama, the classes and the text."""
    few = np.concatenate([255 * COLOURS.ravel(), np.linspace(255, 0, 10).repeat(3)]).round().astype(int).tolist()
    image = Image.new("P", (1, 1))
    own = Image.fromarray(np.minimum(panorama, 240)).quantize(200)  # no other white beside that of the background
    image.putpalette([*few, *(own.getpalette() or [])[: 3 * 200]])
    return image


def ever_changed(labels: torch.Tensor) -> float:
    """The share of pixels whose class is not the first one in every frame."""
    return (labels != labels[:1]).any(0).float().mean().item()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out"))
    parser.add_argument("--image", type=Path, help="a panorama that goes around along its width")
    parser.add_argument("--model", default="swinv2_mini", choices=("swin_mini", "swinv2_mini", "mvitv2_mini"))
    parser.add_argument("--step", type=int, default=5, help="columns from one frame to the next")
    arguments = parser.parse_args()

    panorama, truth = (read_panorama(arguments.image), None) if arguments.image else ring_of_samples()
    pixels = torch.from_numpy(panorama).permute(2, 0, 1).float()
    turns = list(range(0, panorama.shape[1], arguments.step))
    networks = {
        f"ordinary: {arguments.model}": (arguments.model, {}),
        f"ours: a_{arguments.model}, circular='width'": (f"a_{arguments.model}", {"circular": "width"}),
    }
    maps = {}
    print(f"{len(turns)} turns of {arguments.step} columns")
    for title, (name, options) in networks.items():
        model = trueshift.create_model(name, pretrained=True, img_size=panorama.shape[:2], **options).eval()
        scores = scores_of(model, pixels, turns)
        maps[title] = scores.argmax(3)
        share, most = 100 * ever_changed(maps[title]), (scores - scores[:1]).abs().max()
        print(f"{title}: {share:.1f} % of the pixels change their class, scores by up to {most:.3g}")
        if truth is not None:
            right = (maps[title] == torch.from_numpy(truth)).float().mean()
            print(f"    {100 * right:.1f} % have the class of their image, over all turns")
    names = model.pretrained_cfg["label_names"]
    draw(panorama, turns, maps, names, [] if truth is None else truth[::ROWS].tolist(), arguments.output)
    print(f"Wrote {arguments.output / 'panorama.gif'} and {arguments.output / 'panorama.png'}")


if __name__ == "__main__":
    main()
