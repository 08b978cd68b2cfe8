"""Does training on real data keep the speed of the bare network, and does it learn? What does a CUDA graph save?

Training is `trueshift train` by the recipe for circular shifts: its own images per second, with resizing, cropping,
flipping, clipping and logging; the first steps, which compile, are left out. Bare is the same compiled network and
optimizer in the same process, on one random batch that lies on the device: forward, backward, update. `--graph` is
training by the networks' recipes (small adaptive ones with random grids), without and with `--cuda_graph true`.
Further options are for all trainings, as `trueshift train` takes them.
"""

import argparse
import tempfile
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.common import record, timing
from benchmarks.speed.rows import seconds_per_step
from trueshift.eval.options import inference_device
from trueshift.train import parse_arguments
from trueshift.train.data.loader import Batch
from trueshift.train.preemption import StopRequest
from trueshift.train.trainer import Trainer

STEPS_PER_ROUND = 20
WARM_UP = 50  # steps before those that are counted with and without a graph


def trained(recipe: str, given: argparse.Namespace, **options: object) -> tuple[Trainer, dict, list[dict]]:
    """A finished run, its summary and its log."""
    options |= {"config": recipe, "data.path": given.data, "seed": given.seed, "log.tensorboard": "false"}
    with tempfile.TemporaryDirectory() as folder, StopRequest() as stop:
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        config = parse_arguments([*words, *given.more, "--output", folder]).config
        trainer = Trainer(config, torch.device(inference_device("auto")), Console(), stop)
        if trainer.run():
            raise SystemExit("training did not end well")
        return trainer, *record.training_run(Path(folder))


def beside_the_bare_network(name: str, batch: int, given: argparse.Namespace) -> None:
    options = {"precision": "bf16", "log.every_steps": STEPS_PER_ROUND, "max_steps": given.max_steps}
    options |= {"schedule.epochs": 3, "schedule.warmup_epochs": 0.5, "schedule.cooldown_epochs": 0}
    options |= {} if given.evaluate else {"evaluate.protocols": "[]", "evaluate.limit": 512}
    trainer, summary, log = trained(f"cifar10/{name}_circular", given, batch_size=batch, **options)
    bare = [round(speed, 1) for speed in bare_rounds(trainer, given.rounds)]
    row = {"model": name, "bare": bare, "bare_median": median(bare)}
    row |= {"seconds": summary["seconds"], "evaluation": summary.get("evaluation"), "log": log}
    kept = batch / seconds_per_step(log) / median(bare)
    print(f"{name}: bare {median(bare):.0f} images/s, training keeps {100 * kept:.0f} %", flush=True)
    settings = {"batch": batch, "epochs": trainer.config.schedule.epochs, "precision": trainer.config.precision}
    record.write(f"training_speed_{name}", {**settings, "rows": [row]}, given.seed)
    torch.compiler.reset()


def bare_rounds(trainer: Trainer, rounds: int) -> list[float]:
    """Images per second of each round."""
    size = trainer.config.batch_size
    images = torch.randn(size, 3, *trainer.task.preparation.size, device=trainer.device)
    labels = torch.randint(len(trainer.data.classes), (size,), device=trainer.device)
    batch = Batch(images, labels, np.arange(size))
    trainer.model.train()

    def step() -> None:
        trainer.accelerator.backward(trainer.task.loss(trainer.model, trainer.task.mixed(batch)))
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    for _ in range(5):
        step()
    cuda = trainer.device.type == "cuda"
    return [size / timing.seconds(step, STEPS_PER_ROUND, cuda) for _ in range(rounds)]


def graphed(given: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    steps = given.max_steps or 100
    limits = {"max_steps": WARM_UP + steps, "log.every_steps": WARM_UP}
    limits |= {"evaluate.protocols": "[]", "evaluate.limit": 100, "evaluate.every_epochs": 1000}
    for model, batch, graph in product(given.models, given.batch or [96, 512], (False, True)):
        small = f"cifar10_small/{model}{'_random_grids' * model.startswith('a_')}"
        recipe = small if model.endswith("_mini") else f"cifar10/{model}_circular"
        trainer, _, log = trained(recipe, given, batch_size=batch, cuda_graph=graph, compile=False, **limits)
        seconds = sum(entry["seconds"] for entry in log if entry["kind"] == "train" and entry["step"] > WARM_UP)
        row = {"model": model, "batch": batch, "compiled": trainer.config.compile, "graph": graph}
        rows.append({**row, "milliseconds": round(1e3 * seconds / steps, 3)})
        print(rows[-1], flush=True)
        record.write(given.name, {"rows": rows}, given.seed)
        torch.compiler.reset()


def main() -> None:
    given, more = record.options(__doc__, "training_speed").parse_known_args()
    given.more = more
    if given.graph:
        graphed(given)
    else:
        for name, batch in product(given.models, given.batch or [256]):
            beside_the_bare_network(name, batch, given)


if __name__ == "__main__":
    main()
