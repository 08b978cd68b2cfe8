"""How often a small change of a photograph changes the grid that A-token and the anchor choose.

    python -m benchmarks.exactness.frame_stability --images FOLDER

Each photograph is circularly shifted at random first, so that the true corner is not at pixel 0.
"""

import numpy as np
import torch
from torch import Tensor

import trueshift as ts
from benchmarks.common import record
from trueshift.data import ImageFolder
from trueshift.eval import Jitter
from trueshift.layers.frame import FrameFinder
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_shift
from trueshift.ops.selection.content_hash import origin_keys
from trueshift.ops.selection.quantised_image import Pixels
from trueshift.ops.selection.seam import seam_scores
from trueshift.testing.images import square_pixels

PATCH = 4


def jpeg(images: Tensor, quality: int) -> Tensor:
    both = [Jitter(jpeg=quality).repaint(image, np.random.default_rng(0)) for image in images]
    return torch.stack(both)[..., images.shape[3] :]


def one_level_brighter(images: Tensor) -> Tensor:
    """One random pixel of each image, in one channel, by one level of 255."""
    changed = images.clone()
    where = (torch.arange(len(images)), 0, *torch.randint(images.shape[2], (2, len(images))))
    changed[where] = torch.where(images[where] < 255, images[where] + 1, images[where] - 1)
    return changed


def percent(true: Tensor) -> float:
    return round(100 * float(true.double().mean()), 1)


def lines_found(right: Tensor) -> dict[str, float]:
    """How often the row, the column and both are right, ``[images, 2]``, in percent."""
    return {"rows": percent(right[:, 0]), "columns": percent(right[:, 1]), "both": percent(right.all(1))}


def frames(pixels: Tensor, layer: ts.AdaptiveTokenize, finder: FrameFinder) -> dict[str, Tensor]:
    """Where the chosen grid starts, by each rule, and where the seam is."""
    parts = []
    for chunk in pixels.split(50):
        x = (chunk.float() / 255 - 0.45) / 0.225
        values = x.permute(0, 2, 3, 1)
        hashed = torch.stack(torch.unravel_index(origin_keys(values).flatten(1).argmax(1), x.shape[2:]), 1)
        lines = (seam_scores(values), finder(Pixels(values)))
        seam, frame = (torch.stack([scores.argmax(1) for scores in both], 1) for both in lines)
        parts.append(torch.stack([layer(x).grid.origin, frame, hashed, seam]))
    origin, frame, hashed, seam = torch.cat(parts, 1)
    kinds = {"origin on the seam": origin, "frame found": frame, "origin by hash": hashed, "seam": seam}
    return {"phase": origin % PATCH, **kinds}


@torch.no_grad()
def main() -> None:
    given = record.options(__doc__, "frame_stability").parse_args()
    torch.manual_seed(given.seed)
    taken = torch.stack([square_pixels(path, given.size) for path in ImageFolder(given.images).files[: given.limit]])
    offset = torch.randint(given.size, (len(taken), 2))
    circular = circular_shift(taken, offset, IMAGE_DIMS)
    networks = (ts.AdaptiveTokenize(3, 96, PATCH).eval(), FrameFinder())
    start = frames(circular, *networks)
    moved = torch.cat([taken[..., 1:], taken[..., -1:]], 3)  # a column leaves, the last one is repeated
    changes = {  # from where, to what, and by how many columns the content moved to the left
        "one pixel by one level": (start, one_level_brighter(circular), 0),
        "JPEG, quality 90": (start, jpeg(circular, 90), 0),
        "JPEG, quality 50": (start, jpeg(circular, 50), 0),
        "ordinary shift by one pixel": (frames(taken, *networks), moved, 1),
    }
    kept: dict[str, dict[str, float]] = {name: {} for name in changes}
    for name, (before, changed, columns) in changes.items():
        after, step = frames(changed, *networks), torch.tensor([0, columns])
        for rule in ("phase", "origin on the seam", "frame found", "origin by hash"):
            turn = PATCH if rule == "phase" else given.size
            kept[name][rule] = percent(((before[rule] - step - after[rule]) % turn == 0).all(1))
    corners = {name: lines_found((start[name] + offset) % given.size == 0) for name in ("seam", "frame found")}
    result = {"images": len(taken), "size": given.size, "kept_percent": kept, "true_corner_found_percent": corners}
    print(result)
    record.write(given.name, result, given.seed)


if __name__ == "__main__":
    main()
