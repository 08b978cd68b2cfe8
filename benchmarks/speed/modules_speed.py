"""What does each adaptive module cost beside the ordinary one, and choosing the grid beside one block of Swin?

    python -m benchmarks.speed.modules_speed                # CUDA: batch 128, bf16; CPU: batch 8, float32
    python -m benchmarks.speed.modules_speed --mode graph   # the device's time alone, without that of the host

Every module gets what it gets inside of its network, where photographs at random shifts come in. Ordinary modules are
timm's and transformers' own; where theirs cannot be cut out (pooling of keys and values, relative positions), ours with
fixed grids. All run interleaved, round by round. A delta is the median of the rounds' differences.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import record, timing
from benchmarks.common.contestants import ADAPTIVE, FIXED, REFERENCE, contestant
from trueshift.ops.geometry.polyphase import coset_sum
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_shift
from trueshift.testing import photographs

BLOCK = "one block of Swin-T's stage 1"


class Case(NamedTuple):
    """One module, in up to three versions."""

    name: str
    ordinary: Callable[[], Any] | None = None
    fixed: Callable[[], Any] | None = None
    adaptive: Callable[[], Any] | None = None

    def versions(self) -> dict[str, Callable[[], Any]]:
        named = dict(zip(self._fields[1:], self[1:], strict=True))
        return {version: run for version, run in named.items() if run is not None}


def photos_at_random_shifts(batch: int, size: int) -> Tensor:
    """Photographs at random shifts, normalised: real content, none of it tied."""
    photos = torch.stack(list(photographs(size).values()))
    photos = (photos - 0.45) / 0.225
    which = torch.arange(batch) % len(photos)
    return circular_shift(photos[which], torch.randint(size, (batch, 2)), IMAGE_DIMS)


def calls(model: nn.Module, owners: list[Any], images: Tensor, method: str = "forward") -> list[Callable[[], Any]]:
    """A method of each of these modules, on what it was last given within the model."""
    seen: dict[Any, tuple[Any, ...]] = {}

    def spy(owner: Any) -> Callable[..., Any]:
        def remember(*arguments: Any) -> Any:
            seen[owner] = arguments
            return getattr(type(owner), method)(owner, *arguments)

        return remember

    for owner in owners:
        setattr(owner, method, spy(owner))
    try:
        model(images)
    finally:
        for owner in owners:
            delattr(owner, method)
    # one that is not called any more is an error: it has moved
    return [lambda owner=owner, given=seen[owner]: getattr(owner, method)(*given) for owner in owners]


def swin_cases(images: Tensor, make: Callable[[str, str], Any]) -> Iterator[Case]:
    timm, fixed, adaptive = (make("swin", label) for label in (REFERENCE, FIXED, ADAPTIVE))
    models = (timm, fixed, adaptive)
    embed = adaptive.patch_embed
    wide = F.pad(images, (0, 3, 0, 3), mode="circular")

    def every_phase() -> Tensor:
        energy = F.conv2d(wide, embed.proj.weight, embed.proj.bias).square().sum(1)
        return coset_sum(energy.double(), 4)

    yield Case("Swin-T", *(lambda model=model: model(images) for model in models))
    yield Case(BLOCK, calls(timm, [timm.layers[0].blocks[0]], images)[0])
    yield Case("tokenization", *(lambda model=model: model.patch_embed(images) for model in models))
    yield Case(
        "selection, anchor and roll",
        adaptive=lambda: circular_shift(images, embed.choose(images).offset, IMAGE_DIMS),
    )
    yield Case("scores of all phases by one stride-1 convolution", adaptive=every_phase)
    merges = (calls(model, [stage.downsample for stage in model.layers[1:]], images) for model in models)
    for number, versions in enumerate(zip(*merges, strict=True), 2):
        yield Case(f"patch merging, stage {number}", *versions)
    downsamples = [stage.downsample for stage in adaptive.layers]  # of the first stage, one that does nothing
    tokens = [run() for run in calls(adaptive, downsamples, images)]
    for number, (stage, x) in enumerate(zip(adaptive.layers, tokens, strict=True), 1):
        yield Case(f"window selection, stage {number}", adaptive=lambda align=stage.align, x=x: align.choose(x))


def cvt_cases(images: Tensor, make: Callable[[str, str], Any]) -> Iterator[Case]:
    theirs, fixed, adaptive = (make("cvt", label) for label in (REFERENCE, FIXED, ADAPTIVE))
    merges = (
        calls(theirs, [stage.embedding for stage in theirs.model.cvt.encoder.stages[1:]], images),
        *(calls(model, [stage.downsample for stage in model.stages[1:]], images) for model in (fixed, adaptive)),
    )
    for number, versions in enumerate(zip(*merges, strict=True), 2):
        yield Case(f"CvT: convolutional merging, stage {number}", *versions)
    pools = (calls(model, _attentions(model), images, "_pooled") for model in (fixed, adaptive))
    for number, (plain, chosen) in enumerate(zip(*pools, strict=True), 1):  # queries are pooled first, at stride 1
        yield Case(f"CvT: pooling of keys and values, stage {number}", plain, adaptive=chosen)


def mvit_cases(images: Tensor, make: Callable[[str, str], Any]) -> Iterator[Case]:
    models = [make("mvitv2", label) for label in (FIXED, ADAPTIVE)]
    pairs = (calls(model, _attentions(model), images, "position_bias") for model in models)
    for number, (linear, circular) in enumerate(zip(*pairs, strict=True), 1):
        yield Case(f"MViTv2: relative positions, stage {number}", linear, adaptive=circular)


def _attentions(model: Any) -> list[Any]:
    return [stage.blocks[0].attn for stage in model.stages]


CASES = {"swin": swin_cases, "cvt": cvt_cases, "mvitv2": mvit_cases}


def collect(given: argparse.Namespace) -> tuple[list[Case], list[dict[str, Any]]]:
    """All cases, and the errors of families whose cases could not be made."""
    torch.manual_seed(given.seed)
    images = photos_at_random_shifts(given.batch, given.size).to(given.device)

    def make(family: str, label: str) -> nn.Module:
        return contestant(family, label, given.size).eval().to(given.device)

    cases: list[Case] = []
    errors = []
    for family in given.models:
        try:
            with torch.no_grad(), torch.autocast(given.device, torch.bfloat16, enabled=given.precision == "bf16"):
                cases += CASES[family](images, make)
        except Exception as problem:
            errors.append({"name": family, "error": timing.in_words(problem)})
    return cases, errors


def measure(cases: list[Case], given: argparse.Namespace, mode: str) -> list[dict[str, Any]]:
    runs: dict[Any, timing.Run] = {}
    failed = []
    for case in cases:
        for version, call in case.versions().items():
            try:
                run = timing.inference(call, given.device, given.precision == "bf16")
                for _ in range(3):
                    run()
                runs[case.name, version] = timing.graphed(run) if mode == "graph" else run
            except Exception as problem:
                failed.append({"name": case.name, "version": version, "error": timing.in_words(problem)})
    times = timing.interleaved(runs, given.rounds, given.device == "cuda", 0.03)
    block, rows = times.get((BLOCK, "ordinary")), {case.name: {"name": case.name} for case in cases}
    for (name, version), taken in times.items():
        rows[name] |= {f"{version}_ms": 1e3 * timing.spread(taken)[0], f"{version}_seconds": taken}
        if block:
            rows[name][f"{version}_of_block"] = timing.ratio(taken, block)[0]
    for name, row in rows.items():
        if "adaptive_ms" in row:  # the ordinary network may have no such step
            ordinary = times.get((name, "ordinary"), [0.0] * given.rounds)
            row["delta_ms"] = 1e3 * timing.difference(row["adaptive_seconds"], ordinary)
    return [row for row in rows.values() if len(row) > 1] + failed


def main() -> None:
    parser = record.options(
        __doc__,
        models={"choices": tuple(CASES), "default": list(CASES)},
        batch={"type": int, "help": "128 on CUDA, 8 on a CPU"},
        size=224,
        precision={"choices": ("bf16", "tf32", "float32")},
        mode={"choices": ("eager", "graph"), "default": ["eager"]},
        device={"choices": ("cuda", "cpu"), "default": "cuda" if torch.cuda.is_available() else "cpu"},
        rounds=7,
        seed=0,
        name={"help": "results/NAME.json"},
    )
    given = parser.parse_args()
    given.batch = given.batch or (128 if given.device == "cuda" else 8)
    given.precision = given.precision or ("bf16" if given.device == "cuda" else "float32")
    if "graph" in given.mode and given.device == "cpu":
        parser.error("graphs are captured on CUDA")
    setting = {key: getattr(given, key) for key in ("device", "batch", "size", "precision")}
    timing.set_precision(given.precision)
    cases, errors = collect(given)
    found = []
    for mode in given.mode:
        rows = measure(cases, given, mode) + errors
        for row in rows:
            print(mode, {key: value for key, value in row.items() if "seconds" not in key}, flush=True)
        found.append({**setting, "mode": mode, "rows": rows})
        record.write(given.name or f"modules_speed_{given.device}", {"results": found}, given.seed)


if __name__ == "__main__":
    main()
