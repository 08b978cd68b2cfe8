"""Training, from the first check to the final weights."""

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from math import nan
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

from ..eval.models.load import load_eval_model
from ..eval.options import EvalOptions, inference_device
from ..eval.protocols.registry import ShiftProtocol, find_protocols
from ..eval.runner.evaluate import run_evaluation
from ..report.console import print_evaluation, progress_bars
from ..utils.determinism import only_deterministic
from ..utils.distributed import joined_processes, sole_run
from ..utils.files import json_text, writable_folder, write_whole
from ..utils.provenance import circumstances
from ..utils.rng import seed_everything
from .buffers import take_from_first
from .checkpoint import CheckpointFolder, Snapshot
from .classification import Classification
from .compile_check import AGAIN_AT, Gradients, compiled, fault_of_compiler, gradients
from .config import TrainConfig
from .data.batch import Batch, Share
from .data.sampler import BatchOrder
from .divergence import Diverged, LossWatch, first_not_finite
from .log import RunLog
from .optimization import build_optimizer, build_schedule
from .preemption import StopRequest
from .progress import RunProgress
from .resuming import snapshot_to_go_on_from
from .segmentation import Segmentation
from .task import Measured, Surroundings, Task

_MIXED = {"float32": "no", "bf16": "bf16", "fp16": "fp16"}


def train(config: TrainConfig, console: Console | None = None) -> int:
    """Train as a configuration says; the exit code: 0, or that of the signal that stopped it.

    Under ``torchrun`` every process calls this. Started again with the same output folder, it goes on.
    """
    joined = joined_processes(inference_device(config.device))
    with (
        only_deterministic(config.deterministic),
        joined as (device, rank),
        sole_run(writable_folder(config.output)),
    ):
        console = console if console and rank == 0 else Console(quiet=rank != 0)
        try:
            with StopRequest() as stop:
                return Trainer(config, torch.device(device), console, stop).run()
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)  # the next run may ask for another precision


def open_task(config: TrainConfig, fetch: bool = True) -> Task:
    """What a configuration asks to learn, with its data opened."""
    kinds: dict[str, type[Classification | Segmentation]] = {
        "classification": Classification,
        "segmentation": Segmentation,
    }
    return kinds[config.task](config, fetch)


def protocols_of(config: TrainConfig) -> list[ShiftProtocol]:
    """What the final weights are measured by; refused now if it is not for the task, not when all is trained."""
    dense = config.task == "segmentation"
    found = find_protocols(config.evaluate.protocols)
    if wrong := [protocol.name for protocol in found if protocol.dense != dense]:
        needed = "those for pixels, e.g. ade20k" if dense else "those for whole pictures, e.g. circular"
        raise ValueError(f"evaluate.protocols {', '.join(wrong)}: {config.task} needs {needed}")
    return found


