"""Training, from the first check to the final weights."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rich.console import Console
from rich.markup import escape
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from ..criteria import LearnedScore
from ..eval.options import inference_device
from ..report.console import print_evaluation
from ..utils.distributed import broadcast_buffers, joined_processes, sole_run
from ..utils.files import json_text, writable_folder, write_whole
from ..utils.provenance import circumstances, has_bf16
from ..utils.rng import deterministic_algorithms, seed_everything
from .checkpoint import CheckpointFolder, Snapshot, find_snapshot
from .compile_check import AGAIN_AT, compiled, fault_of_compiler
from .config import TrainConfig
from .cuda_graph import GraphedStep, LossAndNorm, check_capture
from .data.loader import Batch
from .data.sampler import Share
from .divergence import Diverged, LossWatch, first_not_finite
from .fields import TASKS
from .log import RunLog, RunReport
from .optimization import build_optimizer, build_schedule, load_state
from .preemption import StopRequest
from .task import Measurement


def train(config: TrainConfig, console: Console | None = None) -> int:
    """Train as configured; returns the exit code: 0, or that of the signal that stopped the run.

    Under ``torchrun`` every process calls this. Started again with the same output folder, the run resumes.
    """
    with (
        deterministic_algorithms(config.deterministic),
        joined_processes(inference_device(config.device)) as (device, rank),
        _output_folder(config.output) as folder,
        sole_run(folder),
    ):
        console = console if console and rank == 0 else Console(quiet=rank != 0)
        try:
            with StopRequest() as stop:
                return Trainer(config, torch.device(device), console, stop).run()
        finally:
            # accelerate fixes precision and device for the life of a process and has no public way to reset them;
            # another run in this process may want others
            AcceleratorState._reset_state(reset_partial_state=True)


@contextmanager
def _output_folder(path: str) -> Iterator[Path]:
    """A writable folder, made if need be; if a run is refused, what was made and is still empty is removed."""
    made = [folder for folder in (Path(path), *Path(path).parents) if not folder.exists()]
    try:
        yield writable_folder(path)
    except BaseException:
        with suppress(OSError):  # not empty
            for folder in made:
                folder.rmdir()
        raise


class Trainer:
    """One run."""

    def __init__(self, config: TrainConfig, device: torch.device, console: Console, stop: StopRequest) -> None:
        if config.precision == "fp16" and device.type == "cpu":
            raise ValueError("precision fp16 works on GPUs only: needs bf16 or float32 on a CPU")
        if config.sync_batchnorm and device.type == "cpu":
            raise ValueError("sync_batchnorm works on GPUs only: leave it out on a CPU")
        self.config, self.console, self.stop = config, console, stop
        slow = config.precision == "bf16" and device.type == "cpu" and not has_bf16()
        self.precision = "float32" if slow else config.precision
        self.folder = writable_folder(config.output)
        self.accelerator = Accelerator(
            mixed_precision="no" if self.precision == "float32" else self.precision,
            cpu=device.type == "cpu",
            gradient_accumulation_steps=config.accumulate,
        )
        self.device, self.main = self.accelerator.device, self.accelerator.is_main_process
        self.share = Share(self.accelerator.process_index, self.accelerator.num_processes)
        check_capture(config, self.device, self.share.processes)
        with self.accelerator.main_process_first():  # it may download
            self.task = TASKS[config.task](config, self.share, self.device)
        self.data, self.order = self.task.data, self.task.order

        seed_everything(config.seed)
        self.network = self.task.build_network()
        if config.grad_checkpointing:
            self.network.set_grad_checkpointing(True)  # type: ignore[operator]
        if config.sync_batchnorm and self.share.processes > 1:
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)
        self.network.to(self.device)
        self.average = ModelEmaV3(self.network, decay=config.ema_decay) if config.ema_decay else None
        optimizer = build_optimizer(config, self.network)
        self.schedule = build_schedule(config, optimizer, self.order.steps)
        # compiled first, so that accelerate's autocast is entered outside of the compiled graph
        self.model = self.accelerator.prepare_model(compiled(self.network) if config.compile else self.network)
        self.optimizer = self.accelerator.prepare_optimizer(optimizer)
        self.graphed = GraphedStep(self._gradients, self.optimizer, self.device) if config.cuda_graph else None
        self.compiler_in_use = config.compile
        self.compiler_checked: int | None = None  # step of the last check, which passed
        learned = [part for part in self.network.modules() if isinstance(part, LearnedScore)]
        self.cooling = [part for part in learned if part.final_temperature != part.temperature]
        self.feed = self.task.feed()

        self.checkpoints = CheckpointFolder(self.folder / "checkpoints", config.checkpoint.keep)
        self.watch = LossWatch()
        self.shown: deque[tuple[int, np.ndarray]] = deque(maxlen=64)  # samples of the last steps
        self.step = self.epoch = self.step_in_epoch = 0
        self.measured = 0  # the step up to which all measurements are made
        self.best = -1.0
        self.unreadable: set[str] = set()
        self.seconds_before = 0.0  # taken by earlier processes, up to the checkpoint

    @property
    def scheduled_steps(self) -> int:
        """Of the whole schedule."""
        return self.config.schedule.steps or self.order.steps * self.config.schedule.epochs

    @property
    def total_steps(self) -> int:
        """Of the whole run."""
        return min(self.scheduled_steps, self.config.max_steps or self.scheduled_steps)

    def run(self) -> int:
        """Start or resume, until the end or until asked to stop."""
        self._resume()
        settings = self.config.to_dict()
        if self.main:
            write_whole(self.folder / "config.json", json_text(settings))
        log = RunLog(self.folder, self.config.log, settings, self.step) if self.main else None
        self.began = time.monotonic()
        with RunReport(self.console, log, self.total_steps, self.step) as self.report:
            self.report.line(self._introduction())
            while self.step < self.total_steps or self.measured < self.step:
                if not self._train_epoch():
                    return self._stopped()
                due = self.step >= self.total_steps or (self.epoch + 1) % self.config.evaluate.every_epochs == 0
                if due and not self._measure():
                    return self._stopped()
                self.measured = self.step
                if self.step_in_epoch == self.order.steps:
                    self.epoch, self.step_in_epoch = self.epoch + 1, 0
                if due or self._checkpoint_due():
                    self._save()
            return self._finish()

    def _seconds(self) -> float:
        """Time of the run so far, without steps that a killed process lost."""
        return self.seconds_before + time.monotonic() - self.began

    def _introduction(self) -> str:
        count = sum(parameter.numel() for parameter in self.network.parameters())
        return (
            f"[bold]{escape(self.config.model.name)}[/], {count / 1e6:.2f} M parameters, "
            f"{self.task.describe_data()}, "
            f"{self.config.batch_size} in a step, {self.share.processes} process(es) on {self.device}, "
            f"{self.precision}{' (no bf16 on this CPU)' if self.precision != self.config.precision else ''}"
            f"{', compiled' if self.config.compile else ''}{', as a CUDA graph' if self.config.cuda_graph else ''}; "
            f"{'from step ' + str(self.step) if self.step else 'from the start'} to {self.total_steps}"
        )

    def _train_epoch(self) -> bool:
        """Train the rest of an epoch; False if asked to stop."""
        last = min(self.order.steps, self.step_in_epoch + self.total_steps - self.step)
        passes = self.feed.epoch(self.epoch, self.step_in_epoch)
        since, first = time.monotonic(), self.step
        self.model.train()
        while self.step_in_epoch < last:
            self._update(list(islice(passes, self.config.accumulate)))
            self.report.step(self.step)
            if self.step % self.config.log.every_steps == 0 or self.step_in_epoch == last:
                since, first = self._report(since, first), self.step
            if self.stop.heard_by_any():
                return False
            if self._checkpoint_due() and self.step_in_epoch < last:
                self._save()
        return True

    def _update(self, batches: list[Batch]) -> None:
        """One step: gradients of some passes, clipped, applied."""
        self.schedule.step_update(self.step)
        for criterion in self.cooling:
            criterion.progress.fill_(self.step / self.scheduled_steps)
        if self.compiler_in_use and (self.compiler_checked is None or self.step in AGAIN_AT):
            self._check_compiler(batches[0])
        seed_everything(self.config.seed, self.step, self.share.rank)  # for stochastic depth, random grids and mixing
        passes = map(self.task.mixed, batches)
        self.watch.note(self.step, *(self.graphed(*passes) if self.graphed else self._gradients(passes)))
        self.shown.append((self.step, np.concatenate([batch.indices for batch in batches])))
        self.unreadable.update(*(batch.unreadable for batch in batches))
        self._check_divergence(wait=False, images=self.task.shown(batches[-1]))
        if self.graphed is None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.step += 1
        self.step_in_epoch += 1
        if self.average is not None:
            self.average.update(self.network, self.step)

    def _gradients(self, passes: Iterable[Batch]) -> LossAndNorm:
        """Of the mean over some passes, clipped; returns the loss, and the norm before clipping."""
        loss = torch.zeros((), device=self.device)
        for batch in passes:
            with self.accelerator.accumulate(self.model):
                part = self.task.loss(self.model, batch)
                self.accelerator.backward(part)  # of the mean over the passes
            loss += part.detach() / self.config.accumulate
        return loss, self.accelerator.clip_grad_norm_(self.network.parameters(), self.config.optimizer.clip_grad or inf)

    def _check_compiler(self, batch: Batch) -> None:
        """Continue without the compiler where this torch cannot compile the network, or not correctly."""

        def loss(model: nn.Module, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Tensor:
            seed_everything(self.config.seed, self.step, self.share.rank)
            with autocast():
                return self.task.loss(model, self.task.mixed(batch))

        seed_everything(self.config.seed)
        with self.accelerator.no_sync(self.model):
            reason = fault_of_compiler(
                self.network,
                by_compiler=lambda: loss(self.model),
                own=lambda: loss(self.network, self.accelerator.autocast),
                in_float32=lambda: loss(self.network),
            )
        passed_before, self.compiler_checked = self.compiler_checked, self.step
        if reason is None:
            return
        note = f"torch.compile does not work here ({reason}): continuing without it"
        if passed_before is not None:
            note += f". Updates since step {passed_before} may be wrong"
        self.report.line(f"[yellow]{escape(note)}[/]")
        self.report.write("compiler", self.step, {"failed": note})
        self.compiler_in_use = False
        self.model = self.accelerator.prepare_model(self.network)
        if self.graphed is not None:
            self.graphed.restart()
        self.model.train()

    def _check_divergence(self, wait: bool, images: Tensor | None = None) -> None:
        """Stop at a loss that is not finite: on a CPU before the update, on a GPU a step or two later."""
        step = self.watch.look(wait)
        if step is None:
            return
        with self.accelerator.autocast():  # it may overflow in this precision only
            where = first_not_finite(self.network, images)
        indices: list[int] = next((indices.tolist() for shown, indices in self.shown if shown == step), [])
        report = {
            "step": step,
            "epoch": self.epoch,
            "lr": self._learning_rate(),
            "where": where,
            "losses": list(self.watch.recent),
            "images": [self.data.train.name(index) for index in indices],
            "last_checkpoint": next((folder.name for folder in reversed(self.checkpoints.all())), None),
        }
        path = write_whole(self.folder / "diverged.json", json_text(report))
        raise Diverged(report, path, "warmup_steps" if self.config.schedule.steps else "warmup_epochs")

    def _learning_rate(self) -> float:
        return max(group["lr"] for group in self.optimizer.param_groups)

    def _report(self, since: float, first: int) -> float:
        """Write the mean loss over all processes since ``first`` to log and screen; returns the time."""
        self._check_divergence(wait=True)
        now, steps, taken = time.monotonic(), self.step - first, self.watch.taken()  # after the wait for the GPU
        seconds = now - since
        losses = torch.tensor([entry["loss"] for entry in taken], dtype=torch.float64)
        if dist.is_initialized():
            dist.all_reduce(losses)
        loss = losses.mean().item() / self.share.processes
        speed = steps * self.config.batch_size / max(seconds, 1e-9)
        left = (self.total_steps - self.step) * seconds / max(steps, 1)
        rate = self._learning_rate()
        self.report.progress(self.epoch, loss, rate, speed, left)
        values = {"epoch": self.epoch, "loss": loss, "lr": rate, "grad_norm": taken[-1]["grad_norm"]}
        values |= {"images_per_second": round(speed, 1), "seconds": round(seconds, 3)}
        self.report.write("train", self.step, values)
        self.report.unreadable(self.step, self.unreadable, "another stands in for it")
        return now

    def _measure(self) -> bool:
        """Measure, and save the best weights; False if asked to stop on the way."""
        candidates = self._candidates()
        broadcast_buffers(*candidates.values())  # measure what will be written
        measured: dict[str, Measurement] = {}
        for name, model in candidates.items():
            autocast, stop = self.accelerator.autocast, lambda: self.stop.signal is not None
            found = self.task.measure(model, autocast, stop, self.unreadable)
            self.report.unreadable(self.step, self.unreadable, "it is not measured on")
            if found is None:
                return False
            measured[name] = found
        name, best = max(measured.items(), key=lambda item: item[1].score)
        values = {f"{kind}_{key}": value for kind, each in measured.items() for key, value in each.values.items()}
        text = ", ".join(f"{kind} {each.text}" for kind, each in measured.items())
        self.report.line(f"epoch {self.epoch + 1}: {text} on {best.values['images']:,} images")
        self.report.write("test", self.step, {"epoch": self.epoch, **values})
        if best.score > self.best:
            self.best = best.score
            if self.main:
                self._write(candidates[name], "best")
                about = {"step": self.step, "epoch": self.epoch, "weights": name, **best.values}
                write_whole(self.folder / "best" / "measured.json", json_text(about))
        return True

    def _candidates(self) -> dict[str, nn.Module]:
        """The networks to measure and to write."""
        return {"model": self.network} | ({"ema": self.average.module} if self.average else {})

    def _write(self, model: nn.Module, name: str) -> None:
        needed = sum(value.nbytes for value in model.state_dict().values())
        with self.checkpoints.reporting(f"the weights of {name}", self.folder / name, needed):
            self.task.save(model, self.folder / name)

    def _checkpoint_due(self) -> bool:
        every = self.config.checkpoint.every_steps
        return bool(every) and self.step % every == 0

    def _save(self) -> None:
        """In the first process; the others wait."""
        self._check_divergence(wait=True)
        if self.main:
            scaler = self.accelerator.scaler
            state: dict[str, Any] = {"best": self.best, "measured": self.measured, "seconds": self._seconds()}
            state["optimizer"] = self.optimizer.state_dict()
            state["scaler"] = scaler.state_dict() if scaler is not None else None
            place, about = (self.step, self.epoch, self.step_in_epoch), (self.config.to_dict(), self.data.identity)
            average = self.average.module.state_dict() if self.average else None
            self.checkpoints.save(Snapshot(*place, self.network.state_dict(), average, state, *about))
        self.accelerator.wait_for_everyone()

    def _resume(self) -> None:
        """Load a checkpoint, if there is one to resume from."""
        snapshot, notes = find_snapshot(self.checkpoints, self.config, self.data.identity)
        for note in notes:
            self.console.print(f"[yellow]{escape(note)}[/]", highlight=False, soft_wrap=True)
        if snapshot is None:
            return
        self.network.load_state_dict(snapshot.weights)
        if self.average is not None and snapshot.average is not None:
            self.average.module.load_state_dict(snapshot.average)
        state = snapshot.state
        load_state(self.optimizer, state["optimizer"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.best, self.measured = state["best"], state.get("measured", 0)
        self.seconds_before = state.get("seconds", nan)  # unknown in old checkpoints
        self.step, self.epoch, self.step_in_epoch = snapshot.step, snapshot.epoch, snapshot.step_in_epoch

    def _stopped(self) -> int:
        self._save()
        resume = " with --resume auto" if self.config.resume == "never" else ""
        self.report.line(f"Stopped at step {self.step}, all is saved: the same command{resume} resumes from there.")
        return self.stop.exit_code

    def _finish(self) -> int:
        """Write the final weights, run the protocols of the recipe, write a summary."""
        seconds = round(self._seconds(), 1)
        if self.main:
            for name, model in self._candidates().items():
                self._write(model, "final" if name == "model" else f"final_{name}")
        summary: dict[str, Any] = {
            **circumstances(self.config.seed, ("trueshift", "torch", "timm", "accelerate")),
            "config": self.config.to_dict(),
            "processes": self.share.processes,
            "data": {"train": self.data.train.title, "test": self.data.test.title, **self.data.identity},
            "steps": self.step,
            "seconds": seconds,
            f"best_{self.task.score_name}": self.best,
        }
        if self.task.protocols:
            self.accelerator.wait_for_everyone()  # until the weights are written
            result = self.task.evaluate(self.folder / "final", self.step, self.console)
            summary["evaluation"] = result["measured"]
            if self.main:
                write_whole(self.folder / "eval.json", json_text(result))
                print_evaluation(self.console, result)
        if self.main:
            write_whole(self.folder / "summary.json", json_text(summary))
        self.report.line(escape(f"Done: weights in {self.folder / 'final'}, the best in {self.folder / 'best'}"))
        return 0
