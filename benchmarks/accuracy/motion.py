r"""Answers while the camera moves: each wrapper around a network, on the same views, with its cost in passes.

    python -m benchmarks.accuracy.motion --family swin --data CIFAR --limit 1000
    python -m benchmarks.accuracy.motion --family swin --photos FOLDER
    python -m benchmarks.accuracy.motion --family vit --data CIFAR --networks runs/cifar10_small/vit_mini/final \
        runs/cifar10_small/a_vit_mini_random_grids/final

On CIFAR-10 images are enlarged to 40 pixels, a view, of which the networks take 32. Photographs have no labels that the
networks know: their shorter side becomes 80 pixels, views are 48, and paths of 32 pixels move over them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import trueshift
from benchmarks.common import record
from trueshift.data import Preparation
from trueshift.eval import (
    EvalOptions,
    FlickerRate,
    LongestRun,
    find_protocols,
    load_eval_model,
    make_eval_model,
    run_evaluation,
)
from trueshift.eval.metrics.aggregate import rate_of
from trueshift.eval.runner.tasks import open_source
from trueshift.motion import adaptive_tokenizer, crop_at

SIZE = (32, 32)
CROPS = ("crop-1", "crop-2", "crop-4", "crop-8")
ON_CIFAR = (*CROPS, "path-8", "subpixel", "subpixel-bilinear", "jpeg", "noise")
ON_PHOTOS = (*CROPS, "path-32")
METHODS: dict[str, tuple[int, Callable[[Any, Any], nn.Module]]] = {  # passes, and the wrapper of ordinary and adaptive
    "ordinary": (1, lambda ordinary, adaptive: CentreCrop(ordinary)),
    "adaptive": (1, lambda ordinary, adaptive: CentreCrop(adaptive)),
    "adaptive, 4 grids": (4, lambda ordinary, adaptive: CentreCrop(trueshift.mean_over_grids(adaptive, 4))),
    "ordinary, steady": (1, lambda ordinary, adaptive: trueshift.steady(ordinary, SIZE)),
    "adaptive, steady": (1, lambda ordinary, adaptive: trueshift.steady(adaptive, SIZE)),
    "adaptive, 4 grids, steady": (
        4,
        lambda ordinary, adaptive: trueshift.steady(trueshift.mean_over_grids(adaptive, 4), SIZE),
    ),
    "ordinary, video": (1, lambda ordinary, adaptive: trueshift.video(ordinary, SIZE)),
}


class CentreCrop(nn.Module):
    """What is done without a choice."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, view: Tensor) -> Tensor:
        corner = torch.tensor([[(view.shape[2] - SIZE[0]) // 2, (view.shape[3] - SIZE[1]) // 2]])
        return self.model(crop_at(view, corner.expand(len(view), 2), SIZE))


@torch.inference_mode()
def frame_by_frame(model: Any, source: Any, preparation: Preparation, name: str, limit: int) -> dict[str, Any]:
    """The path protocol for a model with a memory: the frames of an image in their order."""
    (protocol,) = find_protocols([name])
    margin, flicker, longest = protocol.motion.margin(preparation.size), FlickerRate(), LongestRun()
    for index in range(limit):
        canvas = preparation.normalise(preparation.canvas(source[index].image, margin))
        shifts = protocol.shifts(index, None, preparation.size, 0)
        model.reset()
        views = protocol.motion.view(canvas, shifts, preparation.size)
        answers = torch.stack([model(view[None])[0].argmax() for view in views])
        for metric in (flicker, longest):
            metric.update(answers[None])
    return {name: {"flicker": rate_of(flicker), "longest_run": rate_of(longest)}}


def main() -> None:
    networks = {"nargs": 2, "default": [], "metavar": "MODEL", "help": "ordinary and adaptive, if not those shipped"}
    given = record.options(__doc__, family="swin", networks=networks, data="", photos="", limit=1000).parse_args()
    source = open_source(given.data or given.photos)
    shipped = [f"{kind}{given.family}_mini.cifar10" for kind in ("", "a_")]
    subjects = [load_eval_model(name) for name in given.networks or shipped]
    pair, usual = [subject.module.eval() for subject in subjects], subjects[0].preparation
    if given.data:
        preparation, protocols = replace(usual, size=(40, 40), crop_pct=1.0), ON_CIFAR
    else:
        preparation, protocols = replace(usual, size=(48, 48), crop_pct=0.6), ON_PHOTOS
    limit, methods = min(given.limit, len(source)), {}
    for name, (passes, wrap) in METHODS.items():
        if passes > 1 and adaptive_tokenizer(pair[1]) is None:  # other networks have one frame and no further grids
            continue
        model = wrap(*pair).eval()
        if isinstance(model, trueshift.motion.Video):
            path = next(each for each in protocols if each.startswith("path"))
            measured = frame_by_frame(model, source, preparation, path, limit)
        else:
            subject = replace(make_eval_model(model, name, "bundled"), preparation=preparation, num_classes=10)
            measured = run_evaluation(subject, source, find_protocols(protocols), EvalOptions(limit=limit))["measured"]
        methods[name] = {"passes": passes, "measured": measured}
        print(name, {key: value.get("flicker") or value["consistency"] for key, value in measured.items()}, flush=True)
    where = "cifar10" if given.data else "photos"
    record.write(f"motion_{where}_{given.family}", {"images": limit, "data": source.title, "methods": methods}, 0)


if __name__ == "__main__":
    main()
