"""What do our models cost beside timm's (CvT: transformers'), in time and in memory?

    python -m benchmarks.speed.model_speed --models swin --batch 128 --work inference training
    python -m benchmarks.speed.model_speed --mode graph --batch 1                              # latency

The reference and the adaptive network side by side in one process, round by round. Inputs are noise. A training step is
forward, cross entropy, backward and SGD. `bf16` is autocast. `graph` replays one CUDA graph of the eager network. What
fails is recorded with its error, and the rest goes on; every result is saved as soon as it is there.

`decoder` is UperNet on features that were computed before: all that comes after the backbone. The reference is ours on
an ordinary backbone. A training step ends at the features; memory counts the weights that it updates.
"""

import argparse
import gc
import itertools
import time
from collections.abc import Iterable
from functools import cache
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trueshift as ts
from benchmarks.common import record, timing
from benchmarks.common.contestants import ADAPTIVE, FAMILIES, KEPT, REFERENCE, contestant
from benchmarks.common.timing import Setting
from trueshift.ops.geometry.grid import Tokens
from trueshift.train.compile_check import SAFE

CLASSES = {"network": 1000, "decoder": 150}


def settings(given: argparse.Namespace) -> list[Setting]:
    """Everything asked for, in the order in which it is measured."""
    found = []
    asked = (given.mode, given.work, given.batch, given.precision, given.size or [None], given.models)
    for mode, work, batch, precision, size, family in itertools.product(*asked):
        own = (FAMILIES | KEPT)[family].size * (2 if given.part == "decoder" else 1)
        count = max(1, batch * own**2 // (size or own) ** 2) if given.same_area else batch
        found.append(Setting(given.device, count, size or own, precision, mode, family, work, given.part))
    return found


@cache
def made(family: str, label: str, size: int, device: str) -> nn.Module:
    """A network, made once for all its settings: making one takes longer than measuring it."""
    torch.manual_seed(timing.SEED)
    return contestant(family, label, size).to(device)


def decoder_alone(label: str, setting: Setting, images: Tensor) -> nn.Module:
    """UperNet on a backbone that gives its features of these images, whatever it is asked."""
    torch.manual_seed(timing.SEED)
    name = "a_" * (label == ADAPTIVE) + FAMILIES[setting.family].name
    net = ts.UperNet(name, CLASSES["decoder"], img_size=setting.size, padding=None).to(setting.device)
    with torch.no_grad(), timing.autocast(setting):
        features = net.encoder.eval().features(images)

    def before(x: Tensor) -> tuple[Tokens, ...]:
        return tuple(Tokens(tokens.values.detach().requires_grad_(net.training), tokens.grid) for tokens in features)

    net.encoder.features = before
    return net


def prepare(label: str, setting: Setting) -> tuple[timing.Run, dict[str, Any]]:
    """A warm network, for forward passes or training steps, and what is known of it already."""
    begin, cuda, decoder = time.perf_counter(), setting.device == "cuda", setting.part == "decoder"
    # a failed capture may leave the device's own generator unusable
    generator = torch.Generator(setting.device).manual_seed(timing.SEED)
    shape = (setting.batch, 3, setting.size, setting.size)
    images = torch.randn(shape, device=setting.device, generator=generator)
    targets = (setting.batch, *shape[2:]) if decoder else shape[:1]
    labels = torch.randint(CLASSES[setting.part], targets, device=setting.device, generator=generator)
    if decoder:
        model = decoder_alone(label, setting, images)
        weights = [weight for name, weight in model.named_parameters() if not name.startswith("encoder.")]
        held: list[Tensor] = [*weights]
    else:
        model = made(setting.family, label, setting.size, setting.device)
        weights = list(model.parameters())
        held = [*weights, *model.buffers(), images]
    training, optimizer = setting.work == "training", torch.optim.SGD(weights, lr=1e-4)
    net = model.train(training)
    if setting.mode == "compiled":
        net = torch.compile(model, dynamic=False, options=dict(SAFE) if training else None)

    def run() -> None:
        with torch.set_grad_enabled(training), timing.autocast(setting):
            if not training:
                net(images)
                return
            loss = net(images, labels) if decoder else F.cross_entropy(net(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3 if cuda else 1):
        run()
    known = peak_memory(run, held) if cuda and setting.mode != "graph" else {}
    warm = timing.graphed(run) if setting.mode == "graph" else run
    if cuda:
        torch.cuda.synchronize()
    return warm, {"name": label, **known, "warm_up_s": time.perf_counter() - begin}


def peak_memory(run: timing.Run, held: Iterable[Tensor]) -> dict[str, float]:
    """Peak memory as if nothing else were in the process: what a warm run adds, and the weights and inputs held."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    after = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    there = sum(tensor.nbytes for tensor in held)
    allocated, reserved = ((there + most - least) / 2**20 for most, least in zip(after, before, strict=True))
    return {"allocated_mib": allocated, "reserved_mib": reserved}


def measure(setting: Setting, rounds: int) -> dict[str, Any]:
    timing.set_precision(setting.precision)
    torch.compiler.reset()
    runs, rows, times = {}, {}, {}
    for label in (REFERENCE, ADAPTIVE):
        try:
            runs[label], rows[label] = prepare(label, setting)
        except Exception as problem:
            rows[label] = {"name": label, "error": timing.in_words(problem)}
    try:
        times = timing.interleaved(runs, rounds, setting.device == "cuda") if rounds else {}
    except Exception as problem:
        rows |= {label: {"name": label, "error": timing.in_words(problem)} for label in runs}
    for label, taken in times.items():
        middle = median(taken)
        rows[label] |= {"images_per_second": setting.batch / middle, "milliseconds": 1e3 * middle, "seconds": taken}
        if REFERENCE in times:  # above 1: faster than the reference
            rows[label]["ratio"], rows[label]["quartiles"] = timing.ratio(times[REFERENCE], taken)
    runs.clear()
    gc.collect()  # a captured graph holds its memory until it goes
    return {"model": (FAMILIES | KEPT)[setting.family].name, **setting._asdict(), "rows": list(rows.values())}


def main() -> None:
    began = time.monotonic()
    given = timing.arguments(__doc__, "model_speed", models=FAMILIES | KEPT)
    name = given.name or f"{'segmentation' if given.part == 'decoder' else 'model'}_speed_{given.device}"
    found: list[dict[str, Any]] = []
    for setting in settings(given):
        print(*setting, flush=True)
        if time.monotonic() - began > given.deadline:
            print("  out of time, not measured")
            continue
        found.append(measure(setting, given.rounds))
        for row in found[-1]["rows"]:
            print(" ", {key: value for key, value in row.items() if key != "seconds"}, flush=True)
        record.write(name, {"results": found}, timing.SEED)


if __name__ == "__main__":
    main()
