"""A camera pans over a photograph, one pixel a frame: an ordinary network beside the same one in `steady`.

Writes an animation and a plot of the answers, and prints how often the answer changes from frame to frame.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Rectangle
from PIL import Image

import trueshift
from trueshift.data import Preparation
from trueshift.eval import FlickerRate
from trueshift.testing import photographs

WHOLE, VIEW, CROP, FRAMES = 112, 48, 32, 49  # pixels of the photograph, of what the camera sees, of the network's input
TOP = (WHOLE - VIEW) // 2
COLOURS = plt.get_cmap("tab10").colors


def pan(photo: torch.Tensor) -> torch.Tensor:
    """What the camera sees: content leaves on the left, new content comes in on the right."""
    return torch.stack([photo[:, TOP : TOP + VIEW, frame : frame + VIEW] for frame in range(FRAMES)])


def around_the_circle(photo: torch.Tensor) -> torch.Tensor:
    """What leaves on the left comes in again on the right."""
    small = torch.nn.functional.interpolate(photo[None], size=CROP, mode="area")[0]
    return torch.stack([torch.roll(small, -frame, 2) for frame in range(CROP)])


def draw(photo: torch.Tensor, crops: dict, answers: dict, names: list[str], folder: Path) -> None:
    """The camera over the photograph, and below it the answer of each network to each frame."""
    figure, (above, below) = plt.subplots(2, figsize=(7, 5), height_ratios=(3, 1), layout="constrained")
    above.imshow(photo.permute(1, 2, 0)[TOP - 4 : TOP + VIEW + 4], extent=(0, WHOLE, TOP + VIEW + 4, TOP - 4))
    above.set(xticks=[], yticks=[])
    styles = [{"ec": "white", "lw": 1.5}, {"ec": "#d62728", "lw": 2, "ls": "--"}, {"ec": "#2ca02c", "lw": 2.5}]
    frames = [above.add_patch(Rectangle((0, TOP), side, side, fill=False, **style))
              for side, style in zip((VIEW, CROP, CROP), styles, strict=True)]  # fmt: skip
    title = above.set_title("", fontsize=11, family="monospace")
    for row, labels in enumerate(answers.values()):
        below.imshow([[COLOURS[label] for label in labels]], aspect="auto", extent=(0, FRAMES, row + 0.9, row + 0.1))
    below.set(xlim=(0, FRAMES), ylim=(len(answers), 0), xlabel="frame")
    below.set_yticks([row + 0.5 for row in range(len(answers))], answers)
    for name, style in zip(below.get_yticklabels(), styles[1:], strict=True):
        name.set_color(style["ec"])
    used = sorted({int(label) for labels in answers.values() for label in labels})
    below.legend([Rectangle((0, 0), 1, 1, color=COLOURS[label]) for label in used], [names[label] for label in used],
                 ncols=len(used), loc="upper center", bbox_to_anchor=(0.5, -0.45), frameon=False)  # fmt: skip
    now = below.axvline(0, color="black")

    def show(frame: int) -> None:
        frames[0].set_xy((frame, TOP))
        for box, corners in zip(frames[1:], crops.values(), strict=True):
            row, column = corners[frame]
            box.set_xy((frame + column, TOP + row))
        title.set_text("   ".join(f"{name}: {names[labels[frame]]:10}" for name, labels in answers.items()))
        now.set_xdata([frame + 0.5] * 2)

    show(FRAMES // 2)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "flicker.png", dpi=150)
    figure.set(layout_engine="none", dpi=70)  # nothing moves any more
    images = []
    for frame in range(0, FRAMES, 2):
        show(frame)
        figure.canvas.draw()
        images.append(Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).quantize(128))
    images[0].save(folder / "flicker.gif", save_all=True, append_images=images[1:], duration=150, loop=0)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out"))
    parser.add_argument("--photo", default="rocket", choices=sorted(photographs(16)))
    arguments = parser.parse_args()

    ordinary, adaptive = (trueshift.create_model(name, pretrained=True).eval() for name in ("swin_mini", "a_swin_mini"))
    ours = trueshift.steady(ordinary, CROP)
    names = ordinary.pretrained_cfg["label_names"]  # trained on CIFAR-10; the weights come with the package
    normalise = Preparation.from_config(ordinary.pretrained_cfg).normalise
    flicker = {name: FlickerRate() for name in ("ordinary", "steady", "ordinary, circle", "adaptive, circle")}
    centre = (VIEW - CROP) // 2
    for name, photo in photographs(WHOLE).items():
        views, rolled = normalise(255 * pan(photo)), normalise(255 * around_the_circle(photo))
        middle = views[:, :, centre : centre + CROP, centre : centre + CROP]
        logits = {"ordinary": ordinary(middle), "steady": ours(views)}
        circle = {"ordinary, circle": ordinary(rolled), "adaptive, circle": adaptive(rolled)}
        for key, answer in {**logits, **circle}.items():
            flicker[key].update(answer[None])
        if name == arguments.photo:
            crops = {"ordinary": [(centre, centre)] * FRAMES, "steady": ours.choose(views).offset.tolist()}
            draw(photo, crops, {key: answer.argmax(1) for key, answer in logits.items()}, names, arguments.output)
    for key, rate in flicker.items():
        print(f"{key}: the answer changes in {100 * rate.compute():.1f} % of the frames")
    print(
        "Around the circle the adaptive network is exact; under a camera, steady keeps its answer while its crop stays"
    )
    print(f"Wrote {arguments.output / 'flicker.gif'} and {arguments.output / 'flicker.png'}")


if __name__ == "__main__":
    main()
