"""Does training on real data keep the speed of the bare network, and does it learn?

    python -m benchmarks.speed.training_speed --data data/cifar10 --models swin_tiny a_swin_tiny --batch 256 --epochs 3

Training is `trueshift train` by the recipe for circular shifts: its own images per second, with resizing, cropping,
flipping, clipping and logging; the first steps, which compile, are left out. Bare is the same compiled network and
optimizer in the same process, on one random batch that lies on the device: forward, backward, update.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.common import record, timing
from benchmarks.common.package import Batch, StopRequest, Trainer, inference_device, parse_arguments
from benchmarks.speed.tables import seconds_per_step

STEPS_PER_ROUND = 20


def trained(words: list[str], folder: Path) -> tuple[Trainer, record.Recorded, list[record.Recorded]]:
    """A finished run, its summary and its log."""
    config = parse_arguments([*words, "--output", str(folder)]).config
    with StopRequest() as stop:
        trainer = Trainer(config, torch.device(inference_device("auto")), Console(), stop)
        if trainer.run():
            raise SystemExit("training did not end well")
    return trainer, *record.training_run(folder)


def train_and_measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        words = [
            *("--config", f"cifar10/{name}_circular", "--data.path", given.data, "--batch_size", str(given.batch)),
            *("--precision", given.precision, "--log.every_steps", str(STEPS_PER_ROUND)),
            *("--log.tensorboard", "false", "--schedule.epochs", str(given.epochs), "--schedule.warmup_epochs", "0.5"),
            *("--schedule.cooldown_epochs", "0", "--max_steps", str(given.max_steps), "--seed", str(given.seed)),
            *([] if given.evaluate else ["--evaluate.protocols", "[]", "--evaluate.limit", "512"]),
        ]
        trainer, summary, log = trained(words, Path(folder))
        bare = bare_rounds(trainer, given.rounds)
    known = {"seconds": summary["seconds"], "evaluation": summary.get("evaluation"), "log": log}
    return {"model": name, "bare": [round(speed, 1) for speed in bare], "bare_median": round(median(bare), 1), **known}


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


def main() -> None:
    given = record.options(
        __doc__,
        data={"required": True, "help": "CIFAR-10"},
        models=["swin_tiny", "a_swin_tiny"],
        batch=256,
        epochs=3,
        max_steps=0,
        rounds=8,
        precision="bf16",
        seed=0,
        evaluate={"default": False, "help": "the recipe's protocols on the final weights"},
    ).parse_args()
    for name in given.models:
        row = train_and_measure(name, given)
        kept = given.batch / seconds_per_step(row["log"]) / row["bare_median"]
        print(f"{name}: bare {row['bare_median']:.0f} images/s, training keeps {100 * kept:.0f} %", flush=True)
        settings = {key: getattr(given, key) for key in ("batch", "epochs", "precision")}
        record.write(f"training_speed_{name}", {**settings, "rows": [row]}, seed=given.seed)
        torch.compiler.reset()


if __name__ == "__main__":
    main()
