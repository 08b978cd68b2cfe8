"""Are whole models bit-identical under circular shifts here: on this CPU, and on CUDA if there is one?

    python benchmarks/model_exactness.py --shifts 8
    python benchmarks/model_exactness.py --models mini --shifts all --cpu

Logits, the tokens of every stage and where they stand, on hostile images and photographs; with the weights of a fresh
network and with all norms perturbed as training does; on CUDA with TF32 on and off, under bf16 autocast and compiled.
"""

import argparse
import os
import sys
import time
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import record
import torch
from exactness import settings

sys.path.insert(0, str(record.ROOT / "tests"))
from model_checks import all_shifts, broken_pairs, everything, perturb_norms, random_shifts

import trueshift as ts
from trueshift.testing import hostile_images, photographs

PAPER = {
    "a_swin_tiny": (224, 224),
    "a_swinv2_tiny": (256, 256),
    "a_cvt_13": (224, 224),
    "a_mvitv2_tiny": (224, 224),
    "a_swinv2_tiny_window16_256": (256, 256),
    "a_swin_tiny, 224 x 448": (224, 448),
}
MINI = dict.fromkeys(("a_swin_mini", "a_swinv2_mini", "a_cvt_mini", "a_mvitv2_mini"), (32, 32))


def images(size: tuple[int, int]) -> torch.Tensor:
    """Hostile ones, and photographs where the size is square. "huge" overflows a float32 norm, as in any network."""
    named = {name: image for name, image in hostile_images(size).items() if name != "huge"}
    if size[0] == size[1]:
        named |= photographs(size[0])
    return torch.stack(list(named.values()))


def forward(model: torch.nn.Module, device: str, tf32: bool, autocast: bool, compiled: bool) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.compiler.reset()
    run = torch.compile(everything(model), fullgraph=True) if compiled else everything(model)

    def call(x: torch.Tensor) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            return run(x)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", choices=("paper", "mini"), default="paper")
    parser.add_argument("--shifts", default="8", help="how many random ones for every image, or all")
    parser.add_argument("--batch", type=int, default=64, help="at most so many images at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="leave CUDA alone")
    parser.add_argument("--cuda", action="store_true", help="leave the CPU alone")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these of the models")
    parser.add_argument("--precision", nargs="+", default=None, help="only these: float32, TF32, bf16")
    parser.add_argument("--mode", nargs="+", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--name", default=None, help="results/NAME.json")
    arguments = parser.parse_args()
    subjects = PAPER if arguments.models == "paper" else MINI
    if unknown := set(arguments.only) - subjects.keys():
        parser.error(f"--only {' '.join(unknown)}: needs some of {'; '.join(subjects)}")
    rows = []
    for where, options in settings(arguments.cpu).items():
        if (arguments.cuda and options["device"] == "cpu") or (
            ("compiled" if options["compiled"] else "eager") not in arguments.mode
        ):
            continue
        if arguments.precision and not any(precision in where for precision in arguments.precision):
            continue
        for name, size in subjects.items():
            if arguments.only and name not in arguments.only:
                continue
            begin = time.perf_counter()
            found, pairs = [], 0
            torch.manual_seed(arguments.seed)
            model = ts.create_model(name.split(",")[0], img_size=size).eval().to(options["device"])
            call = forward(model, **options)
            for weights in ("fresh", "norms perturbed"):
                if weights != "fresh":
                    perturb_norms(model)
                every = arguments.shifts == "all"
                batches = images(size).to(options["device"]).split(1 if every else arguments.batch)
                for batch in batches:
                    batch = batch.expand(arguments.batch, -1, -1, -1) if every else batch
                    shifts = all_shifts(batch) if every else random_shifts(batch, int(arguments.shifts))
                    broken, count = broken_pairs(call, batch, shifts)
                    found += [f"{weights}: {pair}" for pair in broken]
                    pairs += count
            rows.append({"where": where, "checks": name, "pairs": pairs, "failures": len(found), "failed": found[:20]})
            seconds = time.perf_counter() - begin
            print(f"{where}, {name}: {len(found)} of {pairs:,} ({seconds:.0f} s)", *found[:5], sep="\n  ", flush=True)
            where_it_ran = "cuda" if torch.cuda.is_available() and not arguments.cpu else "cpu"
            result = arguments.name or f"model_exactness_{arguments.models}_{where_it_ran}"
            record.write(result, {"shifts": arguments.shifts, "rows": rows}, arguments.seed)


if __name__ == "__main__":
    main()
