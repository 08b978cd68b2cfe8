r"""Answers while the camera moves: each wrapper around a network, on the same views, with its cost in passes.

    python -m benchmarks.accuracy.motion --family swin --data data/cifar10 --limit 1000
    python -m benchmarks.accuracy.motion --family swin --photos FOLDER
    python -m benchmarks.accuracy.motion --title ViT-mini --data data/cifar10 --networks \
        ordinary=runs/cifar10_small/shipped/vit_mini/final adaptive=runs/cifar10_small/shipped/a_vit_mini/final

For networks of 32 pixels labelled images are enlarged to 40, a view, of which the networks take 32; for others in
proportion. Photographs have no labels that the networks know: their shorter side becomes 80 pixels, views are 48, and
paths of 32 pixels move over them. With ``--view 2`` views are twice the networks' size, and photographs larger by as
much. The last part of the data's path names the result file, ``motion_cifar10_swin``. ``--crops 1 2`` measures
instead, on views that show whole images, Top-1 of the first network on the centre and on the mean over so many crops.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import trueshift
from benchmarks.accuracy import store
from benchmarks.accuracy.measure import beside
from benchmarks.common import record
from trueshift import eval as evaluation
from trueshift.data import ImageFolder, Preparation
from trueshift.data.subset import evenly_spread
from trueshift.eval import EvalModel, EvalOptions, FlickerRate, LongestRun
from trueshift.eval.metrics.aggregate import rate_of
from trueshift.eval.runner.tasks import open_source
from trueshift.motion import adaptive_tokenizer
from trueshift.ops.geometry.shift import Pair

from torchvision.transforms import CenterCrop  # isort: skip -- trueshift makes it importable

CROPS = ("crop-1", "crop-2", "crop-4", "crop-8")
CLIPS = 100  # at a time
PIXELS = ("subpixel", "subpixel-bilinear", "jpeg", "noise")
WRAPPERS: dict[str, tuple[int, Callable[[Any, Pair], nn.Module]]] = {  # passes, and what takes the network's place
    "": (1, lambda network, size: nn.Sequential(CenterCrop(size), network)),
    "4 grids": (4, lambda network, size: nn.Sequential(CenterCrop(size), trueshift.mean_over_grids(network, 4))),
    "steady": (1, trueshift.steady),
    "steady, 2 crops": (2, lambda network, size: trueshift.steady(network, size, 2)),
    "4 grids, steady": (4, lambda network, size: trueshift.steady(trueshift.mean_over_grids(network, 4), size)),
    "video": (1, trueshift.video),
}


@torch.inference_mode()
def frame_by_frame(
    model: Any, source: Any, preparation: Preparation, name: str, options: EvalOptions
) -> dict[str, Any]:
    """The path protocol for a model with a memory: the frames of each image in their order."""
    (protocol,) = evaluation.find_protocols([name])
    margin, flicker, longest = protocol.motion.margin(preparation.size), FlickerRate(), LongestRun()
    model = model.to(options.device)

    def clip(index: int) -> torch.Tensor:
        canvas = preparation.normalise(preparation.canvas(source[index].image, margin)).to(options.device)
        return protocol.motion.view(canvas, protocol.shifts(index, None, preparation.size, 0), preparation.size)

    for start in range(0, options.limit, CLIPS):
        frames = torch.stack([clip(index) for index in range(start, min(start + CLIPS, options.limit))], 1)
        model.reset()
        answers = torch.stack([model(frame).argmax(1) for frame in frames], 1)
        for metric in (flicker, longest):
            metric.update(answers.cpu())
    return {name: {"flicker": rate_of(flicker), "longest_run": rate_of(longest)}}


def load_networks(words: list[str]) -> dict[str, EvalModel]:
    """Networks by name; all of one size, so that they see the same views."""
    if wrong := [word for word in words if "=" not in word]:
        raise SystemExit(f"--networks {wrong[0]}: needs NAME=MODEL, e.g. ordinary=swin_mini.cifar10")
    found = {name: evaluation.load_eval_model(model) for name, model in (word.split("=", 1) for word in words)}
    if len(sizes := {network.preparation.size for network in found.values()}) > 1:
        raise SystemExit(f"--networks for images of {sorted(sizes)}: needs networks of one size")
    return found


def rates_of(measured: dict[str, Any]) -> dict[str, float]:
    """Of each protocol the flicker, if it has one, or else the consistency."""
    return {name: (each.get("flicker") or each["consistency"])["rate"] for name, each in measured.items()}


def rows(where: str) -> list[record.Recorded]:
    """Rates in percent of all families measured: each network as it is, the first and the last in wrappers."""
    found = []
    for run in record.load_all(f"motion_{where}_*"):
        result, about = run["result"], {"on": record.measured_on(run), "images": run["result"]["images"]}
        methods = result["methods"]
        plain = [method for method in methods if not method.endswith(tuple(filter(None, WRAPPERS)))]
        wrapped = [f"{name}, {wrapper}" for wrapper in WRAPPERS for name in (plain[0], plain[-1])]
        for method in dict.fromkeys([*plain, *filter(methods.get, wrapped)]):
            measured, passes = methods[method]["measured"], methods[method]["passes"]
            rates = {name: 100 * rate for name, rate in rates_of(measured).items()}
            top1 = measured.get("crop-1", {}).get("top1")
            shown = {"top1": f"{100 * top1['rate']:.1f}" if top1 else "-", "rates": rates, "missing": "-"}
            found.append({"network": f"{result['title']}, {method}", "passes": passes, **shown, **about})
    return found


def main() -> None:
    given = record.options(__doc__, "motion").parse_args()
    source = open_source(given.data or given.photos)
    if isinstance(source, ImageFolder) and source.classes:  # sorted by class
        source = evenly_spread(source, given.limit)
    shipped = [f"ordinary={given.family}_mini.cifar10", f"adaptive=a_{given.family}_mini.cifar10"]
    found = load_networks(given.networks or shipped)
    first = next(iter(found))
    size = found[first].preparation.size
    path = "path-8" if given.data and min(size) < 64 else "path-32"
    protocols = [*CROPS, path, *(PIXELS if given.data else ())]
    larger, kept = (1.25, 1.0) if given.data else (given.view, given.view / (given.view + 1))
    views = {"size": tuple(int(larger * side) for side in size), "crop_pct": kept}
    options = EvalOptions(limit=min(given.limit, len(source)), device=given.device, workers=0)  # images are small

    def measure(model: nn.Module, network: EvalModel, view: Preparation, protocols: list[str]) -> dict[str, Any]:
        subject = replace(beside(network, model, options), preparation=view)
        return evaluation.run_evaluation(subject, source, evaluation.find_protocols(protocols), options)["measured"]

    if given.crops:
        network, top1 = found[first], {}
        for count in (0, *given.crops):
            wrapped = trueshift.steady(network.module, size, count) if count else WRAPPERS[""][1](network.module, size)
            measured = measure(wrapped, network, replace(network.preparation, **views), ["circular"])
            top1[str(count or "centre")] = measured["circular"]["top1"]["rate"]
        record.write(f"steady_crops_{given.family}", {"images": options.limit, "top1": top1}, 0)
        return
    methods: dict[str, Any] = {}
    for wrapper, (passes, wrap) in WRAPPERS.items():
        for name, network in found.items():
            if "grids" in wrapper and adaptive_tokenizer(network.module) is None:
                continue  # others have one frame and no further grids
            if wrapper == "video" and name != first:
                continue
            model, view = wrap(network.module, size).eval(), replace(network.preparation, **views)
            if wrapper == "video":
                measured = frame_by_frame(model, source, view, path, options)
            else:
                measured = measure(model, network, view, protocols)
            if given.data and isinstance(model, nn.Sequential):  # around a circle: images of the network's own size
                measured |= measure(model, network, network.preparation, ["circular"])
            method = ", ".join(filter(None, (name, wrapper)))
            methods[method] = {"passes": passes, "measured": measured}
            print(method, rates_of(measured), flush=True)
    where, title = Path(given.data).stem or "photos", given.title or store.title_of(given.family, False)
    file = re.sub(r"\W+", "_", given.title.lower()) or given.family
    result = {"title": title, "images": options.limit, "data": source.title, "methods": methods}
    record.write(f"motion_{where}_{file}", result, 0)


if __name__ == "__main__":
    main()
