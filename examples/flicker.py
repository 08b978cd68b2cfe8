"""A camera pans over a photograph, one pixel a frame: how often does the answer change from frame to frame?"""

import torch

import trueshift
from trueshift.data import Preparation
from trueshift.eval import FlickerRate
from trueshift.testing import photographs

FRAMES, SIDE = 24, 32


def around_the_circle(photo: torch.Tensor) -> torch.Tensor:
    """The content moves to the left and comes in again on the right."""
    small = torch.nn.functional.interpolate(photo[None], size=SIDE, mode="area")[0]
    return torch.stack([torch.roll(small, -frame, 2) for frame in range(FRAMES)])


def consecutive_crops(photo: torch.Tensor) -> torch.Tensor:
    """A window moves over the photograph: old content leaves, new content comes in."""
    small = torch.nn.functional.interpolate(photo[None], size=3 * SIDE, mode="area")[0]
    return torch.stack([small[:, SIDE // 2 : SIDE // 2 + SIDE, frame : frame + SIDE] for frame in range(FRAMES)])


@torch.no_grad()
def main() -> None:
    models = {  # trained on CIFAR-10; the weights come with the package
        "ordinary": trueshift.create_model("swin_mini", pretrained=True).eval(),
        "adaptive": trueshift.create_model("a_swin_mini", pretrained=True).eval(),
    }
    for title, pan in (("around the circle", around_the_circle), ("consecutive crops", consecutive_crops)):
        for name, model in models.items():
            normalise = Preparation.from_config(model.pretrained_cfg).normalise
            flicker = FlickerRate()
            for photo in photographs(256).values():
                flicker.update(model(normalise(255 * pan(photo)))[None])
            print(f"{title}, {name}: the answer changes in {100 * flicker.compute():.1f} % of the frames")
    print("A steady answer is guaranteed around the circle, not where content leaves and new content comes in")


if __name__ == "__main__":
    main()
