"""Measure finished weights part by part, see ``parts.toml``."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

from torch import nn

from benchmarks.accuracy.runs import Run, configuration, write_result
from benchmarks.common.record import Recorded
from trueshift import eval as evaluation
from trueshift.data import open_data
from trueshift.eval import EvalModel, EvalOptions
from trueshift.models import create_model
from trueshift.motion import mean_over_grids
from trueshift.tasks import adapt
from trueshift.utils.provenance import circumstances

WRITTEN = tomllib.loads(Path(__file__).with_name("parts.toml").read_text())
PARTS: dict[str, Recorded] = WRITTEN["parts"]
TWINS = {"canonical": evaluation.canonical_twin, "adapted": evaluation.adapted_twin}


def made(part: Recorded, subject: EvalModel, request: EvalOptions) -> EvalModel:
    """The network that is measured."""
    network = subject.module
    if "without" in part:  # the same weights; without the anchor too, which would hide what the other modules do
        how = {"criterion": {part["without"]: "fixed"}, "anchor": False}
        network = create_model("a_swin_mini", num_classes=subject.num_classes, **how)
        network.load_state_dict(subject.module.state_dict())
    network = adapt(network, **part["adapt"]) if "adapt" in part else network
    network = mean_over_grids(network, part["grids"]) if "grids" in part else network
    subject = subject if network is subject.module else beside(subject, network, request)
    return TWINS[part["twin"]](subject, request) if "twin" in part else subject


def beside(subject: EvalModel, network: nn.Module, request: EvalOptions | None = None) -> EvalModel:
    """Another network that takes and answers the same."""
    made = evaluation.make_eval_model(network, subject.name, subject.weights, request)
    return replace(made, **{key: getattr(subject, key) for key in ("preparation", "classes", "num_classes")})


def parts_of(recipe: str, asked: list[str] | None = None) -> list[str]:
    """The parts that are measured of a recipe's weights."""
    of = {name: part["recipes"].format(**WRITTEN["patterns"]) for name, part in PARTS.items()}
    return [name for name in PARTS if re.fullmatch(of[name], recipe) and name in (asked or PARTS)]


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
        part = {"precision": "float32", "shifts": 2, **PARTS[name]}
        request = EvalOptions(device=device, precision=part["precision"])
        subject = made(part, evaluation.load_eval_model(str(folder), request), request)
        settings = EvalOptions(part["shifts"], limit, batch_size, run.seed, device, part["precision"], workers)
        subject, protocols = replace(subject, name=run.recipe, weights="trained"), part["protocols"]
        measured = evaluation.run_evaluation(subject, source, evaluation.find_protocols(protocols), settings)
        kept = {key: measured[key] for key in ("settings", "protocols", "measured")}
        said = {**circumstances(run.seed), "command": f"{run.recipe}, seed {run.seed}: {name}"}
        done[name] = {**kept, "images": measured["data"]["images"], "weights": kept_as, **said}
        about = {"recipe": run.recipe, "model": configuration(run.recipe).model.name, "device": device}
        secrets = (data, run.work.resolve(), folder.resolve())
        write_result(path, {**said, "result": {**about, "parts": done}}, secrets)
        print(f"{run.name}: {name} on {device}", flush=True)
    return path
