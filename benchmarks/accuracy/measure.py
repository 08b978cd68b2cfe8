"""What is measured of finished weights beside what training measures itself."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from benchmarks.accuracy.runs import SMALL, Run, configuration, needed_by, write_result
from benchmarks.common.package import (
    EvalModel,
    EvalOptions,
    adapted_twin,
    canonical_twin,
    find_protocols,
    load_eval_model,
    make_eval_model,
    open_data,
    run_evaluation,
)
from trueshift.models import create_model
from trueshift.motion import mean_over_grids
from trueshift.utils.provenance import circumstances

ERASED = tuple(f"{SMALL}/{name}" for name in ("swin_mini", "swin_mini_da_circular", "a_swin_mini"))
SWITCHED = (f"{SMALL}/a_swin_mini", f"{SMALL}/shipped/a_swin_mini")  # of which modules are switched off
MODULES = {"a_token": "tokenize", "a_wsa": "align", "a_pmerge": "merge"}
EXACTNESS_SHIFTS = 8  # of each image, each compared with the unshifted one and with all others


@dataclass(frozen=True)
class Part:
    """One measurement of the networks whose recipes want it."""

    wanted: Callable[[str], bool]
    protocols: tuple[str, ...]
    twin: Callable[[EvalModel, EvalOptions], EvalModel] | None = None  # what is made of the network first
    precision: str = "float32"
    shifts: int = 2  # of each image


def _adaptive(recipe: str) -> bool:
    """Whether the network is one of our adaptive ones, or of another library and adapted."""
    model = configuration(recipe).model
    return model.name.startswith("a_") or "criterion" in model.arguments


def _invariant(recipe: str) -> bool:
    """Whether the network is exactly invariant: adaptive, and no module removed."""
    return _adaptive(recipe) and "_no_" not in recipe


def _main_tables(recipe: str) -> bool:
    """Whether it is one of the eight networks as they are, trained for circular shifts."""
    config = configuration(recipe)
    changed = config.model.arguments or config.augment.circular_shift or config.model.grid_drop_rate
    return not changed and recipe.count("/") == 1 and not recipe.endswith(("_epochs", "_standard"))


def _ordinary(recipe: str) -> bool:
    return _main_tables(recipe) and not configuration(recipe).model.name.startswith("a_")


def _anchored_later(recipe: str) -> bool:
    """Whether it is an ordinary network that the tables show with an anchor as well."""
    shown = recipe.startswith(("cifar10_small/shipped/", "tiny_imagenet/"))
    return shown and not (_adaptive(recipe) or configuration(recipe).model.arguments.get("anchor"))


def _keeps_grids(recipe: str) -> bool:
    """Whether it is one of ours that was trained with random grids."""
    model = configuration(recipe).model
    return model.name.startswith("a_") and model.grid_drop_rate is not None and not needed_by(recipe)


def _without(module: str) -> Callable[[EvalModel, EvalOptions], EvalModel]:
    """The same weights with one of the modules switched off, and the anchor, which would hide what the others do."""

    def twin(subject: EvalModel, request: EvalOptions) -> EvalModel:
        network = create_model(
            "a_swin_mini", num_classes=subject.num_classes, criterion={module: "fixed"}, anchor=False
        )
        network.load_state_dict(subject.module.state_dict())
        return _beside(subject, network, request)

    return twin


def _mean_over(grids: int) -> Callable[[EvalModel, EvalOptions], EvalModel]:
    return lambda subject, request: _beside(subject, mean_over_grids(subject.module, grids), request)


def _beside(subject: EvalModel, network: nn.Module, request: EvalOptions) -> EvalModel:
    made = make_eval_model(network, subject.name, subject.weights, request)
    return replace(made, **{key: getattr(subject, key) for key in ("preparation", "classes", "num_classes")})


PARTS = {
    "exactness_float32": Part(_invariant, ("circular",), shifts=EXACTNESS_SHIFTS),
    "exactness_bf16": Part(_invariant, ("circular",), precision="bf16", shifts=EXACTNESS_SHIFTS),
    "magnitude": Part(_main_tables, ("magnitude",)),
    "distorted": Part(lambda recipe: recipe in ERASED, ("erased", "flips")),
    "itself": Part(_anchored_later, ("circular", "cifar-standard")),  # under the shifts of "canonical"
    "canonical": Part(
        lambda recipe: _ordinary(recipe) or _anchored_later(recipe) or "_da_" in recipe,
        ("circular", "cifar-standard"),
        canonical_twin,
    ),
    "adapted": Part(lambda recipe: _ordinary(recipe) or "_da_" in recipe, ("circular", "cifar-standard"), adapted_twin),
    **{f"grids_{count}": Part(_keeps_grids, ("circular", "cifar-standard"), _mean_over(count)) for count in (2, 4)},
    **{
        f"no_{name}": Part(lambda recipe: recipe in SWITCHED, ("circular",), _without(module))
        for name, module in MODULES.items()
    },
}


def parts_of(recipe: str, asked: list[str] | None = None) -> list[str]:
    """The parts that are measured of a recipe's weights."""
    return [name for name, part in PARTS.items() if part.wanted(recipe) and (not asked or name in asked)]


def measure_run(run: Run, parts: list[str], data: str, device: str, limit: int, batch_size: int, workers: int) -> Path:
    """Some parts of one run, written as soon as each is there."""
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
