"""Is everything bit-identical under circular shifts here: on this CPU, and on CUDA if there is one?

    python -m benchmarks.exactness.bit_identity layers --shifts 64
    python -m benchmarks.exactness.bit_identity layers --shifts all --size 56 --core --places cpu
    python -m benchmarks.exactness.bit_identity models --shifts 8
    python -m benchmarks.exactness.bit_identity mini --shifts all
    python -m benchmarks.exactness.bit_identity segmentation --shifts 4 --places cuda-float32

Hostile images and photographs, the images of a batch moved independently. `layers`: all layers of the tests. `models`
(the paper's) and `mini` (the small ones): logits, the tokens of every stage and where they stand, with fresh weights
and with all norms perturbed as training does. `segmentation`: whether UperNet's logits move with the image.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import torch

import trueshift as ts
from benchmarks.common import checks, record
from trueshift.ops.geometry.shift import IMAGE_DIMS
from trueshift.testing import assert_equivariant

COMPILED = ("tokenize", "tokenize, overlapping", "align", "merge, norm before", "merge, convolution", "stages")
PAPER = {"a_swin_tiny": 224, "a_swinv2_tiny": 256, "a_cvt_13": 224, "a_mvitv2_tiny": 224}
SIZES = {name: (side, side) for name, side in PAPER.items()}
SIZES |= {"a_swinv2_tiny_window16_256": (256, 256), "a_swin_tiny, 224 x 448": (224, 448)}
MINI = dict.fromkeys(("a_swin_mini", "a_swinv2_mini", "a_cvt_mini", "a_mvitv2_mini"), (32, 32))
Rows = Iterator[dict[str, Any]]


@torch.no_grad()
def layers(given: argparse.Namespace, options: dict[str, Any]) -> Rows:
    """One row for all layers."""
    made, images = checks.make_layers(given.size), checks.images((given.size, given.size)).to(options["device"])
    names, failed = COMPILED if options["compiled"] or given.core else tuple(made), {}
    shifts = given.shifts if given.shifts == "all" else int(given.shifts)
    for name in names:
        torch.manual_seed(given.seed)
        layer = made[name]().eval().to(options["device"])
        try:
            assert_equivariant(checks.prepared(layer, **options), images, shifts=shifts)
        except AssertionError as error:
            failed[name] = str(error)
    pairs = len(names) * len(images) * (given.size**2 if shifts == "all" else shifts)
    about = f"{len(names)} layers, {given.size} pixels, {shifts} shifts"
    yield {"checks": about, "pairs": pairs, "failures": len(failed), "failed": failed}


def models(given: argparse.Namespace, options: dict[str, Any], sizes: dict[str, tuple[int, int]] = SIZES) -> Rows:
    """One row for each model."""
    every = given.shifts == "all"
    for name in given.only or sizes:
        found, pairs = [], 0
        torch.manual_seed(given.seed)
        model = ts.create_model(name.split(",")[0], img_size=sizes[name]).eval().to(options["device"])
        call = checks.prepared(checks.everything(model), **options)
        for weights in ("fresh", "norms perturbed"):
            if weights != "fresh":
                checks.perturb_norms(model)
            for batch in checks.images(sizes[name]).to(options["device"]).split(1 if every else given.batch):
                batch = batch.expand(given.batch, -1, -1, -1) if every else batch
                shifts = checks.all_shifts(batch) if every else checks.random_shifts(batch, int(given.shifts))
                broken, count = checks.broken_pairs(call, batch, shifts)
                found += [f"{weights}: {pair}" for pair in broken]
                pairs += count
        yield {"checks": name, "pairs": pairs, "failures": len(found), "failed": found[:20]}


def mini(given: argparse.Namespace, options: dict[str, Any]) -> Rows:
    return models(given, options, MINI)


@torch.no_grad()
def segmentation(given: argparse.Namespace, options: dict[str, Any]) -> Rows:
    """One row for each backbone and size."""
    for name, side in PAPER.items():
        for size in ((side, side), (2 * side, 2 * side), (side, 2 * side)):
            torch.manual_seed(given.seed)
            net = checks.perturb_norms(ts.UperNet(name, 11, img_size=size)).eval().to(options["device"])
            call, wrong, pairs = checks.prepared(net, **options), 0, 0
            for batch in checks.images(size).to(options["device"]).split(min(given.batch, 16)):
                logits = call(batch)
                for offset in checks.random_shifts(batch, int(given.shifts)):
                    there = offset.to(batch.device)
                    again = call(ts.circular_shift(batch, there, IMAGE_DIMS))
                    wrong += int((again != ts.circular_shift(logits, there, IMAGE_DIMS)).flatten(1).any(1).sum())
                    pairs += len(batch)
            yield {"model": name, "size": list(size), "pairs": pairs, "failures": wrong}


KINDS = {"layers": layers, "models": models, "mini": mini, "segmentation": segmentation}
NAMES = {"layers": "exactness", "models": "model_exactness_paper", "mini": "model_exactness_mini"}


def main() -> None:
    parser = record.options(
        __doc__,
        shifts={"default": "8", "help": "how many random ones for every image, or all"},
        places={"default": [], "help": "some of cpu, cuda-float32, cuda-tf32, cuda-bf16, cuda-...-compiled; all"},
        size={"default": 32, "help": "of images for layers"},
        core={"default": False, "help": "only the layers that are also compiled"},
        only={"default": [], "choices": [*SIZES, *MINI], "metavar": "NAME", "help": "only these of the models"},
        batch=64,
        seed=0,
        name={"help": "results/NAME.json"},
    )
    parser.add_argument("what", choices=KINDS)
    given = parser.parse_args()
    places = checks.settings()
    if unknown := [name for name in given.places if name not in places]:
        parser.error(f"--places {' '.join(unknown)}: needs some of {', '.join(places)}")
    rows = []
    for place in given.places or places:
        where, options = places[place]
        for row in KINDS[given.what](given, options):
            rows.append({"where": where, **row})
            print(rows[-1], flush=True)
            device = "cuda" if any("cuda" in each for each in given.places or places) else "cpu"
            name = given.name or f"{NAMES.get(given.what, 'segmentation_exactness')}_{device}"
            record.write(name, {"shifts": given.shifts, "rows": rows}, given.seed)


if __name__ == "__main__":
    main()
