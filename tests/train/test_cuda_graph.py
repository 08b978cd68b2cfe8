"""A step as one CUDA graph learns what eager steps learn. Without a GPU, all but the capture itself is tested."""

import warnings
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from training_runs import learn, log, losses, same, weights

from trueshift import FieldNet
from trueshift.eval.fields import relative_l2
from trueshift.train import cuda_graph, optimization
from trueshift.train import trainer as loop
from trueshift.train.config import OptimizerConfig, TrainConfig
from trueshift.train.cuda_graph import WARM_UP, GraphedStep, check_capture, rates_from
from trueshift.train.data.loader import Batch
from trueshift.train.optimization import build_optimizer, load_state

GPU, CPU = torch.device("cuda"), torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# all that is random or changes from step to step, clipped at nearly each of them
LIVELY = {
    "model__drop_path_rate": 0.3,
    "augment__cutmix": 1.0,
    "augment__mixup": 0.8,
    "augment__label_smoothing": 0.1,
    "optimizer__clip_grad": 0.5,
    "schedule__warmup_epochs": 1,
    "ema_decay": 0.9,
}
SMALL = {"model__arguments": "{embed_dim: 8, depths: [2], num_heads: [1]}", "model__grid_drop_rate": 0.5}
SMALL |= {"evaluate__every_epochs": 2, "evaluate__limit": 4}


def near(expected, relative):
    """The same steps, with values alike."""
    return pytest.approx(expected, rel=relative, abs=0)


def rates(output):
    return [entry["lr"] for entry in log(output, "train")]


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "device", "processes", "message"),
    [
        ({}, CPU, 1, "cuda_graph works on GPUs only: leave it out on a cpu"),
        ({}, GPU, 2, "cuda_graph captures the step of one process, not of 2: leave it out under torchrun"),
        ({"accumulate": 4}, GPU, 1, "cuda_graph captures one pass, not 4: needs --accumulate 1"),
        ({"precision": "fp16"}, GPU, 1, "cuda_graph cannot capture .* fp16: needs bf16 or float32"),
        ({"grad_checkpointing": True}, GPU, 1, "cuda_graph cannot .*: needs --grad_checkpointing false"),
    ],
)
def test_what_cannot_be_captured_is_refused(changes, device, processes, message):
    config = replace(TrainConfig(cuda_graph=True), **changes)
    with pytest.raises(ValueError, match=message):
        check_capture(config, device, processes)
    check_capture(replace(config, cuda_graph=False), device, processes)
    check_capture(TrainConfig(cuda_graph=True, precision="bf16", compile=True), GPU, 1)


def test_an_optimizer_that_keeps_its_steps_on_the_host_is_refused():
    for graph in (True, False):
        optimizer = build_optimizer(TrainConfig(cuda_graph=graph), nn.Linear(3, 2))
        assert {group["capturable"] for group in optimizer.param_groups} == {graph}
    for name in ("sgd", "lamb"):  # of torch's, of timm's
        with pytest.raises(ValueError, match=r"cannot capture .*: needs an optimizer of torch's .* adamw"):
            build_optimizer(TrainConfig(cuda_graph=True, optimizer=OptimizerConfig(name=name)), nn.Linear(3, 2))


# -- on a CPU, uncaptured -------------------------------------------------------------------------------------------


class Uncaptured(GraphedStep):
    """All that a graphed step does, but for streams and the capture."""

    def __init__(self, gradients, optimizer, device):
        with mock.patch.object(torch.cuda, "Stream"):
            super().__init__(gradients, optimizer, device)

    def _eagerly(self, batch):
        with rates_from(self.rates, self.optimizer):
            return self._step(batch)


