"""Do the logits of UperNet move with the image, bit for bit, at the sizes of the paper?

    python -m benchmarks.exactness.segmentation --shifts 4

Hostile images, photographs and noise; random statistics of every norm; images of a batch move independently. Images
that repeat under a shift are among them.
"""

import torch

import trueshift as ts
from benchmarks.common import record
from benchmarks.common.checks import images as images_of
from benchmarks.common.checks import perturb_norms, random_shifts
from trueshift.ops.geometry.shift import IMAGE_DIMS

SIZES = {"a_swin_tiny": 224, "a_swinv2_tiny": 256, "a_cvt_13": 224, "a_mvitv2_tiny": 224}


@torch.no_grad()
def failures(net: torch.nn.Module, images: torch.Tensor, shifts: int, batch: int) -> tuple[int, int]:
    wrong = pairs = 0
    for few in images.split(batch):
        logits = net(few)
        for offset in random_shifts(few.cpu(), shifts):
            there = offset.to(few.device)
            again = net(ts.circular_shift(few, there, IMAGE_DIMS))
            wrong += int((again != ts.circular_shift(logits, there, IMAGE_DIMS)).flatten(1).any(1).sum())
            pairs += len(few)
    return wrong, pairs


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    given = record.options(__doc__, shifts=4, batch=16, classes=11, device=device).parse_args()
    rows = []
    for name, side in SIZES.items():
        for size in ((side, side), (2 * side, 2 * side), (side, 2 * side)):
            torch.manual_seed(0)
            net = perturb_norms(ts.UperNet(name, given.classes, img_size=size)).eval().to(given.device)
            images = images_of(size).to(given.device)
            wrong, pairs = failures(net, images, given.shifts, given.batch)
            rows.append({"model": name, "size": list(size), "pairs": pairs, "failures": wrong})
            print(rows[-1], flush=True)
            record.write(f"segmentation_exactness_{given.device}", {"precision": "float32", "rows": rows}, 0)


if __name__ == "__main__":
    main()
