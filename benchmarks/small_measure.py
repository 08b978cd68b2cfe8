"""What is measured of finished weights beside what training measures itself; each part is kept once it is there."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from small_runs import ERASED, SMALL, Run, adaptive, configuration, of_the_main_tables, write_result

from trueshift.data import open_data
from trueshift.eval import EvalOptions, run_evaluation
from trueshift.eval.models.eval_model import EvalModel, adapted_twin, canonical_twin, make_eval_model
from trueshift.eval.models.load import load_eval_model
from trueshift.eval.protocols.registry import find_protocols
from trueshift.models import create_model
from trueshift.utils.provenance import circumstances

SWITCHED = (f"{SMALL}/a_swin_mini", f"{SMALL}/shipped/a_swin_mini")  # of which modules are switched off
MODULES = {"a_token": "tokenize", "a_wsa": "align", "a_pmerge": "merge"}
EXACTNESS_SHIFTS = 8  # of each image, each compared with the unshifted one and with all others


@dataclass(frozen=True)
class Part:
    """One question to a network.

    Args:
        wanted: by which recipes it is asked.
        protocols: by what it is measured.
        twin: what is made of the network first.
        precision: of the forward pass.
        shifts: of each image.
    """

    wanted: Callable[[str], bool]
    protocols: tuple[str, ...]
    twin: Callable[[EvalModel, EvalOptions], EvalModel] | None = None
    precision: str = "float32"
    shifts: int = 2


def _ordinary(recipe: str) -> bool:
    """Trained for circular shifts, with nothing adaptive."""
    ordinary = not configuration(recipe).model.name.startswith("a_")
    return of_the_main_tables(recipe) and ordinary and not recipe.endswith("_standard")


def _without(module: str) -> Callable[[EvalModel, EvalOptions], EvalModel]:
    """The same weights with one of the modules switched off, and the anchor, which would hide what the others do."""

    def twin(subject: EvalModel, request: EvalOptions) -> EvalModel:
        network = create_model(
            "a_swin_mini", num_classes=subject.num_classes, criterion={module: "fixed"}, anchor=False
        )
        network.load_state_dict(subject.module.state_dict())
        made = make_eval_model(network, subject.name, subject.weights, request)
        return replace(made, preparation=subject.preparation, classes=subject.classes)

    return twin


PARTS = {
    "exactness_float32": Part(adaptive, ("circular",), shifts=EXACTNESS_SHIFTS),
    "exactness_bf16": Part(adaptive, ("circular",), precision="bf16", shifts=EXACTNESS_SHIFTS),
    "magnitude": Part(lambda recipe: of_the_main_tables(recipe) and not recipe.endswith("_standard"), ("magnitude",)),
    "distorted": Part(lambda recipe: recipe in ERASED, ("erased", "flips")),
    "canonical": Part(_ordinary, ("circular", "cifar-standard"), canonical_twin),
    "adapted": Part(_ordinary, ("circular", "cifar-standard"), adapted_twin),
    **{
        f"no_{name}": Part(lambda recipe: recipe in SWITCHED, ("circular",), _without(module))
        for name, module in MODULES.items()
    },
}


def parts_of(recipe: str, asked: list[str] | None) -> list[str]:
    """The parts that are measured of a recipe's weights."""
    return [name for name, part in PARTS.items() if part.wanted(recipe) and (not asked or name in asked)]


def result_path(results: Path, run: Run, device: str) -> Path:
    """Where the measurements of a run on a device are kept."""
    return results / f"measured_{run.name}_{device}.json"


def parts_there(path: Path, limit: int) -> set[str]:
    """What need not be measured again: a trial of a few images does not stand for all."""
    return {name for name, part in _parts(path).items() if part["settings"]["limit"] in (0, limit)}


def _parts(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["result"]["parts"] if path.exists() else {}


def measure_run(
    run: Run, data: str, results: Path, device: str, asked: list[str] | None, limit: int, batch_size: int, workers: int
) -> Path:
    """All parts of one run that are not there yet."""
    found = run.weights()
    if found is None:
        raise SystemExit(f"{run.name} has no final weights: needs its run in {run.work}, or --weights")
    folder, kept_as = found
    path, source = result_path(results, run, device), open_data(data, "test")
    done, there = _parts(path), parts_there(path, limit)
    for name in parts_of(run.recipe, asked):
        if name in there:
            continue
        part = PARTS[name]
        request = EvalOptions(device=device, precision=part.precision)
        subject = load_eval_model(str(folder), request)
        if part.twin is not None:
            subject = part.twin(subject, request)
        settings = EvalOptions(part.shifts, limit, batch_size, run.seed, device, part.precision, workers)
        subject = replace(subject, name=run.recipe, weights="trained")
        measured = run_evaluation(subject, source, find_protocols(list(part.protocols)), settings)
        kept = ("settings", "protocols", "measured")
        command = f"python benchmarks/small_models.py --measure-only --runs {run.recipe} --seeds {run.seed}"
        said = {**circumstances(run.seed), "command": f"{command} --device {device}"}
        # parts of one file may be of different days, machines and commits: each says its own
        about_part = {"images": measured["data"]["images"], "weights": kept_as, **said}
        done[name] = {**{key: measured[key] for key in kept}, **about_part}
        about = {"recipe": run.recipe, "model": configuration(run.recipe).model.name, "device": device}
        result = {**said, "result": {**about, "parts": done}}
        write_result(path, result, (data, run.work.resolve(), folder.resolve()))
        print(f"{run.name}: {name} on {device}", flush=True)
    return path