def test_rates_on_the_device_teach_the_same_in_parts_too(tmp_path, monkeypatch):
    """Between eager steps and captured ones a run may change whenever it is resumed."""
    monkeypatch.setattr(loop, "check_capture", lambda *given: None)
    monkeypatch.setattr(optimization, "make_capturable", lambda optimizer: None)  # none is on a CPU
    monkeypatch.setattr(cuda_graph, "WARM_UP", 10**6)
    monkeypatch.setattr(loop, "GraphedStep", Uncaptured)
    eager = learn(tmp_path / "eager", **LIVELY, **SMALL)
    expected = losses(eager)
    for steps, captured in ((5, "true"), (7, "false"), (0, "true")):
        graph = learn(tmp_path / "graph", max_steps=steps, cuda_graph=captured, **LIVELY, **SMALL)
    assert losses(graph) == near(expected, 1e-5)
    assert rates(graph) == rates(eager)  # numbers, as in the log
    assert len(set(rates(graph))) > 6


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (RuntimeError("not permitted\nmore"), ValueError, r"cannot be captured \(not permitted\): leave out"),
        (torch.OutOfMemoryError("too little"), torch.OutOfMemoryError, "too little"),
    ],
)
def test_a_step_that_waits_for_the_gpu_is_refused(error, kind, message):
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=0.5)
    step = Uncaptured(mock.Mock(side_effect=error), optimizer, CPU)
    step.eager_steps = WARM_UP
    batch = Batch(torch.zeros(1, 3, 4, 4), torch.zeros(1, dtype=torch.int64), np.zeros(1, np.int64))
    with (
        mock.patch.object(torch.cuda, "CUDAGraph"),
        mock.patch.object(torch.cuda, "graph", return_value=nullcontext()),
        pytest.raises(kind, match=message),
    ):
        step(batch)
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("before", [False, True])
def test_a_checkpoint_does_not_decide_where_steps_are_counted(before):
    first, optimizer = (
        build_optimizer(TrainConfig(cuda_graph=graph), nn.Linear(2, 2)) for graph in (before, not before)
    )
    load_state(optimizer, first.state_dict())
    assert {group["capturable"] for group in optimizer.param_groups} == {not before}


@pytest.mark.parametrize("circular", ["both", "width"])
def test_no_network_for_fields_looks_at_values_while_it_learns(circular):
    """For classifiers see test_registry.py."""
    sizes = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1), "decoder_depth": 1}
    net = FieldNet("a_swinv2_mini", 2, circular=circular, grid_drop_rate=0.5, **sizes).train().to("meta")
    field = torch.empty(4, 2, 32, 64, device="meta")
    relative_l2(net(field), field).mean().backward()
    assert all(parameter.grad.is_meta for parameter in net.parameters())


# -- on a GPU -------------------------------------------------------------------------------------------------------


