"""What does a training step as one CUDA graph save?

    python -m benchmarks.speed.graph_speed --models swin_mini a_swin_mini --batch 96 512

`trueshift train` in bf16 by the recipe of the small networks (adaptive ones with random grids), on random images, with
and without `--cuda_graph true`, eager and compiled; the first steps, which warm up and capture, are left out.
"""

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import record
from benchmarks.speed.training_speed import trained

WARM_UP, IMAGES = 50, 5120


def measure(model: str, batch: int, compiled: bool, graph: bool, given: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, random = Path(name), np.random.default_rng(0)
        arrays = {f"x_{split}": random.integers(0, 256, (IMAGES, 32, 32, 3), np.uint8) for split in ("train", "test")}
        np.savez(folder / "images.npz", **arrays, **{key.replace("x", "y"): np.arange(IMAGES) % 10 for key in arrays})
        words = [
            *("--config", f"cifar10_small/{model}{'_random_grids' * model.startswith('a_')}"),
            *("--data.path", str(folder / "images.npz"), "--batch_size", str(batch)),
            *("--max_steps", str(WARM_UP + given.steps), "--log.every_steps", str(WARM_UP)),
            *("--evaluate.protocols", "[]", "--evaluate.limit", "100", "--evaluate.every_epochs", "1000"),
            *("--compile", str(compiled).lower(), "--cuda_graph", str(graph).lower()),
        ]
        _, _, log = trained(words, folder / "run")
    seconds = sum(entry["seconds"] for entry in log if entry["kind"] == "train" and entry["step"] > WARM_UP)
    torch.compiler.reset()
    settings = {"model": model, "batch": batch, "compiled": compiled, "graph": graph}
    return {**settings, "milliseconds": round(1e3 * seconds / given.steps, 3)}


def main() -> None:
    given = record.options(
        __doc__, models=["swin_mini", "a_swin_mini"], batch=[96, 512], steps=100, compile=False
    ).parse_args()
    rows = []
    for model, batch, graph in itertools.product(given.models, given.batch, (False, True)):
        rows.append(measure(model, batch, given.compile, graph, given))
        print(rows[-1], flush=True)
        record.write("graph_speed", {"rows": rows}, seed=0)


if __name__ == "__main__":
    main()
