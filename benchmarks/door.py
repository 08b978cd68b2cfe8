"""What choosing the grid costs at the door: A-token's selection, the anchor and the roll, beside timm's Swin-T.

python benchmarks/door.py                                             # 8 x 3 x 224 x 224, float32, CPU
python benchmarks/door.py --device cuda --batch 128 --name door_cuda  # float32 with TF32
"""

import argparse
import statistics
import time
from collections.abc import Callable

import record
import torch
import torch.nn.functional as F

import trueshift as ts
from trueshift.ops.polyphase import coset_sum
from trueshift.ops.shift import IMAGE_DIMS, circular_shift
from trueshift.testing import photographs


def images(batch: int, size: int) -> torch.Tensor:
    """Photographs at random shifts, normalised: real content, none of it tied."""
    photos = torch.stack(list(photographs(size).values()))
    photos = (photos - 0.45) / 0.225
    which = torch.arange(batch) % len(photos)
    return circular_shift(photos[which], torch.randint(size, (batch, 2)), IMAGE_DIMS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="door_cpu", help="results/NAME.json")
    arguments = parser.parse_args()

    import timm  # after trueshift, which makes torchvision importable

    torch.manual_seed(arguments.seed)
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device = torch.device(arguments.device)
    x = images(arguments.batch, arguments.size).to(device)
    swin = timm.create_model("swin_tiny_patch4_window7_224", img_size=arguments.size).eval().to(device)
    tokenize = ts.AdaptiveTokenize(3, 96, 4, norm_layer=torch.nn.LayerNorm).eval().to(device)
    wide = F.pad(x, (0, 3, 0, 3), mode="circular")

    def door() -> torch.Tensor:
        return circular_shift(x, tokenize.choose(x).offset, IMAGE_DIMS)

    def every_phase() -> torch.Tensor:
        energy = F.conv2d(wide, tokenize.proj.weight, tokenize.proj.bias).square().sum(1)
        return coset_sum(energy.double(), 4)

    contestants: dict[str, Callable[[], torch.Tensor]] = {
        "timm Swin-T, forward": lambda: swin(x),
        "choose, anchor and roll": door,
        "one stride-1 convolution for all phases (scores alone)": every_phase,
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(arguments.rounds + 2):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if round_ >= 2:  # two rounds of warm-up
                times[name].append(time.perf_counter() - start)

    reference = times["timm Swin-T, forward"]
    rows = []
    for name, seconds in times.items():
        ratios = [a / b for a, b in zip(seconds, reference, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append(
            {"name": name, "median_ms": 1e3 * statistics.median(seconds), "ratio": middle, "quartiles": [low, high],
             "seconds": seconds}
        )  # fmt: skip
        print(
            f"{name:38s} {rows[-1]['median_ms']:9.1f} ms   {100 * middle:6.2f} % ({100 * low:.2f} to {100 * high:.2f})"
        )
    result = {"batch": arguments.batch, "size": arguments.size, "dtype": "float32", "rows": rows}
    print("written to", record.write(arguments.name, result, arguments.seed).relative_to(record.ROOT))


if __name__ == "__main__":
    main()