class Trainer:
    """One run: what it is made of, then how it goes."""

    def __init__(self, config: TrainConfig, device: torch.device, console: Console, stop: StopRequest) -> None:
        if config.precision == "fp16" and device.type == "cpu":
            raise ValueError("precision fp16 works on GPUs only: needs bf16 or float32 on a CPU")
        if config.sync_batchnorm and device.type == "cpu":
            raise ValueError("sync_batchnorm works on GPUs only: leave it out on a CPU")
        self.config, self.console, self.stop = config, console, stop
        self.folder = writable_folder(config.output)
        self.share = Share(*((dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)))
        self.main = self.share.rank == 0
        with self._main_first():
            self.task = open_task(config, fetch=self.main)
        self.data = self.task.data
        self.protocols = protocols_of(config)
        self.order = BatchOrder(
            len(self.data.train),
            config.batch_size,
            self.share.processes * config.accumulate,
            config.seed,
            getattr(self.data.train, "chunks", None),
        )
        self.task.check_order(self.order)

        seed_everything(config.seed)
        self.network = self.task.build_network()
        if config.grad_checkpointing:
            self.network.set_grad_checkpointing(True)  # type: ignore[operator]
        if config.sync_batchnorm and self.share.processes > 1:
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)
        self.network.to(device)
        self.average = ModelEmaV3(self.network, decay=config.ema_decay) if config.ema_decay else None

        self.accelerator = Accelerator(mixed_precision=_MIXED[config.precision], cpu=device.type == "cpu")
        self.device = self.accelerator.device
        optimizer = build_optimizer(config, self.network)
        self.schedule = build_schedule(config, optimizer, self.order.steps)
        # compiled first, so that accelerate's autocast is entered outside of the compiled graph
        self.model = self.accelerator.prepare_model(compiled(self.network) if config.compile else self.network)
        self.optimizer = self.accelerator.prepare_optimizer(optimizer)
        self.compiler_in_use = config.compile
        self.compiler_compared: int | None = None  # the step at which its gradients were right
        self.feed = self.task.start(self.order, self.share, self.device)

        self.checkpoints = CheckpointFolder(self.folder / "checkpoints", config.checkpoint.keep)
        self.watch = LossWatch()
        self.shown: deque[tuple[int, np.ndarray]] = deque(maxlen=64)  # pictures of the last steps
        self.step = self.epoch = self.step_in_epoch = 0
        self.measured = 0  # the step up to which nothing is left to be measured
        self.best = -1.0
        self.unreadable: set[str] = set()
        self.told: set[tuple[str, str]] = set()  # of these, and what is done instead
        self.seconds_before = 0.0  # that earlier processes took, up to the checkpoint

    @contextmanager
    def _main_first(self) -> Iterator[None]:
        """What one process prepares for all, such as a download."""
        if dist.is_initialized() and not self.main:
            dist.barrier()
        yield
        if dist.is_initialized() and self.main:
            dist.barrier()

    # -- the run --------------------------------------------------------------------------------------------------

    @property
    def total_steps(self) -> int:
        """Of the whole run."""
        steps = self.config.schedule.steps or self.order.steps * self.config.schedule.epochs
        return min(steps, self.config.max_steps) if self.config.max_steps else steps

    def run(self) -> int:
        """Go on from wherever the run is, to its end or until it is asked to stop."""
        self._go_on()
        settings = self.config.to_dict()
        if self.main:
            write_whole(self.folder / "config.json", json_text(settings))
        self.log = RunLog(self.folder, self.config.log, settings, self.step) if self.main else None
        self.began = time.monotonic()
        try:
            with RunProgress(self.console, self.total_steps, self.step) as self.progress:
                self.progress.line(self._introduction())
                while self.step < self.total_steps or self.measured < self.step:
                    if not self._learn() or not self._measure():
                        return self._stopped()
                return self._finish()
        finally:
            if self.log is not None:
                self.log.close()

    def _seconds(self) -> float:
        """That the run took so far, steps that a killed process had to leave behind not counted."""
        return self.seconds_before + time.monotonic() - self.began

    def _introduction(self) -> str:
        count = sum(parameter.numel() for parameter in self.network.parameters())
        return (
            f"[bold]{escape(self.config.model.name)}[/], {count / 1e6:.2f} M parameters, {len(self.data.classes)} "
            f"classes; {len(self.data.train):,} images of {self.task.input_told()}, "
            f"{self.config.batch_size} in a step, {self.share.processes} process(es) on {self.device}, "
            f"{self.config.precision}{', compiled' if self.config.compile else ''}; "
            f"{'from step ' + str(self.step) if self.step else 'from the start'} to {self.total_steps}"
        )

    def _learn(self) -> bool:
        """The rest of an epoch; False if it was asked to stop."""
        last = min(self.order.steps, self.step_in_epoch + self.total_steps - self.step)
        passes = self.feed.epoch(self.epoch, self.step_in_epoch)
        since, first = time.monotonic(), self.step
        self.model.train()
        while self.step_in_epoch < last:
            self._update(list(islice(passes, self.config.accumulate)))
            self.progress.step(self.step)
            if self.step % self.config.log.every_steps == 0 or self.step_in_epoch == last:
                since, first = self._tell(since, first), self.step
            if self.stop.heard_by_any():
                return False
            every = self.config.checkpoint.every_steps
            if every and self.step % every == 0 and self.step_in_epoch < last:
                self._save()
        return True

    def _update(self, batches: list[Batch]) -> None:
        """One step: gradients of some passes, clipped, followed."""
        self.schedule.step_update(self.step)
        if self.compiler_in_use and (self.compiler_compared is None or self.step in AGAIN_AT):
            self._compare_compiler(batches[0])
        loss = self._gradients(batches)
        clip = self.config.optimizer.clip_grad or float("inf")
        norm = self.accelerator.clip_grad_norm_(self.network.parameters(), clip)
        self.watch.note(self.step, loss, norm if norm is not None else loss.new_zeros(()))
        self.shown.append((self.step, np.concatenate([batch.indices for batch in batches])))
        self._stop_if_astray(wait=False, images=batches[-1].images)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.step_in_epoch += 1
        if self.average is not None:
            self.average.update(self.network, self.step)
        for batch in batches:
            self.unreadable.update(batch.unreadable)

    def _gradients(self, batches: list[Batch]) -> Tensor:
        """Forward and backward; the mean loss of this process."""
        seed_everything(self.config.seed, self.step, self.share.rank)
        total = torch.zeros((), device=self.device)
        scaler = self.accelerator.scaler
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                loss = self.task.loss(self.model, batch) / len(batches)
                # accelerate's own backward looks for installed packages in every step
                (loss if scaler is None else scaler.scale(loss)).backward()
            total += loss.detach()
        return total

    def _compare_compiler(self, batch: Batch) -> None:
        """Where this torch cannot compile the network, or not rightly, the run goes on without."""

        def by(model: nn.Module) -> Gradients:
            seed_everything(self.config.seed, self.step, self.share.rank)
            with self.accelerator.no_sync(self.model):
                return gradients(self.network, lambda: self.task.loss(model, batch))

        def own(float32: bool) -> Gradients:
            with nullcontext() if float32 else self.accelerator.autocast():
                return by(self.network)

        seed_everything(self.config.seed)
        reason = fault_of_compiler(self.network, lambda: by(self.model), own, self.progress.line)
        right_before, self.compiler_compared = self.compiler_compared, self.step
        if reason is None:
            return
        told = f"torch.compile does not work here ({reason}): going on without it"
        if right_before is not None:
            told += f". What was learned since step {right_before} may be wrong"
        self.progress.line(f"[yellow]{escape(told)}[/]")
        if self.log is not None:
            self.log.write("compiler", self.step, {"failed": told})
        self.compiler_in_use = False
        self.model = self.accelerator.prepare_model(self.network)
        self.model.train()

    def _stop_if_astray(self, wait: bool, images: Tensor | None = None) -> None:
        """On a CPU before the weights are touched; a GPU is a step or two ahead of what is known of it."""
        step = self.watch.look(wait)
        if step is None:
            return
        with self.accelerator.autocast():  # what overflows may do so in this precision only
            where = first_not_finite(self.network, images)
        pictures: Sequence[int] | np.ndarray = next((indices for shown, indices in self.shown if shown == step), [])
        report = {
            "step": step,
            "epoch": self.epoch,
            "lr": self._rate(),
            "where": where,
            "losses": list(self.watch.recent),
            "pictures": [self.data.train.name(int(index)) for index in pictures],
            "last_checkpoint": next((folder.name for folder in reversed(self.checkpoints.all())), None),
        }
        path = write_whole(self.folder / "diverged.json", json_text(report))
        warmup = "warmup_steps" if self.config.schedule.steps else "warmup_epochs"
        raise Diverged(
            f"the loss of step {step} (epoch {self.epoch + 1}, learning rate {report['lr']:.2e}) is not finite: "
            f"{where}. {path} has the losses before and the pictures. Checkpoints from before are kept: a lower "
            f"--optimizer.lr, a longer --schedule.{warmup} or --optimizer.clip_grad usually helps",
            report,
        )

    def _rate(self) -> float:
        return max(group["lr"] for group in self.optimizer.param_groups)

    def _tell(self, since: float, first: int) -> float:
        """The losses since the last time, their mean over all processes, to log and screen; gives the time."""
        self._stop_if_astray(wait=True)
        now, steps = time.monotonic(), self.step - first  # after the wait: a GPU is behind what it was told
        seconds = now - since
        taken = self.watch.taken()
        losses = torch.tensor([entry["loss"] for entry in taken], dtype=torch.float64)
        if dist.is_initialized():
            dist.all_reduce(losses)
        loss = losses.mean().item() / self.share.processes
        speed = steps * self.config.batch_size / max(seconds, 1e-9)
        left = (self.total_steps - self.step) * seconds / max(steps, 1)
        self.progress.tell(self.step, self.epoch, loss, self._rate(), speed, left)
        if self.log is not None:
            values = {
                "epoch": self.epoch,
                "loss": loss,
                "lr": self._rate(),
                "grad_norm": taken[-1]["grad_norm"],
                "images_per_second": round(speed, 1),
                "seconds": round(seconds, 3),
            }
            self.log.write("train", self.step, values)
        self._tell_unreadable("another stands in for it")
        return now

    def _tell_unreadable(self, instead: str) -> None:
        """Pictures that could not be read, each once; processes without a screen of their own tell it as an error."""
        new = sorted(told for told in self.unreadable if (told, instead) not in self.told)
        for told in new:
            self.progress.line(f"[yellow]unreadable, {instead}: {escape(told)}[/]")
            if not self.main:
                print(f"unreadable, {instead}: {told}", file=sys.stderr, flush=True)
        if new and self.log is not None:
            self.log.write("unreadable", self.step, {"pictures": new, "instead": instead})
        self.told.update((told, instead) for told in new)
        self.unreadable.clear()

    def _measure(self) -> bool:
        """A measurement at the end of an epoch, and a checkpoint; False if it was asked to stop on the way."""
        done = self.step >= self.total_steps
        if not done and (self.epoch + 1) % self.config.evaluate.every_epochs:
            self._next_epoch()
            every = self.config.checkpoint.every_steps
            if every and self.step % every == 0:
                self._save()
            return True
        take_from_first(*self._candidates().values())  # what is measured is what will be written
        measured: dict[str, Measured] = {}
        for name, model in self._candidates().items():
            found = self._measured(model)
            if found is None:
                return False
            measured[name] = found
        name, best = max(measured.items(), key=lambda item: item[1].score)
        values = {f"{kind}_{key}": value for kind, each in measured.items() for key, value in each.values.items()}
        told = ", ".join(f"{kind} {each.told}" for kind, each in measured.items())
        self.progress.line(f"epoch {self.epoch + 1}: {told} on {best.values['images']:,} images")
        if self.log is not None:
            self.log.write("test", self.step, {"epoch": self.epoch, **values})
        if best.score > self.best:
            self.best = best.score
            if self.main:
                self._write_weights("best", self._candidates()[name])
                about = {"step": self.step, "epoch": self.epoch, "weights": name, **best.values}
                write_whole(self.folder / "best" / "measured.json", json_text(about))
        self._next_epoch()
        self._save()
        return True

    def _next_epoch(self) -> None:
        """Nothing is left to measure: on to the next epoch, unless a run ends within one."""
        self.measured = self.step
        if self.step_in_epoch == self.order.steps:
            self.epoch, self.step_in_epoch = self.epoch + 1, 0

    def _candidates(self) -> dict[str, nn.Module]:
        """The weights that are measured."""
        return {"model": self.network, **({"ema": self.average.module} if self.average is not None else {})}

    def _measured(self, model: nn.Module) -> Measured | None:
        where = Surroundings(
            self.share,
            self.device,
            self.accelerator.autocast,
            lambda: self.stop.signal is not None,
            self.unreadable,
        )
        found = self.task.measure(model, where)
        self._tell_unreadable("it is not measured on")
        return found

    # -- what is kept ---------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """A checkpoint, by the first process; the others wait for it."""
        self._stop_if_astray(wait=True)
        if self.main:
            self.checkpoints.save(self._snapshot())
        if dist.is_initialized():
            dist.barrier()

    def _snapshot(self) -> Snapshot:
        scaler = self.accelerator.scaler
        return Snapshot(
            step=self.step,
            epoch=self.epoch,
            step_in_epoch=self.step_in_epoch,
            weights=dict(self.network.state_dict()),
            average=dict(self.average.module.state_dict()) if self.average is not None else None,
            state={
                "optimizer": self.optimizer.state_dict(),
                "scaler": scaler.state_dict() if scaler is not None else None,
                "best": self.best,
                "measured": self.measured,
                "seconds": self._seconds(),
            },
            config=self.config.to_dict(),
            data=self.data.identity,
        )

    def _go_on(self) -> None:
        """From a checkpoint, if there is one to go on from."""
        snapshot, to_tell = snapshot_to_go_on_from(self.checkpoints, self.config, self.data.identity)
        for told in to_tell:
            self.console.print(f"[yellow]{escape(told)}[/]", highlight=False, soft_wrap=True)
        if snapshot is None:
            return
        self.network.load_state_dict(snapshot.weights)
        if self.average is not None and snapshot.average is not None:
            self.average.module.load_state_dict(snapshot.average)
        self.optimizer.load_state_dict(snapshot.state["optimizer"])
        if self.accelerator.scaler is not None and snapshot.state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(snapshot.state["scaler"])
        self.best, self.measured = snapshot.state["best"], snapshot.state.get("measured", 0)
        self.seconds_before = snapshot.state.get("seconds", nan)  # not a number where it was not kept
        self.step, self.epoch, self.step_in_epoch = snapshot.step, snapshot.epoch, snapshot.step_in_epoch

    def _write_weights(self, name: str, model: nn.Module) -> None:
        self.task.write(model, self.folder / name)

    # -- how it ends ----------------------------------------------------------------------------------------------

    def _stopped(self) -> int:
        self._save()
        again = "the same command with --resume auto" if self.config.resume == "never" else "the same command"
        self.progress.line(f"Stopped at step {self.step}, all is saved: {again} goes on from there.")
        return self.stop.exit_code

    def _finish(self) -> int:
        """Final weights, the protocols of the recipe, a summary."""
        seconds = self._seconds()
        if self.main:
            for name, model in self._candidates().items():
                self._write_weights("final" if name == "model" else f"final_{name}", model)
        summary: dict[str, Any] = {
            **circumstances(self.config.seed, ("trueshift", "torch", "timm", "accelerate")),
            "config": self.config.to_dict(),
            "processes": self.share.processes,
            "data": {"train": self.data.train.title, "test": self.data.test.title, **self.data.identity},
            "steps": self.step,
            "seconds": round(seconds, 1),
            f"best_{self.task.score_name}": self.best,
        }
        if self.protocols:
            summary["evaluation"] = self._evaluate()
        if self.main:
            write_whole(self.folder / "summary.json", json_text(summary))
        self.progress.line(f"Done: weights in {self.folder / 'final'}, the best in {self.folder / 'best'}")
        return 0

    def _evaluate(self) -> dict[str, Any]:
        """The protocols of the recipe on the final weights as they were written, in float32 as the paper's."""
        if dist.is_initialized():
            dist.barrier()  # the weights are there
        subject = load_eval_model(str(self.folder / "final"), EvalOptions(device=str(self.device)))
        subject = replace(subject, name=self.config.model.name, weights=f"trained, {self.step} steps")
        settings = EvalOptions(
            batch_size=self.config.evaluate.batch_size,
            seed=self.config.seed,
            device=str(self.device),
            workers=self.config.data.workers,
        )
        with progress_bars(self.console) as progress:
            result = run_evaluation(subject, self.data.test, self.protocols, settings, progress=progress)
        if self.main:
            write_whole(self.folder / "eval.json", json_text(result))
            print_evaluation(self.console, result)
        return result["measured"]
