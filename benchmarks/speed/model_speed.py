"""What do our models cost beside timm's (CvT: transformers'), in time and in memory?

    python -m benchmarks.speed.model_speed --models swin --batch 128 --work inference training
    python -m benchmarks.speed.model_speed --mode graph --batch 1                              # latency
    python -m benchmarks.speed.model_speed --models swin --size 224 448 672 896 --same-area    # against resolution

Side by side in one process, round by round: the reference, ours with fixed grids, ours adaptive. Inputs are noise.
A training step is forward, cross entropy, backward and SGD. `bf16` is autocast, `bf16_weights` a network and images of
that type. `graph` replays one CUDA graph of the eager network, `compiled_graph` of the compiled one. What fails is
recorded with its error, and the rest goes on; every result is saved as soon as it is there.
"""

import argparse
import gc
import itertools
import sys
import time
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import record, timing
from benchmarks.common.contestants import ADAPTIVE, FAMILIES, LABELS, REFERENCE, contestant
from benchmarks.common.package import SAFE
from benchmarks.common.timing import device_is_lost, graphed, in_words, interleaved, peak_memory, ratio, settle, spread

PRECISIONS = ("bf16", "bf16_weights", "tf32", "float32")
MODES = ("eager", "compiled", "graph", "compiled_graph")
SEED = 0


class Setting(NamedTuple):
    """All that contestants have in common."""

    family: str
    size: int
    batch: int
    work: str
    precision: str
    mode: str
    device: str

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def __str__(self) -> str:
        name = FAMILIES[self.family].name
        return f"{name}, {self.size} pixels, {self.work}, {self.precision}, {self.mode}, batch {self.batch}"


