"""A timm model and its equivariant twin on shifted photographs: how much do the logits change?"""

from pathlib import Path

import torch

import trueshift  # before timm: it makes torchvision importable beside a CPU-only torch
from trueshift.testing import photographs

import timm  # isort: skip

SHIFTS = ((1, 0), (0, 1), (3, -5), (100, 57))


def largest_change(model: torch.nn.Module, images: torch.Tensor) -> float:
    """Of any logit, relative to the largest one."""
    logits = model(images)
    moved = [model(torch.roll(images, shift, (2, 3))) for shift in SHIFTS]
    return max(((other - logits).abs().max() / logits.abs().max()).item() for other in moved)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    pictures = photographs(224)
    images = torch.stack([pictures["chelsea"], pictures["coffee"]])
    # pretrained=True where there is a network; what is shown here does not depend on the weights
    ordinary = timm.create_model("swin_tiny_patch4_window7_224").eval()
    adapted = trueshift.adapt(ordinary)
    pairs = zip(ordinary.parameters(), trueshift.revert(adapted).parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)  # there and back: every weight is the same
    print(f"timm's Swin-T, moved by {SHIFTS}: logits change by up to {100 * largest_change(ordinary, images):.1f} %")
    print(f"the same weights, adapted: {largest_change(adapted, images)}")
    explanation = trueshift.explain(adapted, images)
    print(explanation.table(), f"drawn in {explanation.save(Path('out/explained.png'))}", sep="\n")


if __name__ == "__main__":
    main()