class Watched(GraphedStep):
    """Once captured, nothing in a step may wait for the GPU."""

    replays = 0

    def __call__(self, batch):
        if self.graph is None:
            return super().__call__(batch)
        type(self).replays += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mode finds most of what waits, not all
            torch.cuda.set_sync_debug_mode("error")
        try:
            return super().__call__(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def gpu_run(output, graph, name="a_swin_mini", **changes):
    """30 steps in four epochs; returns the losses."""
    data = output.parent / "data"
    if not data.exists():
        random = np.random.default_rng(0)
        labels = random.integers(0, 4, 320)
        pixels = random.integers(0, 128, (320, 32, 32, 3)) + 32 * labels[:, None, None, None]
        parts = {"train": slice(256), "test": slice(256, None)}
        arrays = {f"x_{split}": pixels[part].astype(np.uint8) for split, part in parts.items()}
        data.mkdir(parents=True)
        np.savez(data / "images.npz", **arrays, **{f"y_{split}": labels[part] for split, part in parts.items()})
    given = {
        **LIVELY,
        "model__name": name,
        "model__arguments": "{embed_dim: 16, depths: [2, 2], num_heads: [1, 2]}",
        **({"model__grid_drop_rate": 0.5} if name.startswith("a_") else {}),
        "data__path": data,
        "data__holdout": 0,
        "data__limit": 0,
        "batch_size": 32,
        "optimizer__lr": 0.01,
        "schedule__epochs": 4,
        "max_steps": 30,
        "device": "cuda",
    }
    Watched.replays = 0
    with mock.patch.object(loop, "GraphedStep", Watched):
        return losses(learn(output, cuda_graph=str(graph).lower(), **given | changes))


# batch norms in a CvT; random numbers of its own in a learned criterion
CASES = {
    "swin_mini": {},
    "a_swin_mini": {},
    "a_cvt_mini": {"model__arguments": "{embed_dim: [16, 16, 16], depths: [1, 1, 2], num_heads: [1, 1, 1]}"},
    "a_swinv2_mini": {
        "model__arguments": "{embed_dim: 16, depths: [2, 2], num_heads: [1, 2], criterion: learned}",
        "model__grid_drop_rate": 0.1,
    },
}


@needs_gpu
@pytest.mark.parametrize("name", list(CASES))
def test_a_graph_learns_the_same(tmp_path, name):
    expected = gpu_run(tmp_path / "eager", False, name, **CASES[name])
    assert Watched.replays == 0
    found = gpu_run(tmp_path / "graph", True, name, **CASES[name])
    assert Watched.replays == 30 - WARM_UP - 1  # one more by the call that captures
    assert found == near(expected, 1e-3)
    assert rates(tmp_path / "graph") == rates(tmp_path / "eager")


@needs_gpu
def test_a_graph_takes_bf16_and_a_loader(tmp_path):
    given = {"precision": "bf16", "data__on_device": "no", "data__workers": 2}
    expected = gpu_run(tmp_path / "eager", False, **given)
    assert gpu_run(tmp_path / "graph", True, **given) == near(expected, 0.02)


@needs_gpu
def test_a_graph_learns_to_segment(tmp_path, scenes, monkeypatch):
    """What the same steps learn uncaptured. An optimizer that is not capturable rounds otherwise, by 1e-5 of the loss
    after its first step, and 12 steps at this rate make more than a percent of that.
    """
    given = {"task": "segmentation", "data__path": scenes, "schedule__steps": 12, "device": "cuda"}
    expected = losses(learn(tmp_path / "eager", **given))
    found = losses(learn(tmp_path / "graph", cuda_graph="true", **given))
    monkeypatch.setattr(cuda_graph, "WARM_UP", 10**6)
    assert found == near(losses(learn(tmp_path / "uncaptured", cuda_graph="true", **given)), 1e-6)
    assert found[1] == expected[1] > 1.2 * expected[2]
    assert found[2] == near(expected[2], 1e-4)


@needs_gpu
@pytest.mark.parametrize("circular", ["both", "width"])
def test_a_graph_learns_fields(tmp_path, circular):
    waves = np.sin(np.arange(64) * 2 * np.pi / 64 + 0.5 * np.arange(9)[:, None, None, None])  # that drift to the left
    for split, phase in (("train", 0.0), ("test", 0.3)):
        states = np.stack([waves * np.cos(number + phase + np.arange(32))[:, None] for number in range(4)])
        np.save(tmp_path / f"{split}.npy", np.repeat(states, 2, 2).astype(np.float32))
    sizes = "embed_dim: 16, depths: [2, 2], num_heads: [1, 2], pretrained_window_sizes: [0, 0]"
    given = {
        "task": "fields",
        "model__arguments": f"{{{sizes}, circular: {circular}}}",
        "model__grid_drop_rate": 0.5,
        "fields__random_rolls": "width",
        "fields__decoder": "{residual: true}",
        "optimizer__lr_batch_size": 8,
        "data__path": tmp_path,
        "batch_size": 8,
        "schedule__epochs": 4,
        "device": "cuda",
    }
    expected = losses(learn(tmp_path / "eager", **given))
    assert expected[16] < 0.7 * expected[1]
    assert losses(learn(tmp_path / "graph", cuda_graph="true", **given)) == near(expected, 1e-2)


@needs_gpu
def test_a_resumed_graph_has_the_same_bits(tmp_path):
    given = {"deterministic": "true"}
    whole = gpu_run(tmp_path / "whole", True, **given)
    gpu_run(tmp_path / "parts", True, max_steps=13, **given)
    parts = gpu_run(tmp_path / "parts", True, **given)
    assert parts == whole
    for name in ("final", "final_ema"):
        assert same(weights(tmp_path / "parts", name), weights(tmp_path / "whole", name))


@needs_gpu
def test_a_run_changes_to_a_graph_and_back_on_a_gpu(tmp_path):
    whole = gpu_run(tmp_path / "whole", False)
    for steps, graph in ((9, True), (20, False), (30, True)):
        found = gpu_run(tmp_path / "parts", graph, max_steps=steps)
    assert found == near(whole, 1e-3)


@needs_gpu
def test_a_graph_that_diverges_is_stopped(tmp_path):
    with pytest.raises(loop.Diverged, match="not finite"):
        gpu_run(tmp_path / "run", True, optimizer__lr=1e30, optimizer__clip_grad=0, log__every_steps=50)
