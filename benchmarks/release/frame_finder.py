"""Train the network that finds a photograph's border (`trueshift/layers/frame.py`), and write its integers.

    python -m benchmarks.release.frame_finder --images CIFAR.npz TINY.npz PHOTOS.npz --steps 5000
    python -m benchmarks.release.frame_finder --images ... --steps 1500 --rate 0.15 --resume  # goes on
    python -m benchmarks.release.frame_finder --images ... --measure  # the weights there are

Each file holds ``train`` and ``test``, uint8 images ``[N, H, W, 3]`` of one size, the largest last: it has one step in
five. Images are cropped and made smaller at random, a third of them get a black or grey band at one end, which belongs
after the photograph, and the network is asked for its first line. Weights are rounded while training, so what is
trained is what runs.
"""

import json
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import record
from benchmarks.exactness.frame_stability import lines_found
from trueshift.layers.frame import WEIGHTS, FrameFinder
from trueshift.ops.selection.frame_scores import COARSER, COLUMNS, DEPTH, HALF, LARGEST, LINES, REACH, UNIT
from trueshift.ops.selection.quantised_image import Pixels
from trueshift.utils.provenance import circumstances

HIDDEN, LIMIT = 32, 127
SIZES = {"filters": (DEPTH, LINES, 3 * COLUMNS), "pointwise": (DEPTH, DEPTH), "offset": (DEPTH,)}
SIZES |= {"mixing": (HIDDEN, DEPTH * (2 * REACH + 1)), "bias": (HIDDEN,), "output": (HIDDEN,)}
SPREADS = {"filters": 10.0, "pointwise": 8.0, "mixing": 1.8, "output": 10.0}
OFFSETS = 8  # steps in which the offset is rounded


class Trained(nn.Module):
    """The same network in floating point."""

    def __init__(self, weights: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.weights = nn.ParameterDict()
        for name, size in SIZES.items():
            start = torch.tensor(weights[name]).float() if weights else SPREADS.get(name, 0.0) * torch.randn(size)
            self.weights[name] = start / (OFFSETS if weights and name == "offset" else 1)

    def rounded(self, name: str) -> Tensor:
        """Integers, with the gradient of what was rounded."""
        value = self.weights[name]
        whole = value + (value.round().clamp(-LIMIT, LIMIT) - value).detach()
        return whole * OFFSETS if name == "offset" else whole

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the rows of ``[B, H, W, C]``."""
        low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
        unit = 2 ** ((high - low).clamp(min=1).log2().ceil() - HALF - 1)
        values = ((images - (low + high) / 2) / unit).floor()
        near = torch.cat([values.roll(-column, 2) for column in range(-(COLUMNS // 2), COLUMNS // 2 + 1)], 3)
        filters = self.rounded("filters")
        first = sum((near @ filters[:, line].T).roll(LINES // 2 - line, 1) for line in range(LINES))
        first = torch.relu(first) / COARSER
        first = first + (first.floor() - first).detach()
        lines = (first @ self.rounded("pointwise").T + self.rounded("offset")).relu().sum(2)
        share = lines / (lines.mean(1, keepdim=True) + 1e-6)
        level = (share + 1e-6).sqrt().clamp(max=LARGEST / UNIT)
        around = torch.cat([level.roll(-line, 1) for line in range(-REACH, REACH + 1)], 2)
        return ((around @ self.rounded("mixing").T + self.rounded("bias")) / 32).relu() @ self.rounded("output") / 32


def draw(images: Tensor, batch: int, random: np.random.RandomState) -> tuple[Tensor, Tensor]:
    """Some images and the first line of each."""
    x = images[torch.from_numpy(random.randint(len(images), size=batch)).to(images.device)].float()
    whole = x.shape[1]
    size = random.randint(max(24, whole // 2), whole + 1) if whole > 32 else whole
    top, left = random.randint(whole - size + 1, size=2)
    x = x[:, top : top + size, left : left + size]
    if size > 96:
        smaller = random.randint(48, size + 1)
        x = F.interpolate(x.permute(0, 3, 1, 2), (smaller, smaller), mode="bilinear", antialias=True).round()
        x = x.permute(0, 2, 3, 1)
    x = x.transpose(1, 2) if random.rand() < 0.5 else x
    x = x.flip([axis for axis in (1, 2) if random.rand() < 0.5]).contiguous()
    first = torch.zeros(batch, dtype=torch.int64, device=x.device)
    third, band = batch // 6, 1 + random.randint(x.shape[1] // 8)
    nothing = torch.full_like(x[:third, :band], random.choice([0, 0, 127]))
    x[:third], first[:third] = torch.cat([nothing, x[:third, :-band]], 1), band
    x[third : 2 * third] = torch.cat([x[third : 2 * third, band:], nothing], 1)
    return x, first


def main() -> None:
    given = record.options(__doc__, "frame_finder").parse_args()
    files: dict[str, Any] = {path.stem: np.load(path) for path in given.images}
    if not given.measure:
        train(files, given)
    finder, result = FrameFinder().to(given.device), {}
    for name, file in files.items():  # how often the weights there are find the first line of test images
        parts = torch.from_numpy(file["test"]).to(given.device).split(100)
        right = [torch.stack([each.argmax(1) == 0 for each in finder(Pixels(part.float() / 255))], 1) for part in parts]
        result[name] = lines_found(torch.cat(right))
    print(result)
    record.write("frame_finder", {"found_percent": result}, given.seed)


def train(files: dict[str, Any], given: Any) -> None:
    torch.manual_seed(given.seed)
    random = np.random.RandomState(given.seed)
    images = [torch.from_numpy(file["train"]).to(given.device) for file in files.values()]
    batches = [max(24, min(256, 300_000 // each[0].numel() * 3)) for each in images]
    order = [*range(len(images) - 1), *range(len(images) - 1), len(images) - 1]
    before = json.loads(WEIGHTS.read_text())
    network = Trained(before if given.resume else None).to(given.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=given.rate)
    for step in range(given.steps):
        optimizer.param_groups[0]["lr"] = given.rate * min(1, step / 100) * (1 - step / given.steps) + 1e-4
        which = order[step % len(order)]
        x, first = draw(images[which], batches[which], random)
        loss = F.cross_entropy(network(x), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = {name: network.rounded(name).detach().round().int().tolist() for name in SIZES}
    earlier = before.get("trained", []) if given.resume else []
    run = {"steps": given.steps, "rate": given.rate, **circumstances(given.seed)}
    WEIGHTS.write_text(json.dumps({**weights, "trained": [*earlier, run]}) + "\n")


if __name__ == "__main__":
    main()
