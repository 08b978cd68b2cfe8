"""Train the network that finds a photograph's border (`trueshift/layers/frame.py`), and write its integers.

    python -m benchmarks.release.frame_finder --images CIFAR.npz TINY.npz PHOTOS.npz --steps 5000

Each file holds ``train`` and ``test``, uint8 images ``[N, H, W, 3]`` of one size. Images are cropped and made smaller
at random, a third of them get a black or grey band at one end, which belongs behind the photograph, and the network is
asked for its first line. Weights are rounded while training, so what is trained is what runs.
"""

import json
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import record
from trueshift.layers.frame import LARGEST, REACH, UNIT, WEIGHTS, FrameFinder
from trueshift.ops.selection.quantised_image import Pixels
from trueshift.utils.provenance import circumstances

FILTERS, HIDDEN = 8, 16
LIMITS = {"filters": 31, "mixing": 127, "bias": 127, "output": 127}


class Trained(nn.Module):
    """The same network in floating point."""

    def __init__(self) -> None:
        super().__init__()
        taps = FILTERS * (2 * REACH + 1)
        self.filters = nn.Parameter(8 * torch.randn(FILTERS, 3))
        self.mixing = nn.Parameter(20 * torch.randn(HIDDEN, taps) / taps**0.5)
        self.bias, self.output = nn.Parameter(torch.zeros(HIDDEN)), nn.Parameter(10 * torch.randn(HIDDEN))

    def rounded(self, name: str) -> Tensor:
        """Integers, with the gradient of what was rounded."""
        value: Tensor = getattr(self, name)
        return value + (value.round().clamp(-LIMITS[name], LIMITS[name]) - value).detach()

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the rows of ``[B, H, W, C]``."""
        step = images - images.roll(1, 1)
        taps = torch.stack([step.roll(1, 1), step, step.roll(-1, 1)], -1)
        lines = (taps @ self.rounded("filters").T).relu().sum((2, 3))
        share = lines / (lines.mean(1, keepdim=True) + 1e-6)
        level = (share + 1e-6).sqrt().clamp(max=LARGEST / UNIT)
        near = torch.cat([level.roll(-line, 1) for line in range(-REACH, REACH + 1)], 2)
        return ((near @ self.rounded("mixing").T + self.rounded("bias")) / 32).relu() @ self.rounded("output") / 32


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


def found(finder: FrameFinder, images: Tensor) -> dict[str, float]:
    """How often it is right, in percent."""
    corners = []
    for part in images.split(100):
        scores = finder(Pixels(part.float() / 255))
        corners.append(torch.stack([each.argmax(1) == 0 for each in scores], 1))
    rows, columns = torch.cat(corners).double().mean(0).tolist()
    both = torch.cat(corners).all(1).double().mean().item()
    return {name: round(100 * rate, 1) for name, rate in (("rows", rows), ("columns", columns), ("both", both))}


def main() -> None:
    given = record.options(__doc__, images=[""], steps=5000, seed=0, device="cuda").parse_args()
    torch.manual_seed(given.seed)
    random = np.random.RandomState(given.seed)
    files: dict[str, Any] = {path.rpartition("/")[2].removesuffix(".npz"): np.load(path) for path in given.images}
    train = [torch.from_numpy(file["train"]).to(given.device) for file in files.values()]
    batches = [max(32, min(384, 400_000 // images[0].numel() * 3)) for images in train]
    network = Trained().to(given.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.3)
    for step in range(given.steps):
        optimizer.param_groups[0]["lr"] = 0.3 * min(1, step / 100) * (1 - step / given.steps) + 1e-4
        which = step % len(train)
        x, first = draw(train[which], batches[which], random)
        loss = F.cross_entropy(network(x), first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = {name: network.rounded(name).detach().round().int().tolist() for name in LIMITS}
    WEIGHTS.write_text(json.dumps({**weights, "trained": {"steps": given.steps, **circumstances(given.seed)}}) + "\n")
    finder = FrameFinder().to(given.device)
    result = {name: found(finder, torch.from_numpy(file["test"]).to(given.device)) for name, file in files.items()}
    print(result)
    record.write("frame_finder", {"steps": given.steps, "found_percent": result}, given.seed)


if __name__ == "__main__":
    main()
