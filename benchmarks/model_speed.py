"""What do our models cost beside timm's (CvT: transformers'), in time and in memory?

    python benchmarks/model_speed.py --models swin --batch 128 --work inference training

Side by side in one process, round by round: the reference, ours with fixed grids, ours adaptive. Images per second, and
on CUDA the peak of allocated memory. bf16 is autocast; training is one step of SGD on the cross entropy.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import record
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueshift as ts  # before timm, which needs torchvision to be importable

import timm  # isort: skip

PAIRS = {
    "swin": ("swin_tiny_patch4_window7_224", 224),
    "swinv2": ("swinv2_tiny_window8_256", 256),
    "cvt": ("cvt_13", 224),
    "mvitv2": ("mvitv2_tiny", 224),
}


def reference(name: str) -> nn.Module:
    if name != "cvt_13":
        return timm.create_model(name)
    from transformers import CvtConfig, CvtForImageClassification

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = CvtForImageClassification(CvtConfig(num_labels=1000))

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).logits

    return Logits()


def step(model: nn.Module, images: Tensor, labels: Tensor, training: bool, bf16: bool) -> Callable[[], None]:
    device = images.device.type
    if not training:

        def infer() -> None:
            with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=bf16):
                model(images)

        return infer
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def train() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return train


def seconds(run: Callable[[], None], repeats: int, cuda: bool) -> float:
    if not cuda:
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - begin) / repeats
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(repeats):
        run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000 / repeats


def peak_mib(run: Callable[[], None], weights_of: nn.Module) -> float:
    """What a pass adds at most to the allocated memory, and the weights themselves."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    weights = sum(p.numel() * p.element_size() for p in weights_of.parameters())
    return (torch.cuda.max_memory_allocated() - before + weights) / 2**20


def measure(family: str, batch: int, training: bool, bf16: bool, compiled: bool, device: str, rounds: int) -> dict:
    name, size = PAIRS[family]
    cuda = device == "cuda"
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.randint(1000, (batch,), device=device)
    torch.compiler.reset()
    makers = {
        "reference": lambda: reference(name),
        "ours, fixed": lambda: ts.create_model(name),
        "ours, adaptive": lambda: ts.create_model(f"a_{name}"),
    }
    runs, memory, warm_up = {}, {}, {}
    for label, make in makers.items():
        torch.manual_seed(0)
        model = make().to(device).train(training)
        run = step(torch.compile(model) if compiled else model, images, labels, training, bf16)
        begin = time.perf_counter()
        for _ in range(3):
            run()
        if cuda:
            memory[label] = peak_mib(run, model)
        warm_up[label] = time.perf_counter() - begin
        runs[label] = run
    repeats = max(1, round(0.15 / seconds(runs["reference"], 2, cuda))) if cuda else 1
    times: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(rounds):
        for label, run in runs.items():
            times[label].append(seconds(run, repeats, cuda))
    base = times["reference"]
    rows = []
    for label, taken in times.items():
        ratios = sorted(a / b for a, b in zip(base, taken, strict=True))  # above 1: faster than the reference
        quarter = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "name": label,
                "images_per_second": batch / statistics.median(taken),
                "ratio": statistics.median(ratios),
                "quartiles": [quarter[0], quarter[2]],
                "memory_mib": memory.get(label),
                "warm_up_s": warm_up[label],
                "seconds": taken,
            }
        )
    return {
        "model": name,
        "batch": batch,
        "work": "training" if training else "inference",
        "precision": "bf16" if bf16 else ("TF32" if cuda else "float32"),
        "compiled": compiled,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(PAIRS), default=list(PAIRS))
    parser.add_argument("--batch", nargs="+", type=int, default=[128])
    parser.add_argument("--work", nargs="+", choices=("inference", "training"), default=["inference"])
    parser.add_argument("--precision", nargs="+", choices=("bf16", "float32"), default=["bf16"])
    parser.add_argument("--mode", nargs="+", choices=("eager", "compiled"), default=["eager"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--name", default=None)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    name = arguments.name or f"model_speed_{arguments.device}"
    found = []
    for mode in arguments.mode:
        for work in arguments.work:
            for batch in arguments.batch:
                for precision in arguments.precision:
                    for family in arguments.models:
                        options = (work == "training", precision == "bf16", mode == "compiled")
                        result = measure(family, batch, *options, arguments.device, arguments.rounds)
                        found.append(result)
                        print(f"{result['model']}, {work}, {mode}, batch {batch}, {result['precision']}")
                        for row in result["rows"]:
                            print(
                                f"  {row['name']:<15} {row['images_per_second']:8.0f} img/s  {row['ratio']:.3f}"
                                f"  {row['memory_mib'] or 0:8.0f} MiB  warm-up {row['warm_up_s']:.0f} s",
                                flush=True,
                            )
                        record.write(name, {"results": found}, 0)


if __name__ == "__main__":
    main()
