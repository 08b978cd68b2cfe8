"""How often do choices differ under circular shifts when the anchor is off, and how close were they?

    python -m benchmarks.exactness.without_anchor --shifts 8

Each choice is exact for the tokens it is given; but without the anchor kernels round tokens by their position, and a
choice inside the network whose margin is as small as that may flip. Above a margin of 1e-5 none should. Images that
repeat are left out: they have several equal choices.
"""

import torch

import trueshift as ts
from benchmarks.common import record
from benchmarks.common.checks import images, perturb_norms, random_shifts
from benchmarks.exactness.bit_identity import PAPER
from trueshift.ops.selection.content_hash import origin_keys

CLEAR = 1e-5


def unrepeated(batch: torch.Tensor) -> torch.Tensor:
    """Images that look different from every origin."""
    keys = origin_keys(batch.permute(0, 2, 3, 1)).flatten(1)
    return batch[[len(key.unique()) == len(key) for key in keys]]


@torch.no_grad()
def examine(name: str, size: tuple[int, int], shifts: int, device: str, batch: int) -> dict[str, float | int | str]:
    torch.manual_seed(0)
    model = perturb_norms(ts.create_model(name, anchor=False, img_size=size)).eval().to(device)
    counts = {"clear": 0, "close": 0, "clear_flipped": 0, "close_flipped": 0}
    largest = {"clear": 0.0, "close": 0.0}
    for some in unrepeated(images(size)).to(device).split(batch):
        before, logits = ts.explain(model, some), model(some)
        clear = torch.stack([(d.margin > CLEAR) & ~d.tied for d in before.decisions]).all(0)
        for shift in random_shifts(some, shifts):
            moved = ts.circular_shift(some, shift.to(device), (2, 3))
            after = ts.explain(model, moved)
            flipped = torch.zeros_like(clear)
            for old, new in zip(before.grids + before.windows, after.grids + after.windows, strict=True):
                if old is not None and new is not None:  # any token, and any window, may come first
                    away = (old.origin - shift.to(device) - new.origin) % torch.tensor(old.stride, device=device)
                    flipped |= away.any(1)
            change = (model(moved) - logits).abs().amax(1) / logits.abs().amax(1)
            for kind, chosen in (("clear", clear), ("close", ~clear)):
                counts[kind] += int(chosen.sum())
                counts[f"{kind}_flipped"] += int((chosen & flipped).sum())
                if chosen.any():
                    largest[kind] = max(largest[kind], change[chosen].max().item())
    return {"model": name, **counts, "clear_change": largest["clear"], "close_change": largest["close"]}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments = record.options(__doc__, shifts=8, batch=64, device=device).parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows = []
    for name, side in PAPER.items():
        rows.append(examine(name, (side, side), arguments.shifts, arguments.device, arguments.batch))
        print(rows[-1], flush=True)
    record.write(f"without_anchor_{arguments.device}", {"clear_margin": CLEAR, "rows": rows}, 0)


if __name__ == "__main__":
    main()
