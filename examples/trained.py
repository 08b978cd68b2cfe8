"""Trained networks on real test images that move: ordinary ones change their answers, exact ones never do.

Three networks of each family are exact: the ordinary one with an anchor, which keeps its weights; the adaptive one in
one pass; and the adaptive one with the mean over four grids, whose Top-1 is higher or level. The few images here cannot
show that, so the second column has Top-1 on all 10,000 test images, from the cards of the networks.
"""

import argparse
import sys

import torch

import trueshift
from trueshift.data import EmbeddedSample, Preparation
from trueshift.models.bundled_weights import find_shipped
from trueshift.models.registry import resolve_name

FAMILIES = ("swin_mini", "swinv2_mini", "cvt_mini", "mvitv2_mini")
SIDE, BATCH = 32, 50


def logits_of(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([model(batch) for batch in images.split(BATCH)])


def on_card(name: str, grids: int) -> str:
    """Top-1 on all test images, as measured when the weights were made."""
    measured = find_shipped(resolve_name(name)).about["measured"]
    found = {1: measured, **{each["grids"]: each for each in measured.get("several", ())}}
    return f"{100 * found[grids]['top1']:.2f} %" if grids in found else "-"


def moved(images: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """Each image by its own circular shift."""
    return torch.stack(
        [torch.roll(image, tuple(by), (1, 2)) for image, by in zip(images, shifts.tolist(), strict=True)]
    )


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=150, help="of the 400, all from CIFAR-10's test set")
    count = max(1, min(parser.parse_args().images, 400) // BATCH) * BATCH  # whole batches: others may round differently
    networks = {}  # name and arguments by title
    for family in FAMILIES:
        networks |= {
            family: (family, {}),
            f"{family}, anchor": (family, {"anchor": True}),
            f"a_{family}": (f"a_{family}", {}),
            f"a_{family}, grids=4": (f"a_{family}", {"grids": 4}),
        }
    sample, generator = EmbeddedSample(), torch.Generator().manual_seed(0)
    taken = [index * len(sample) // count for index in range(count)]
    labels = torch.from_numpy(sample.labels[taken])
    shifts = {
        "one pixel": torch.tensor([[0, 1], [1, 0]]).repeat(count // 2, 1),
        "any shift": torch.randint(0, SIDE, (count, 2), generator=generator),
        "another": torch.randint(0, SIDE, (count, 2), generator=generator),
    }
    print(f"{count} test images of CIFAR-10, moved circularly: how many get another answer?\n")
    head = ("Top-1", 8), ("of 10,000", 9), *((title, 10) for title in shifts), ("largest change of a logit", 27)
    print(f"{'model':22}", *(f"{title:>{width}}" for title, width in head))
    steady = True
    for title, (name, arguments) in networks.items():
        model = trueshift.create_model(name, pretrained=True, **arguments).eval()
        preparation = Preparation.from_config(model.pretrained_cfg)
        images = torch.stack([preparation.normalise(preparation.canvas(sample[index].image)) for index in taken])
        still = logits_of(model, images)
        others = [logits_of(model, moved(images, by)) for by in shifts.values()]
        flips = [int((other.argmax(1) != still.argmax(1)).sum()) for other in others]
        change = max((other - still).abs().max().item() for other in others)
        top1 = (still.argmax(1) == labels).float().mean().item()
        card = "-" if "anchor" in arguments else on_card(name, arguments.get("grids", 1))
        moves = *(f"{each:10}" for each in flips), f"{change:27.3g}"
        print(f"{title:22} {100 * top1:6.1f} % {card:>9}", *moves, flush=True)
        steady = steady and (title in FAMILIES or not change)
    return 0 if steady else 1


if __name__ == "__main__":
    sys.exit(main())
