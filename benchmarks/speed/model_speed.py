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
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import record
from benchmarks.common.contestants import FAMILIES, LABELS, REFERENCE, contestant, labels_for
from benchmarks.common.package import SAFE
from benchmarks.common.timing import (
    device_is_lost,
    graphed,
    in_words,
    interleaved,
    peak_memory,
    ratio,
    set_precision,
    settle,
    spread,
)

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

    @property
    def compiled(self) -> bool:
        return self.mode.startswith("compiled")

    def __str__(self) -> str:
        name = FAMILIES[self.family].name
        return f"{name}, {self.size} pixels, {self.work}, {self.precision}, {self.mode}, batch {self.batch}"


def settings(given: argparse.Namespace) -> list[Setting]:
    """Everything asked for, in the order in which it is measured."""
    found = []
    for mode, work, batch, precision, place, family in itertools.product(
        given.mode, given.work, given.batch, given.precision, range(len(given.size or [0])), given.models
    ):
        own = FAMILIES[family].size
        size = given.size[place] if given.size else own
        count = max(1, batch * own**2 // size**2) if given.same_area else batch
        found.append(Setting(family, size, count, work, precision, mode, given.device))
    return found


@cache
def made(family: str, label: str, size: int, device: str) -> nn.Module:
    """A network, made once for all its settings: making one takes longer than measuring it."""
    torch.manual_seed(SEED)
    return contestant(family, label, size).to(device)


def network(label: str, setting: Setting) -> nn.Module:
    model = made(setting.family, label, setting.size, setting.device)
    if setting.precision == "bf16_weights":
        model = deepcopy(model).bfloat16()
    return model.train(setting.work == "training")


def inputs(setting: Setting) -> tuple[Tensor, Tensor]:
    """Images and labels, from a generator of their own: a failed capture may leave the device's unusable."""
    generator = torch.Generator(setting.device).manual_seed(SEED)
    shape = (setting.batch, 3, setting.size, setting.size)
    images = torch.randn(shape, device=setting.device, generator=generator)
    labels = torch.randint(1000, (setting.batch,), device=setting.device, generator=generator)
    return (images.bfloat16() if setting.precision == "bf16_weights" else images), labels


def one_pass(model: nn.Module, images: Tensor, labels: Tensor, setting: Setting) -> Callable[[], None]:
    """A forward pass, or a step of training."""
    autocast = {"device_type": setting.device, "dtype": torch.bfloat16, "enabled": setting.precision == "bf16"}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    options = dict(SAFE) if setting.work == "training" else None  # as it is trained: see there
    run = torch.compile(model, dynamic=False, options=options) if setting.compiled else model

    def infer() -> None:
        with torch.no_grad(), torch.autocast(**autocast):
            run(images)

    def train() -> None:
        with torch.autocast(**autocast):
            loss = F.cross_entropy(run(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return train if setting.work == "training" else infer


def prepare(label: str, setting: Setting, images: Tensor, labels: Tensor) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A warm contestant, and what is known of it already."""
    begin = time.perf_counter()
    model = network(label, setting)
    run = one_pass(model, images, labels, setting)
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


def measure(setting: Setting, labels: list[str], rounds: int, failed: dict[tuple[str, str], str]) -> dict[str, Any]:
    """One row for each contestant."""
    set_precision(setting.precision)
    torch.compiler.reset()
    images, classes = inputs(setting)
    runs, rows = {}, {}
    for label in labels:
        known_error = failed.get((str(_compile_job(setting)), label)) if setting.compiled else None
        if known_error:
            rows[label] = {"name": label, "error": known_error}
            continue
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
    return {**_said(setting), "rows": [rows[label] for label in labels]}


def _said(setting: Setting) -> dict[str, Any]:
    return {"model": FAMILIES[setting.family].name, **setting._asdict()}


def _compile_job(setting: Setting) -> Setting:
    """What has to be compiled for a setting."""
    return setting._replace(mode="compiled")


def compile_first(todo: list[Setting], labels: list[str], given: argparse.Namespace) -> dict[tuple[str, str], str]:
    """Compile every contestant in a process of its own, several at a time, so that the cache on disk knows it.

    Returns:
        the errors of those that cannot be compiled, by setting and label.
    """
    jobs = list(
        dict.fromkeys((_compile_job(setting), label) for setting in todo if setting.compiled for label in labels)
    )
    threads = str(max(1, (os.cpu_count() or 1) // given.warm_compile))
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads}

    def compile_one(job: tuple[Setting, str]) -> tuple[tuple[str, str], str]:
        setting, label = job
        words = ["--compile-only", "--models", setting.family, "--size", str(setting.size), "--batch"]
        words += [str(setting.batch), "--work", setting.work, "--precision", setting.precision]
        words += ["--mode", "compiled", "--device", setting.device]
        criterion = label.partition("(")[2].rstrip(")")
        words += ["--contestants", *(["--criterion", criterion] if criterion else [label])]
        with tempfile.TemporaryFile("w+") as output:
            command = [sys.executable, "-m", "benchmarks.speed.model_speed", *words]
            begin = time.monotonic()
            try:
                done = subprocess.run(
                    command, stdout=output, stderr=output, env=environment, timeout=time_left(given), cwd=record.ROOT
                )
                output.seek(0)
                error = (output.read().strip().splitlines() or ["no output"])[-1] if done.returncode else ""
            except subprocess.TimeoutExpired:
                error = "not compiled in time"
        print(f"  {time.monotonic() - begin:5.1f} s to compile {label}: {setting} {error}", flush=True)
        return (str(setting), label), "" if "out of memory" in error else error  # alone it may find enough

    with ThreadPoolExecutor(given.warm_compile) as pool:
        outcomes = dict(pool.map(compile_one, jobs))
    _forget_tuning()
    return {job: error for job, error in outcomes.items() if error}


def keep_compiled() -> None:
    """What one process has compiled, another takes from the disk, traced graphs included.

    By itself torch keeps no traced graph with autograd functions of its own, or one that switches autocast as ours do.
    """
    inductor.fx_graph_cache = functorch.enable_autograd_cache = True
    if hasattr(functorch, "autograd_cache_allow_custom_autograd_functions"):  # neither is in every version of torch
        functorch.autograd_cache_allow_custom_autograd_functions = True
    if hasattr(inductor, "unsafe_marked_cacheable_functions"):  # safe: what they switch is in the graph
        switches = (f"torch.amp.autocast_mode._{verb}_autocast" for verb in ("enter", "exit"))
        inductor.unsafe_marked_cacheable_functions = dict.fromkeys(switches, "1")


def _forget_tuning() -> None:
    """Kernels were tuned while others used the device; the measuring process tunes them again, alone."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    for path in Path(cache_dir()).rglob("*.best_config"):
        path.unlink(missing_ok=True)


def compile_only(todo: list[Setting], labels: list[str]) -> None:
    """One pass of each, for the sake of the cache."""
    for setting, label in itertools.product(todo, labels):
        set_precision(setting.precision)
        try:
            one_pass(network(label, setting), *inputs(setting), setting)()
            settle(setting.cuda)
        except Exception as problem:
            sys.exit(in_words(problem))


def time_left(given: argparse.Namespace) -> float | None:
    """For compiling: no more than half of all the time."""
    return None if given.deadline is None else max(1.0, given.began + given.deadline / 2 - time.monotonic())


def report(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        if "error" in row:
            print(f"  {row['name']:<15} {row['error']}", flush=True)
            continue
        speed = f"{row['images_per_second']:8.0f} img/s {row['milliseconds']:9.3f} ms" if "seconds" in row else ""
        if "ratio" in row:
            low, high = row["quartiles"]
            speed += f"  {row['ratio']:.3f} ({low:.3f} to {high:.3f})"
        memory = (
            f"  {row['allocated_mib']:8.1f} MiB, reserved {row['reserved_mib']:.0f}" if "allocated_mib" in row else ""
        )
        print(f"  {row['name']:<15} {speed}{memory}  warm-up {row['warm_up_s']:.1f} s", flush=True)


def parse() -> argparse.Namespace:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--contestants", nargs="*", choices=LABELS, default=list(LABELS))
    parser.add_argument("--criterion", nargs="+", default=[], help="more adaptive contestants, by their criterion")
    parser.add_argument("--batch", nargs="+", type=int, default=None, help="128 on CUDA, 8 on a CPU")
    parser.add_argument("--size", nargs="+", type=int, default=None, help="height and width; the model's own")
    parser.add_argument("--same-area", action="store_true", help="fewer images where they are larger")
    parser.add_argument("--work", nargs="+", choices=("inference", "training"), default=["inference"])
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=None, help="bf16; on a CPU float32")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=["eager"])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if cuda else "cpu")
    parser.add_argument("--rounds", type=int, default=7, help="0: memory alone")
    parser.add_argument("--warm-compile", type=int, default=0, metavar="N", help="compile first, in N processes")
    parser.add_argument("--warm-only", action="store_true", help="compile, measure nothing: another command will")
    parser.add_argument("--deadline", type=float, default=None, help="seconds after which nothing new is begun")
    parser.add_argument("--name", default=None, help="results/NAME.json")
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.began = time.monotonic()
    given.batch = given.batch or [128 if given.device == "cuda" else 8]
    given.precision = given.precision or ["bf16" if given.device == "cuda" else "float32"]
    if any(mode.endswith("graph") for mode in given.mode) and (given.device == "cpu" or "training" in given.work):
        parser.error("graphs are of inference on CUDA")
    return given


def main() -> None:
    given = parse()
    keep_compiled()
    todo, labels = settings(given), [*given.contestants, *labels_for(given.criterion)]
    if given.compile_only:
        compile_only(todo, labels)
        return
    failed = compile_first(todo, labels, given) if given.warm_compile else {}
    if given.warm_only:
        return
    name = given.name or f"model_speed_{given.device}"
    found: list[dict[str, Any]] = []
    left_out: list[str] = []
    for setting in todo:
        if given.deadline is not None and time.monotonic() - given.began > given.deadline:
            left_out.append(str(setting))
            continue
        print(setting, flush=True)
        found.append(measure(setting, labels, given.rounds, failed))
        report(found[-1])
        record.write(name, {"results": found}, SEED)
        if device_is_lost(setting.cuda):
            sys.exit("the device is lost to this process")
    if left_out:
        print("out of time, not measured:", *left_out, sep="\n  ")
        record.write(name, {"results": found, "left_out": left_out}, SEED)


if __name__ == "__main__":
    main()
