"""Fair clocks: what is compared runs interleaved in one process, and what counts is the ratio within each round."""

import argparse
import timeit
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.common import record
from trueshift.utils.checks import first_line

SEED = 0
Run = Callable[[], Any]


class Setting(NamedTuple):
    """All that those which are compared have in common."""

    device: str
    batch: int
    size: int
    precision: str
    mode: str
    family: str = ""
    work: str = "inference"
    part: str = "network"


def arguments(about: str | None, section: str, **choices: Iterable[str]) -> argparse.Namespace:
    """The options of a program that measures speed: those of all of them, and its own."""
    parser = record.options(about, "speed", section, **choices)
    parser.set_defaults(device="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    given.batch = given.batch or [128 if given.device == "cuda" else 8]
    given.precision = given.precision or ["bf16" if given.device == "cuda" else "float32"]
    if "graph" in given.mode and (given.device == "cpu" or "training" in getattr(given, "work", ())):
        parser.error("graphs are of inference on CUDA")
    return given


def seconds(run: Run, repeats: int, cuda: bool) -> float:
    """Of one run, from several in a row; on CUDA between two events, so that it is the device's time."""
    if not cuda:
        return timeit.timeit(run, number=repeats) / repeats
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(repeats):
        run()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000 / repeats


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


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, list[float]]:
    """Median and quartiles of the rounds' ratios."""
    low, middle, high = np.quantile(np.divide(above, below), (0.25, 0.5, 0.75)).tolist()
    return middle, [low, high]


def set_precision(precision: str) -> None:
    """How products of float32 are computed, wherever there are any."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"


def autocast(setting: Setting) -> torch.autocast:
    """As the device and precision of a setting want it."""
    return torch.autocast(setting.device, torch.bfloat16, enabled=setting.precision == "bf16")


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


def in_words(problem: BaseException) -> str:
    """An error in one line."""
    return f"{type(problem).__name__}: {first_line(problem)}"
