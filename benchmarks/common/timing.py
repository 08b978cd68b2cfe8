"""Fair clocks: what is compared runs interleaved in one process, and what counts is the ratio within each round."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import record
from trueshift.utils.checks import first_line

Run = Callable[[], Any]


def arguments(about: str | None, modes: tuple[str, ...], **more: Any) -> argparse.Namespace:
    """The options of a program that measures speed: those of all of them, and its own."""
    parser = record.options(
        about,
        batch={"default": [], "type": int, "help": "128 on CUDA, 8 on a CPU"},
        precision={"choices": ("bf16", "tf32", "float32"), "default": [], "help": "bf16; on a CPU float32"},
        mode={"choices": modes, "default": ["eager"]},
        device={"choices": ("cuda", "cpu"), "default": "cuda" if torch.cuda.is_available() else "cpu"},
        rounds=7,
        name={"help": "results/NAME.json"},
        **more,
    )
    given = parser.parse_args()
    given.batch = given.batch or [128 if given.device == "cuda" else 8]
    given.precision = given.precision or ["bf16" if given.device == "cuda" else "float32"]
    if "graph" in given.mode and (given.device == "cpu" or "training" in getattr(given, "work", ())):
        parser.error("graphs are of inference on CUDA")
    return given


def seconds(run: Run, repeats: int, cuda: bool) -> float:
    """Of one run, from several in a row; on CUDA between two events, so that it is the device's time."""
    if not cuda:
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - begin) / repeats
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(repeats):
        run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000 / repeats


def inference(forward: Run, device: str, bf16: bool = True) -> Run:
    """A forward pass; bf16 is autocast."""

    def run() -> None:
        with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=bf16):
            forward()

    return run


def training(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, device: str, bf16: bool = True) -> Run:
    """A training step: the loss, its gradient and an update."""

    def run() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def interleaved(runs: dict[Any, Run], rounds: int, cuda: bool, round_s: float = 0.15) -> dict[Any, list[float]]:
    """Seconds of each warm run in every round, in which it runs for about ``round_s``; odd rounds go backwards."""
    if cuda:
        for run in runs.values():  # whoever was prepared first has lost its memory to the measurement of the others'
            run()
    repeats = {name: max(1, round(round_s / seconds(run, 2 if cuda else 1, cuda))) for name, run in runs.items()}
    times: dict[Any, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in list(runs)[:: 1 if number % 2 == 0 else -1]:
            times[name].append(seconds(runs[name], repeats[name], cuda))
    return times


def spread(values: Iterable[float]) -> tuple[float, list[float]]:
    """Median, and the quartiles around it."""
    listed = sorted(values)
    if len(listed) == 1:
        return listed[0], [listed[0], listed[0]]
    low, middle, high = statistics.quantiles(listed, n=4, method="inclusive")
    return middle, [low, high]


def ratio(above: list[float], below: list[float]) -> tuple[float, list[float]]:
    """Median and quartiles of the rounds' ratios."""
    return spread(a / b for a, b in zip(above, below, strict=True))


def difference(left: list[float], right: list[float]) -> float:
    """Median of the rounds' differences."""
    return statistics.median(a - b for a, b in zip(left, right, strict=True))


def peak_memory(run: Run, held: Iterable[Tensor]) -> dict[str, float]:
    """Peak memory as if nothing else were in the process: what a warm run adds, and the weights and inputs held."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    there = sum(tensor.nbytes for tensor in held) / 2**20
    return {
        "allocated_mib": there + (torch.cuda.max_memory_allocated() - allocated) / 2**20,
        "reserved_mib": there + (torch.cuda.max_memory_reserved() - reserved) / 2**20,
    }


def graphed(run: Run) -> Run:
    """The same work as one CUDA graph, which costs the host nothing to start. Its inputs stay where they are."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # kernels are loaded and workspaces made before the capture, which forbids both
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def set_precision(precision: str) -> None:
    """How products of float32 are computed, wherever there are any."""
    tf32 = precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def in_words(problem: BaseException) -> str:
    """An error in one line."""
    return f"{type(problem).__name__}: {first_line(problem)}"
