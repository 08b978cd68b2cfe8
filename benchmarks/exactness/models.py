"""Are whole models bit-identical under circular shifts here: on this CPU, and on CUDA if there is one?

    python -m benchmarks.exactness.models --shifts 8
    python -m benchmarks.exactness.models --models mini --shifts all --cpu

Logits, the tokens of every stage and where they stand, on hostile images and photographs; with the weights of a fresh
network and with all norms perturbed as training does; on CUDA with TF32 on and off, under bf16 autocast and compiled.
"""

import argparse
import time
from typing import Any

import torch

import trueshift as ts
from benchmarks.common import checks, record

PAPER = {
    "a_swin_tiny": (224, 224),
    "a_swinv2_tiny": (256, 256),
    "a_cvt_13": (224, 224),
    "a_mvitv2_tiny": (224, 224),
    "a_swinv2_tiny_window16_256": (256, 256),
    "a_swin_tiny, 224 x 448": (224, 448),
}
MINI = dict.fromkeys(("a_swin_mini", "a_swinv2_mini", "a_cvt_mini", "a_mvitv2_mini"), (32, 32))


def examine(name: str, size: tuple[int, int], options: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    found, pairs, every = [], 0, given.shifts == "all"
    torch.manual_seed(given.seed)
    model = ts.create_model(name.split(",")[0], img_size=size).eval().to(options["device"])
    call = checks.prepared(checks.everything(model), **options)
    for weights in ("fresh", "norms perturbed"):
        if weights != "fresh":
            checks.perturb_norms(model)
        for batch in checks.images(size).to(options["device"]).split(1 if every else given.batch):
            batch = batch.expand(given.batch, -1, -1, -1) if every else batch
            shifts = checks.all_shifts(batch) if every else checks.random_shifts(batch, int(given.shifts))
            broken, count = checks.broken_pairs(call, batch, shifts)
            found += [f"{weights}: {pair}" for pair in broken]
            pairs += count
    return {"checks": name, "pairs": pairs, "failures": len(found), "failed": found[:20]}


def main() -> None:
    parser = record.options(
        __doc__,
        models={"choices": ("paper", "mini"), "default": "paper"},
        shifts={"default": "8", "help": "how many random ones for every image, or all"},
        batch=64,
        seed=0,
        cpu={"default": False, "help": "leave CUDA alone"},
        cuda={"default": False, "help": "leave the CPU alone"},
        only={"default": [], "metavar": "NAME", "help": "only these of the models"},
        precision={"default": [], "help": "only these: float32, TF32, bf16"},
        mode={"choices": ("eager", "compiled"), "default": ["eager", "compiled"]},
        name=None,
    )
    given = parser.parse_args()
    models = PAPER if given.models == "paper" else MINI
    if unknown := set(given.only) - models.keys():
        parser.error(f"--only {' '.join(unknown)}: needs some of {'; '.join(models)}")
    device = "cuda" if torch.cuda.is_available() and not given.cpu else "cpu"
    rows = []
    for where, options in checks.settings(given.cpu).items():
        mode = "compiled" if options["compiled"] else "eager"
        if (given.cuda and options["device"] == "cpu") or mode not in given.mode:
            continue
        if given.precision and not any(precision in where for precision in given.precision):
            continue
        for name in given.only or models:
            begin = time.perf_counter()
            rows.append({"where": where, **examine(name, models[name], options, given)})
            failures, pairs, failed = (rows[-1][key] for key in ("failures", "pairs", "failed"))
            seconds = time.perf_counter() - begin
            print(f"{where}, {name}: {failures} of {pairs:,} ({seconds:.0f} s)", *failed[:5], sep="\n  ", flush=True)
            result = {"shifts": given.shifts, "rows": rows}
            record.write(given.name or f"model_exactness_{given.models}_{device}", result, given.seed)


if __name__ == "__main__":
    main()
