"""A camera pans over a photograph, one pixel a frame: how often does the answer change from frame to frame?"""

import torch

import trueshift
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
    torch.manual_seed(0)
    ordinary = trueshift.create_model("cvt_mini").eval()  # yours, trained; here as it is initialised
    models = {"ordinary": ordinary, "adapted": trueshift.adapt(ordinary)}
    for title, pan in (("around the circle", around_the_circle), ("consecutive crops", consecutive_crops)):
        clips = torch.stack([pan((photo - 0.5) / 0.25) for photo in photographs(256).values()])
        for name, model in models.items():
            flicker = FlickerRate()
            flicker.update(torch.stack([model(clip) for clip in clips]))
            print(f"{title}, {name}: the answer changes in {100 * flicker.compute():.1f} % of the frames")
    print(
        "Only around the circle is a steady answer guaranteed; under crops it takes training (these weights are random)"
    )


if __name__ == "__main__":
    main()
