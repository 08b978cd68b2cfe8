"""Models whose consistency is known, and records of what they answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from trueshift.data import EmbeddedSample, Preparation, read_ahead
from trueshift.eval import EvalModel, find_protocols, margin_of
from trueshift.eval.runner.classify import measure
from trueshift.layers import CircularConv2d

TINY = Preparation((32, 32), 1.0, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


class Watched:
    """A forward pass that keeps the batches it is shown; by default all answers are zero."""

    def __init__(self, forward=lambda images: torch.zeros(len(images), 2)) -> None:
        self.forward, self.batches = forward, []

    def __call__(self, images: Tensor) -> Tensor:
        self.batches.append(images.clone())
        return self.forward(images)

    @property
    def shown(self) -> int:
        return sum(map(len, self.batches))


class Constant(nn.Module):
    num_classes = 10

    def forward(self, images: Tensor) -> Tensor:
        return torch.eye(10)[3].expand(len(images), 10)


class ReadsOnePixel(nn.Module):
    """Says whether the first pixel is brighter than the middle."""

    num_classes = 2

    def forward(self, images: Tensor) -> Tensor:
        value = images[:, :, 0, 0].sum(1)
        return torch.stack([-value, value], 1)


class ConvolveAndPool(nn.Module):
    """Circular convolutions and a global maximum: invariant, and exactly so, as a maximum does not round."""

    num_classes = 10

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = CircularConv2d(3, 8, 3), CircularConv2d(8, 10, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.first(images).relu()).amax((2, 3))


def subject(module: nn.Module, name: str = "model", preparation: Preparation = TINY) -> EvalModel:
    classes = getattr(module, "num_classes", None)
    return EvalModel(name, module.eval(), preparation, "made up", num_classes=classes, module=module)


def answers_to(forward, names, shifts, images=range(4), preparation=TINY, source=None, seed=0, batch_size=32):
    """Records of a model on the first images of the sample."""
    protocols = find_protocols(list(names))
    source = source or EmbeddedSample()
    pictures = read_ahead(source, images, preparation, margin_of(protocols, preparation.size))
    numbers = {protocol.name: shifts for protocol in protocols}
    return list(measure(forward, pictures, protocols, preparation, numbers, seed, batch_size)), protocols


def evaluated_by(processes, folder, output, *words):
    """What ``trueshift eval`` writes under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "trueshift", "eval", *words, "--output", output]
    search = f"{Path(__file__).parents[2]}{os.pathsep}{folder}"
    environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / output / "eval.json").read_text())
