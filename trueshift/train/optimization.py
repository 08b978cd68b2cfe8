"""timm's optimizers and schedules, with learning rates scaled to the batch size."""

from typing import Any

from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from torch import nn
from torch.optim import Optimizer

from .config import TrainConfig
from .cuda_graph import make_capturable


def rate_scale(config: TrainConfig) -> float:
    """Factor of all learning rates: proportional to the batch size."""
    return config.batch_size / config.optimizer.lr_batch_size if config.optimizer.lr_batch_size else 1.0


def build_optimizer(config: TrainConfig, model: nn.Module) -> Optimizer:
    """timm's optimizer of that name, without weight decay where the network says so."""
    asked = config.optimizer
    decay: dict[str, Any] = {"weight_decay": asked.weight_decay, "layer_decay": asked.layer_decay}
    try:
        optimizer = create_optimizer_v2(model, asked.name, asked.lr * rate_scale(config), **decay, **asked.arguments)
    except (AssertionError, ValueError, TypeError) as error:
        raise ValueError(f"optimizer {asked.name!r} cannot be made: {error}") from error
    if config.cuda_graph:
        make_capturable(optimizer)
    return optimizer


def load_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a checkpoint's ``state_dict``, which another device or a run without a CUDA graph may have written."""
    for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        if "capturable" in group:
            saved["capturable"] = group["capturable"]
    optimizer.load_state_dict(state)


def build_schedule(config: TrainConfig, optimizer: Optimizer, steps_per_epoch: int) -> Scheduler:
    """The learning rate as a function of the step alone: ``schedule.step_update(step)`` sets it."""
    asked, scale = config.schedule, rate_scale(config)
    length, warmup = (asked.steps, asked.warmup_steps) if asked.steps else (asked.epochs, asked.warmup_epochs)
    before = warmup if asked.curve_after_warmup else 0  # timm would add these to the length
    schedule, _ = create_scheduler_v2(
        optimizer,
        sched=asked.name,
        num_epochs=length - asked.cooldown_epochs - before,  # type: ignore[arg-type]
        warmup_epochs=warmup,  # type: ignore[arg-type]
        warmup_prefix=asked.curve_after_warmup,
        warmup_lr=asked.warmup_lr * scale,
        min_lr=asked.min_lr * (scale if asked.scale_min_lr else 1),
        cooldown_epochs=asked.cooldown_epochs,
        decay_rate=asked.decay_rate,
        decay_epochs=asked.decay_epochs,  # type: ignore[arg-type]
        k_decay=1.0,
        step_on_epochs=False,
        updates_per_epoch=1 if asked.steps else steps_per_epoch,  # each step counts as an epoch
    )
    assert schedule is not None
    return schedule