def settings(given: argparse.Namespace) -> list[Setting]:
    """Everything asked for, in the order in which it is measured."""
    found = []
    asked = (given.mode, given.work, given.batch, given.precision, given.size or [None], given.models)
    for mode, work, batch, precision, size, family in itertools.product(*asked):
        own = FAMILIES[family].size
        count = max(1, batch * own**2 // (size or own) ** 2) if given.same_area else batch
        found.append(Setting(family, size or own, count, work, precision, mode, given.device))
    return found


@cache
def made(family: str, label: str, size: int, device: str) -> nn.Module:
    """A network, made once for all its settings: making one takes longer than measuring it."""
    torch.manual_seed(SEED)
    return contestant(family, label, size).to(device)


def inputs(setting: Setting) -> tuple[Tensor, Tensor]:
    """Images and labels, from a generator of their own: a failed capture may leave the device's unusable."""
    generator = torch.Generator(setting.device).manual_seed(SEED)
    shape = (setting.batch, 3, setting.size, setting.size)
    images = torch.randn(shape, device=setting.device, generator=generator)
    labels = torch.randint(1000, (setting.batch,), device=setting.device, generator=generator)
    return (images.bfloat16() if setting.precision == "bf16_weights" else images), labels


def prepare(label: str, setting: Setting, images: Tensor, labels: Tensor) -> tuple[timing.Run, dict[str, Any]]:
    """A warm contestant, for forward passes or training steps, and what is known of it already."""
    begin = time.perf_counter()
    model = made(setting.family, label, setting.size, setting.device)
    if setting.precision == "bf16_weights":
        model = deepcopy(model).bfloat16()
    training, bf16 = setting.work == "training", setting.precision == "bf16"
    net = model.train(training)
    if setting.mode.startswith("compiled"):
        net = torch.compile(model, dynamic=False, options=dict(SAFE) if training else None)  # type: ignore[assignment]
    run = timing.inference(lambda: net(images), setting.device, bf16)
    if training:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        run = timing.training(lambda: F.cross_entropy(net(images).float(), labels), optimizer, setting.device, bf16)
    for _ in range(3 if setting.cuda else 1):
        run()
    known: dict[str, Any] = {"name": label}
    if setting.mode.endswith("graph"):
        run = graphed(run)
    elif setting.cuda:
        known |= peak_memory(run, [*model.parameters(), *model.buffers(), images])
    settle(setting.cuda)
    known["warm_up_s"] = time.perf_counter() - begin
    return run, known


def measure(setting: Setting, labels: list[str], rounds: int) -> dict[str, Any]:
    """One row for each contestant."""
    timing.set_precision(setting.precision)
    torch.compiler.reset()
    images, classes = inputs(setting)
    runs, rows = {}, {}
    for label in labels:
        try:
            runs[label], rows[label] = prepare(label, setting, images, classes)
        except Exception as problem:
            rows[label] = {"name": label, "error": in_words(problem)}
    try:
        times = interleaved(runs, rounds, setting.cuda) if rounds else {}
    except Exception as problem:
        times = {}
        rows |= {label: {"name": label, "error": in_words(problem)} for label in runs}
    for label, taken in times.items():
        middle, _ = spread(taken)
        row = {"images_per_second": setting.batch / middle, "milliseconds": 1e3 * middle, "seconds": taken}
        if REFERENCE in times:  # above 1: faster than the reference
            row["ratio"], row["quartiles"] = ratio(times[REFERENCE], taken)
        rows[label] |= row
    runs.clear()
    gc.collect()  # a captured graph holds its memory until it goes
    return {"model": FAMILIES[setting.family].name, **setting._asdict(), "rows": [rows[label] for label in labels]}


def report(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        words = [row["error"]] if "error" in row else [f"warm-up {row['warm_up_s']:.1f} s"]
        if "seconds" in row:
            words.append(f"{row['images_per_second']:8.0f} img/s {row['milliseconds']:9.3f} ms")
        if "ratio" in row:
            words.append("{:.3f} ({:.3f} to {:.3f})".format(row["ratio"], *row["quartiles"]))
        if "allocated_mib" in row:
            words.append(f"{row['allocated_mib']:8.1f} MiB, reserved {row['reserved_mib']:.0f}")
        print(f"  {row['name']:<15}", *words, sep="  ", flush=True)


def parse() -> argparse.Namespace:
    parser = record.options(
        __doc__,
        models={"choices": tuple(FAMILIES), "default": list(FAMILIES)},
        contestants={"nargs": "*", "choices": LABELS, "default": list(LABELS)},
        criterion={"default": [], "help": "more adaptive contestants, by their criterion"},
        batch={"default": [], "type": int, "help": "128 on CUDA, 8 on a CPU"},
        size={"default": [], "type": int, "help": "height and width; the model's own"},
        same_area={"default": False, "help": "fewer images where they are larger"},
        work={"choices": ("inference", "training"), "default": ["inference"]},
        precision={"choices": PRECISIONS, "default": [], "help": "bf16; on a CPU float32"},
        mode={"choices": MODES, "default": ["eager"]},
        device={"choices": ("cuda", "cpu"), "default": "cuda" if torch.cuda.is_available() else "cpu"},
        rounds={"default": 7, "help": "0: memory alone"},
        deadline={"type": float, "help": "seconds after which nothing new is begun"},
        name={"help": "results/NAME.json"},
    )
    given = parser.parse_args()
    given.began = time.monotonic()
    given.batch = given.batch or [128 if given.device == "cuda" else 8]
    given.precision = given.precision or ["bf16" if given.device == "cuda" else "float32"]
    if any(mode.endswith("graph") for mode in given.mode) and (given.device == "cpu" or "training" in given.work):
        parser.error("graphs are of inference on CUDA")
    return given


def main() -> None:
    given = parse()
    labels = [*given.contestants, *(f"{ADAPTIVE} ({criterion})" for criterion in given.criterion)]
    name = given.name or f"model_speed_{given.device}"
    found: list[dict[str, Any]] = []
    left_out: list[str] = []
    for setting in settings(given):
        if given.deadline is not None and time.monotonic() - given.began > given.deadline:
            left_out.append(str(setting))
            continue
        print(setting, flush=True)
        found.append(measure(setting, labels, given.rounds))
        report(found[-1])
        record.write(name, {"results": found}, SEED)
        if device_is_lost(setting.cuda):
            sys.exit("the device is lost to this process")
    if left_out:
        print("out of time, not measured:", *left_out, sep="\n  ")
        record.write(name, {"results": found, "left_out": left_out}, SEED)


if __name__ == "__main__":
    main()
