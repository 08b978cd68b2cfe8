"""One pixel to the right: how many pixels get another label, from an ordinary UperNet and from its equivariant twin?"""

import torch

import trueshift
from trueshift.testing import photographs


def changed(net: torch.nn.Module, images: torch.Tensor, shift: tuple[int, int]) -> float:
    """The share of pixels whose label is not the one they had before the image moved."""
    before = net(images).argmax(1)
    after = net(torch.roll(images, shift, (2, 3))).argmax(1)
    return (torch.roll(after, (-shift[0], -shift[1]), (1, 2)) != before).float().mean().item()


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    images = torch.stack(list(photographs(64).values()))
    # untrained, so the labels mean nothing; that they move with the image does not depend on the weights
    ordinary = trueshift.UperNet("swin_mini", num_classes=11, channels=64, padding="circular").eval()
    twin = trueshift.adapt(ordinary)
    for shift in ((0, 1), (3, -5)):
        print(
            f"moved by {shift}: {100 * changed(ordinary, images, shift):.1f} % of the labels change, "
            f"of the twin with the same weights {100 * changed(twin, images, shift):.1f} %"
        )
        assert changed(twin, images, shift) == 0


if __name__ == "__main__":
    main()
