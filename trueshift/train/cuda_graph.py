"""A training step as one CUDA graph: captured once, then replayed without its launches from the host."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from ..utils.checks import first_line
from .config import TrainConfig
from .data.loader import Batch

WARM_UP = 3  # eager steps before the capture: kernels are compiled, and the optimizer allocates its state

LossAndNorm = tuple[Float[Tensor, ""], Float[Tensor, ""]]


def check_capture(config: TrainConfig, device: torch.device, processes: int) -> None:
    """Refuse what a CUDA graph cannot hold, if one is wanted: each of these needs the host within a step."""
    if not config.cuda_graph:
        return
    for wrong, message in (
        (device.type != "cuda", f"works on GPUs only: leave it out on a {device.type}"),
        (processes > 1, f"captures the step of one process, not of {processes}: leave it out under torchrun"),
        (config.accumulate > 1, f"captures one pass, not {config.accumulate}: needs --accumulate 1"),
        (config.precision == "fp16", "cannot capture the gradient scaler of fp16: needs bf16 or float32"),
        (config.grad_checkpointing, "cannot draw random numbers again: needs --grad_checkpointing false"),
    ):
        if wrong:
            raise ValueError(f"cuda_graph {message}")


def make_capturable(optimizer: Optimizer) -> None:
    """Have an optimizer count its steps on the device; those that cannot are refused."""
    kind = type(optimizer)
    if not (kind.__module__.startswith("torch.optim.") and "capturable" in optimizer.defaults):
        raise ValueError(
            f"cuda_graph cannot capture {kind.__module__}.{kind.__name__}: needs an optimizer of torch's that takes "
            "capturable, e.g. --optimizer.name adamw"
        )
    for group in optimizer.param_groups:
        group["capturable"] = True


class GraphedStep:
    """One training step on a GPU. The first calls are eager; the next one captures the step, and later ones replay it.

    All are real steps: a capture computes nothing, and is replayed at once. A replay draws from the default generator's
    current seed and offset, so random numbers are those of an eager step.

    Args:
        gradients: computes and clips the gradients of a list of one batch without a look at values; returns the loss
            and the norm of its gradient.
        optimizer: made capturable by :func:`make_capturable`.
    """

    def __init__(
        self, gradients: Callable[[list[Batch]], LossAndNorm], optimizer: Optimizer, device: torch.device
    ) -> None:
        self.gradients, self.optimizer = gradients, optimizer
        self.rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self.stream = torch.cuda.Stream(device)
        self.restart()

    def restart(self) -> None:
        """Capture the step again, after a few that are eager: it has changed."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager_steps = 0

    def __call__(self, batch: Batch) -> LossAndNorm:
        """Loss and gradient norm, which the next call overwrites; all batches have the same size."""
        for rate, group in zip(self.rates, self.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        if self.eager_steps < WARM_UP:
            self.eager_steps += 1
            return self._eagerly(batch)
        if self.graph is None:
            self.graph = self._captured(batch)
        self.batch.images.copy_(batch.images)
        self.batch.labels.copy_(batch.labels)
        self.graph.replay()
        return self.results

    def _eagerly(self, batch: Batch) -> LossAndNorm:
        """On the stream of the capture: a backward pass is bound to the streams it has run on before."""
        outside = torch.cuda.current_stream()
        self.stream.wait_stream(outside)
        with torch.cuda.stream(self.stream), rates_from(self.rates, self.optimizer), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")  # not captured yet
            results = self._step(batch)
        outside.wait_stream(self.stream)
        return results

    def _captured(self, batch: Batch) -> torch.cuda.CUDAGraph:
        self.batch = replace(batch, images=batch.images.clone(), labels=batch.labels.clone())
        graph = torch.cuda.CUDAGraph()
        # errors are this thread's only: that of a loader may pin memory meanwhile
        capture = torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local")
        try:
            with rates_from(self.rates, self.optimizer), capture:
                self.results = self._step(self.batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ValueError(
                f"the step cannot be captured ({first_line(error)}): leave out cuda_graph, or have no "
                "module wait for the GPU or copy from the host"
            ) from error
        return graph

    def _step(self, batch: Batch) -> LossAndNorm:
        results = self.gradients([batch])
        self.optimizer.step()
        self.optimizer.zero_grad()  # to None: a captured backward pass writes gradients, and adds to none
        return results


@contextmanager
def rates_from(rates: list[Float[Tensor, ""]], optimizer: Optimizer) -> Iterator[None]:
    """Have an optimizer read its learning rates from tensors; schedule, log and checkpoints keep the numbers."""
    numbers = [group["lr"] for group in optimizer.param_groups]
    try:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        yield
    finally:
        for group, number in zip(optimizer.param_groups, numbers, strict=True):
            group["lr"] = number
