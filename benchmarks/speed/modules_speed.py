"""What does each adaptive module cost beside the ordinary one, and choosing the grid beside one block of Swin?

    python -m benchmarks.speed.modules_speed                # CUDA: batch 128, bf16; CPU: batch 8, float32
    python -m benchmarks.speed.modules_speed --mode graph   # the device's time alone, without that of the host

Every module gets what it gets inside of its network, where photographs at random shifts come in. Ordinary modules are
timm's and transformers' own; where theirs cannot be cut out (pooling of keys and values, relative positions), ours with
fixed grids. All run interleaved, round by round. A delta is the median of the rounds' differences.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product
from statistics import median
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import record, timing
from benchmarks.common.contestants import ADAPTIVE, FIXED, REFERENCE, contestant
from benchmarks.common.timing import Setting
from trueshift.layers.pool import pool_sequences
from trueshift.models import cvt
from trueshift.ops.geometry.polyphase import coset_sum
from trueshift.ops.geometry.shift import IMAGE_DIMS, circular_shift
from trueshift.testing import photographs

BLOCK = "one block of Swin-T's stage 1"
Case = tuple[str, dict[str, timing.Run]]  # a module's name, and what runs its versions


def calls(model: nn.Module, owners: list[Any], images: Tensor, method: str = "forward") -> list[timing.Run]:
    """A method of each of these modules, on what it was last given within the model."""
    with ExitStack() as stack:
        patches = [mock.patch.object(owner, method, wraps=getattr(owner, method)) for owner in owners]
        spies = [stack.enter_context(patch) for patch in patches]
        model(images)
    # one that is not called any more is an error: it has moved
    return [partial(getattr(owner, method), *spy.call_args.args) for owner, spy in zip(owners, spies, strict=True)]


def versions(*runs: timing.Run) -> dict[str, timing.Run]:
    """Two are an ordinary and an adaptive one."""
    names = ("ordinary", "fixed", "adaptive") if len(runs) == 3 else ("ordinary", "adaptive")[-len(runs) :]
    return dict(zip(names, runs, strict=True))


def numbered(name: str, runs: list[list[timing.Run]], first: int) -> Iterator[Case]:
    for number, of_stage in enumerate(zip(*runs, strict=True), first):
        yield f"{name}, stage {number}", versions(*of_stage)


def swin_cases(images: Tensor, make: Callable[[str, str], Any]) -> Iterator[Case]:
    models = [make("swin", label) for label in (REFERENCE, FIXED, ADAPTIVE)]
    timm, _, adaptive = models
    embed = adaptive.patch_embed
    wide = F.pad(images, (0, 3, 0, 3), mode="circular")

    def every_phase() -> Tensor:
        energy = F.conv2d(wide, embed.proj.weight, embed.proj.bias).square().sum(1)
        return coset_sum(energy.double(), 4)

    def select() -> Tensor:
        return circular_shift(images, embed.choose(images).offset, IMAGE_DIMS)

    yield "Swin-T", versions(*(partial(model, images) for model in models))
    yield BLOCK, {"ordinary": calls(timm, [timm.layers[0].blocks[0]], images)[0]}
    yield "tokenization", versions(*(partial(model.patch_embed, images) for model in models))
    yield "selection, anchor and roll", versions(select)
    yield "scores of all phases by one stride-1 convolution", versions(every_phase)
    merges = [calls(model, [stage.downsample for stage in model.layers[1:]], images) for model in models]
    yield from numbered("patch merging", merges, 2)
    downsamples = [stage.downsample for stage in adaptive.layers]  # of the first stage, one that does nothing
    tokens = [run() for run in calls(adaptive, downsamples, images)]
    chosen = [partial(stage.align.choose, x) for stage, x in zip(adaptive.layers, tokens, strict=True)]
    yield from numbered("window selection", [chosen], 1)


def cvt_cases(images: Tensor, make: Callable[[str, str], Any]) -> Iterator[Case]:
    theirs, *ours = (make("cvt", label) for label in (REFERENCE, FIXED, ADAPTIVE))
    merges = [calls(theirs, [stage.embedding for stage in theirs.model.cvt.encoder.stages[1:]], images)]
    merges += [calls(model, [stage.downsample for stage in model.stages[1:]], images) for model in ours]
    yield from numbered("CvT: convolutional merging", merges, 2)
    yield from numbered("CvT: pooling of keys and values", [pooling(model, images) for model in ours], 1)


def pooling(model: Any, images: Tensor) -> list[timing.Run]:
    """Of keys and values in the first block of each stage, on what it is given within the model."""
    with mock.patch.object(cvt, "pool_sequences", wraps=pool_sequences) as spy:
        model(images)
    given = {call.args[1][0]: call.args for call in spy.call_args_list}  # by the convolution of the keys
    return [partial(pool_sequences, *given[stage.blocks[0].attn.conv_proj_k.conv]) for stage in model.stages]


def mvit_cases(images: Tensor, make: Callable[[str, str], Any]) -> Iterator[Case]:
    models = [make("mvitv2", label) for label in (FIXED, ADAPTIVE)]
    owners = [[stage.blocks[0].attn for stage in model.stages] for model in models]
    biases = [calls(model, each, images, "position_bias") for model, each in zip(models, owners, strict=True)]
    yield from numbered("MViTv2: relative positions", biases, 1)


CASES = {"swin": swin_cases, "cvt": cvt_cases, "mvitv2": mvit_cases}


def collect(families: list[str], setting: Setting) -> tuple[list[Case], list[dict[str, Any]]]:
    """All cases, and the errors of families whose cases could not be made."""
    torch.manual_seed(timing.SEED)
    photos = (torch.stack(list(photographs(setting.size).values())) - 0.45) / 0.225  # real content, none of it tied
    which, shifts = torch.arange(setting.batch) % len(photos), torch.randint(setting.size, (setting.batch, 2))
    images = circular_shift(photos[which], shifts, IMAGE_DIMS).to(setting.device)

    def make(family: str, label: str) -> nn.Module:
        return contestant(family, label, setting.size).eval().to(setting.device)

    cases, errors = list[Case](), []
    for family in families:
        try:
            with torch.no_grad(), timing.autocast(setting):
                cases += CASES[family](images, make)
        except Exception as problem:
            errors.append({"name": family, "error": timing.in_words(problem)})
    return cases, errors


def measure(cases: list[Case], setting: Setting, rounds: int) -> list[dict[str, Any]]:
    runs: dict[Any, timing.Run] = {}
    failed = []
    for name, found in cases:
        for version, call in found.items():
            try:
                run = torch.no_grad()(timing.autocast(setting)(call))
                for _ in range(3):
                    run()
                runs[name, version] = timing.graphed(run) if setting.mode == "graph" else run
            except Exception as problem:
                failed.append({"name": name, "version": version, "error": timing.in_words(problem)})
    times = timing.interleaved(runs, rounds, setting.device == "cuda", 0.03)
    block = times.get((BLOCK, "ordinary"))
    rows: dict[str, dict[str, Any]] = {}
    for (name, version), taken in times.items():
        row = rows.setdefault(name, {"name": name})
        row |= {f"{version}_ms": 1e3 * median(taken), f"{version}_seconds": taken}
        if block:
            row[f"{version}_of_block"] = timing.ratio(taken, block)[0]
        if version == "adaptive":  # the ordinary network may have no such step
            ordinary = times.get((name, "ordinary"), [0.0] * rounds)
            row["delta_ms"] = 1e3 * median(ours - theirs for ours, theirs in zip(taken, ordinary, strict=True))
    return [*rows.values(), *failed]


def main() -> None:
    given = timing.arguments(__doc__, "modules_speed")
    found = []
    for batch, precision, mode in product(given.batch, given.precision, given.mode):
        setting = Setting(given.device, batch, given.size, precision, mode)
        timing.set_precision(precision)
        cases, errors = collect(given.models, setting)
        found.append({**setting._asdict(), "rows": measure(cases, setting, given.rounds) + errors})
        for row in found[-1]["rows"]:
            print(mode, {key: value for key, value in row.items() if "seconds" not in key}, flush=True)
        record.write(given.name or f"modules_speed_{given.device}", {"results": found}, timing.SEED)


if __name__ == "__main__":
    main()
