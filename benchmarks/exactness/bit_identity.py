"""Is everything bit-identical under circular shifts here: on this CPU, and on CUDA if there is one?

    python -m benchmarks.exactness.bit_identity layers --shifts all --size 56 --core --places cpu
    python -m benchmarks.exactness.bit_identity mini --shifts all

Hostile images and photographs, the images of a batch moved independently. `layers`: all layers of the tests. `models`
(the paper's) and `mini` (the small ones): logits, the tokens of every stage and where they are, with fresh weights
and with all norms perturbed as training does. `segmentation`: whether UperNet's logits move with the image. `sample`:
trained small models, ordinary and adaptive, under every shift of the 400 real images that come with the package.

`without_anchor`: how often choices differ when the anchor is off, and how close they were. Each choice is exact for the
tokens it is given; but without the anchor kernels round tokens by their position, and a choice inside the network whose
margin is as small as that may flip. Above a margin of 1e-5 none should. Images that repeat are left out: they have
several equal choices.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA is used

import torch

import trueshift as ts
from benchmarks.common import record, timing
from benchmarks.common.contestants import FAMILIES
from trueshift.data import open_data
from trueshift.eval import EvalOptions, find_protocols, load_eval_model, run_evaluation
from trueshift.ops.geometry.shift import IMAGE_DIMS
from trueshift.ops.selection.content_hash import origin_keys
from trueshift.testing import assert_equivariant, hostile_images, photographs
from trueshift.utils.provenance import processor

sys.path.insert(0, str(record.ROOT / "tests"))
from layer_zoo import make_layers
from model_checks import all_shifts, broken_pairs, everything, perturb_norms, random_shifts

COMPILED = ("tokenize", "tokenize, overlapping", "align", "merge, norm before", "merge, convolution", "stages")
PAPER = {f"a_{family.short}": family.size for family in FAMILIES.values()}
SIZES = {name: (side, side) for name, side in PAPER.items()}
SIZES |= {"a_swinv2_tiny_window16_256": (256, 256), "a_swin_tiny, 224 x 448": (224, 448)}
MINI = {f"a_{family}_mini": (32, 32) for family in FAMILIES}
CLEAR = 1e-5
Rows = Iterator[dict[str, Any]]  # one for all layers, for each model, or for each size of its images


def images(size: tuple[int, int]) -> torch.Tensor:
    """Hostile images and photographs. "huge" is left out: it overflows a float32 norm in any network."""
    named = {name: image for name, image in hostile_images(size).items() if name != "huge"}
    named |= {name: photo[:, : size[0], : size[1]] for name, photo in photographs(max(size)).items()}
    return torch.stack(list(named.values()))


def settings() -> dict[str, tuple[str, dict[str, Any]]]:
    """Places and arithmetic of this machine by a short name: in words, and as arguments of ``prepared``."""
    plain = {"device": "cpu", "tf32": False, "autocast": False, "compiled": False}
    found: dict[str, tuple[str, dict[str, Any]]] = {"cpu": (f"{processor()}, float32", plain)}
    every = ("float32", "TF32", "bf16 autocast", "float32, compiled", "bf16 autocast, compiled")
    for words in every if torch.cuda.is_available() else ():
        short = words.lower().replace(" autocast", "").replace(", ", "-")
        options = {"device": "cuda", **{key: key in words.lower() for key in ("tf32", "autocast", "compiled")}}
        found[f"cuda-{short}"] = (f"{torch.cuda.get_device_name()}, {words}", options)
    return found


def prepared(module: Any, device: str, tf32: bool, autocast: bool, compiled: bool) -> Callable[[Any], Any]:
    """The module as it is run in a setting."""
    timing.set_precision("tf32" if tf32 else "float32")
    torch.compiler.reset()
    run = torch.compile(module, fullgraph=True) if compiled else module
    return torch.autocast(device, torch.bfloat16, enabled=autocast)(run)


def layers(given: argparse.Namespace, options: dict[str, Any]) -> Rows:
    made, batch = make_layers(given.size), images((given.size, given.size)).to(options["device"])
    names, failed = COMPILED if options["compiled"] or given.core else tuple(made), {}
    shifts = given.shifts if given.shifts == "all" else int(given.shifts)
    for name in names:
        torch.manual_seed(given.seed)
        layer = made[name]().eval().to(options["device"])
        try:
            assert_equivariant(prepared(layer, **options), batch, shifts=shifts)
        except AssertionError as error:
            failed[name] = str(error)
    pairs = len(names) * len(batch) * (given.size**2 if shifts == "all" else shifts)
    about = f"{len(names)} layers, {given.size} pixels, {shifts} shifts"
    yield {"checks": about, "pairs": pairs, "failures": len(failed), "failed": failed}


def models(given: argparse.Namespace, options: dict[str, Any]) -> Rows:
    every, sizes = given.shifts == "all", MINI if given.what == "mini" else SIZES
    for name in given.only or sizes:
        found, pairs = [], 0
        torch.manual_seed(given.seed)
        model = ts.create_model(name.split(",")[0], img_size=sizes[name]).eval().to(options["device"])
        call = prepared(everything(model), **options)
        for weights in ("fresh", "norms perturbed"):
            if weights != "fresh":
                perturb_norms(model)
            for batch in images(sizes[name]).to(options["device"]).split(1 if every else given.batch):
                batch = batch.expand(given.batch, -1, -1, -1) if every else batch
                shifts = all_shifts(batch) if every else random_shifts(batch, int(given.shifts))
                broken, count = broken_pairs(call, batch, shifts)
                found += [f"{weights}: {pair}" for pair in broken]
                pairs += count
        yield {"checks": name, "pairs": pairs, "failures": len(found), "failed": found[:20]}


def segmentation(given: argparse.Namespace, options: dict[str, Any]) -> Rows:
    for name, side in PAPER.items():
        for size in ((side, side), (2 * side, 2 * side), (side, 2 * side)):
            torch.manual_seed(given.seed)
            net = perturb_norms(ts.UperNet(name, 11, img_size=size)).eval().to(options["device"])
            call, wrong, pairs = prepared(net, **options), 0, 0
            for batch in images(size).to(options["device"]).split(min(given.batch, 16)):
                logits = call(batch)
                for offset in random_shifts(batch, int(given.shifts)):
                    there = offset.to(batch.device)
                    again = call(ts.circular_shift(batch, there, IMAGE_DIMS))
                    wrong += int((again != ts.circular_shift(logits, there, IMAGE_DIMS)).flatten(1).any(1).sum())
                    pairs += len(batch)
            yield {"model": name, "size": list(size), "pairs": pairs, "failures": wrong}


def without_anchor(given: argparse.Namespace, options: dict[str, Any]) -> Rows:
    """One row for each model: pairs whose every choice is clear, and the others."""
    device = options["device"]
    for name, side in PAPER.items():
        torch.manual_seed(given.seed)
        model = perturb_norms(ts.create_model(name, anchor=False, img_size=side)).eval().to(device)
        call = prepared(model, **options)
        row = dict.fromkeys(("clear", "close", "clear_flipped", "close_flipped", "clear_change", "close_change"), 0)
        photos = images((side, side))
        keys = origin_keys(photos.permute(0, 2, 3, 1)).flatten(1)
        unrepeated = photos[[len(key.unique()) == len(key) for key in keys]]
        for batch in unrepeated.to(device).split(given.batch):
            before, logits = ts.explain(model, batch), call(batch)
            clear = torch.stack([(d.margin > CLEAR) & ~d.tied for d in before.decisions]).all(0)
            for shift in random_shifts(batch, int(given.shifts)):
                moved = ts.circular_shift(batch, shift.to(device), IMAGE_DIMS)
                after = ts.explain(model, moved)
                flipped = torch.zeros_like(clear)
                for old, new in zip(before.grids + before.windows, after.grids + after.windows, strict=True):
                    if old is not None and new is not None:  # any token, and any window, may come first
                        away = (old.origin - shift.to(device) - new.origin) % torch.tensor(old.stride, device=device)
                        flipped |= away.any(1)
                change = (call(moved) - logits).abs().amax(1) / logits.abs().amax(1)
                for kind, chosen in (("clear", clear), ("close", ~clear)):
                    row[kind] += int(chosen.sum())
                    row[f"{kind}_flipped"] += int((chosen & flipped).sum())
                    row[f"{kind}_change"] = max([row[f"{kind}_change"], *change[chosen].tolist()])
        yield {"model": name, **row}


def sample(given: argparse.Namespace, options: dict[str, Any]) -> Rows:
    source, protocols = open_data(), find_protocols(["circular"])
    for name in (each for adaptive in MINI for each in (adaptive.removeprefix("a_"), adaptive)):
        subject = load_eval_model(name, EvalOptions(device=options["device"]))
        how = EvalOptions(0, given.limit, given.batch, device=options["device"])
        timing.set_precision("tf32" if options["tf32"] else "float32")
        yield {"model": subject.name, **run_evaluation(subject, source, protocols, how)["measured"]["circular"]}


# what makes the rows, and how the result file is called, of which the rest is the device
KINDS: dict[str, tuple[Callable[[argparse.Namespace, dict[str, Any]], Rows], str]] = {
    "layers": (layers, "exactness"),
    "models": (models, "model_exactness_paper"),
    "mini": (models, "model_exactness_mini"),
    "segmentation": (segmentation, "segmentation_exactness"),
    "without_anchor": (without_anchor, "without_anchor"),
    "sample": (sample, "sample_consistency"),
}


@torch.no_grad()
def main() -> None:
    parser = record.options(__doc__, "bit_identity", only=[*SIZES, *MINI])
    parser.add_argument("what", choices=KINDS)
    given = parser.parse_args()
    places = settings()
    if unknown := [name for name in given.places if name not in places]:
        parser.error(f"--places {' '.join(unknown)}: needs some of {', '.join(places)}")
    rows = []
    make, title = KINDS[given.what]
    device = "cuda" if any("cuda" in each for each in given.places or places) else "cpu"
    for place in given.places or places:
        where, options = places[place]
        for row in make(given, options):
            rows.append({"where": where, **row})
            print(rows[-1], flush=True)
            record.write(given.name or f"{title}_{device}", {"shifts": given.shifts, "rows": rows}, given.seed)


if __name__ == "__main__":
    main()
