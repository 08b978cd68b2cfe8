"""What is measured of finished weights beside what training measures itself."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from benchmarks.accuracy.runs import Run, configuration, write_result
from trueshift.data import open_data
from trueshift.eval import (
    EvalModel,
    EvalOptions,
    adapted_twin,
    canonical_twin,
    find_protocols,
    load_eval_model,
    make_eval_model,
    run_evaluation,
)
from trueshift.models import create_model
from trueshift.motion import mean_over_grids
from trueshift.tasks import adapt
from trueshift.utils.provenance import circumstances

BOTH = ("circular", "cifar-standard")
EXACTNESS_SHIFTS = 8  # of each image, each compared with the unshifted one and with all others
# recipes: of exactly invariant networks; of the main tables, where the network is as it is; of ordinary ones there;
# of ordinary ones that are shown with an anchor as well; of adaptive ones of which a mean over grids is taken
INVARIANT = r"(?!.*_no_).*/(a_.*|.*_(adapted|spot)_\d+_epochs|.*_adapted_random_grids)"
ORDINARY = r"cifar10(_small)?/(swin|swinv2|cvt|mvitv2)_(mini|tiny)(_circular)?"
ANCHORED = r"cifar10_small/shipped/(?!a_)\w+_mini(_long\w+|_[23]00_epochs|_consistency)?|tiny_imagenet/(?!a_).*"
GRIDS = r".*/a_(?!vit)\w+_(random_grids\w*|longest|300_epochs|distilled|consistency|spot)"
GRIDS += r"|.*/shipped/\w+_(adapted|spot)_20_epochs|.*_adapted_random_grids"
SWITCHED = "cifar10_small/(shipped/)?a_swin_mini"  # of which modules are switched off


class Part(NamedTuple):
    """One measurement of the networks whose recipes fit a regular expression."""

    recipes: str
    protocols: tuple[str, ...]
    twin: Callable[[EvalModel, EvalOptions], EvalModel] | None = None  # what is made of the network first
    precision: str = "float32"
    shifts: int = 2  # of each image


def _without(module: str) -> Callable[[EvalModel, EvalOptions], EvalModel]:
    """The same weights with one of the modules switched off, and the anchor, which would hide what the others do."""

    def twin(subject: EvalModel, request: EvalOptions) -> EvalModel:
        how = {"criterion": {module: "fixed"}, "anchor": False}
        network = create_model("a_swin_mini", num_classes=subject.num_classes, **how)
        network.load_state_dict(subject.module.state_dict())
        return beside(subject, network, request)

    return twin


def _mean_over(grids: int) -> Callable[[EvalModel, EvalOptions], EvalModel]:
    return lambda subject, request: beside(subject, mean_over_grids(subject.module, grids), request)


def _by_spot(subject: EvalModel, request: EvalOptions) -> EvalModel:
    return beside(subject, adapt(subject.module, criterion="spot", border="closed"), request)


def beside(subject: EvalModel, network: nn.Module, request: EvalOptions | None = None) -> EvalModel:
    """Another network that takes and answers the same."""
    made = make_eval_model(network, subject.name, subject.weights, request)
    return replace(made, **{key: getattr(subject, key) for key in ("preparation", "classes", "num_classes")})


PARTS = {
    "exactness_float32": Part(INVARIANT, ("circular",), shifts=EXACTNESS_SHIFTS),
    "exactness_bf16": Part(INVARIANT, ("circular",), precision="bf16", shifts=EXACTNESS_SHIFTS),
    "ranges": Part("cifar10/.*", ("ranges",)),
    "magnitude": Part(ORDINARY.replace("/", "/(a_)?"), ("magnitude",)),
    "distorted": Part("cifar10_small/(a_swin_mini|swin_mini(_da_circular)?)", ("erased", "flips")),
    "itself": Part(ANCHORED, BOTH),  # under the shifts of "canonical"
    "canonical": Part(f"{ORDINARY}|{ANCHORED}|.*_da_.*", BOTH, canonical_twin),
    "canonical_grids_4": Part(ANCHORED, ("circular",), lambda *given: canonical_twin(_mean_over(4)(*given), given[1])),
    "adapted": Part(f"{ORDINARY}|.*_da_.*", BOTH, adapted_twin),
    "adapted_by_spot": Part("cifar10_small/shipped/(swin|swinv2|cvt|mvitv2)_mini", BOTH, _by_spot),
    "grids_2": Part(GRIDS, BOTH, _mean_over(2)),
    "grids_4": Part(GRIDS, BOTH, _mean_over(4)),
    "no_a_token": Part(SWITCHED, ("circular",), _without("tokenize")),
    "no_a_wsa": Part(SWITCHED, ("circular",), _without("align")),
    "no_a_pmerge": Part(SWITCHED, ("circular",), _without("merge")),
}


def parts_of(recipe: str, asked: list[str] | None = None) -> list[str]:
    """The parts that are measured of a recipe's weights."""
    found = [name for name, part in PARTS.items() if re.fullmatch(part.recipes, recipe)]
    return [name for name in found if not asked or name in asked]


def measure_run(job: tuple[Run, list[str]], data: str, device: str, limit: int, batch_size: int, workers: int) -> Path:
    """Some parts of one run, written as soon as each is there."""
    run, parts = job
    found = run.weights()
    if found is None:
        raise SystemExit(f"{run.name} has no final weights: needs its run in {run.work}, or --weights")
    folder, kept_as = found
    path, source = run.work / f"measured_{run.name}_{device}.json", open_data(data, "test")
    done = json.loads(path.read_text())["result"]["parts"] if path.exists() else {}
    for name in parts:
        if name in done and done[name]["settings"]["limit"] == limit:  # a call that was stopped got as far
            continue
        part = PARTS[name]
        request = EvalOptions(device=device, precision=part.precision)
        subject = load_eval_model(str(folder), request)
        if part.twin is not None:
            subject = part.twin(subject, request)
        settings = EvalOptions(part.shifts, limit, batch_size, run.seed, device, part.precision, workers)
        subject = replace(subject, name=run.recipe, weights="trained")
        measured = run_evaluation(subject, source, find_protocols(list(part.protocols)), settings)
        kept = {key: measured[key] for key in ("settings", "protocols", "measured")}
        said = {**circumstances(run.seed), "command": f"{run.recipe}, seed {run.seed}: {name}"}
        done[name] = {**kept, "images": measured["data"]["images"], "weights": kept_as, **said}
        about = {"recipe": run.recipe, "model": configuration(run.recipe).model.name, "device": device}
        secrets = (data, run.work.resolve(), folder.resolve())
        write_result(path, {**said, "result": {**about, "parts": done}}, secrets)
        print(f"{run.name}: {name} on {device}", flush=True)
    return path
