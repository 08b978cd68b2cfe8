"""Join the processes that ``torchrun`` started."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .locks import sole_writer


@contextmanager
def joined_processes(device: str) -> Iterator[tuple[str, int]]:
    """The device and rank of this process; alone, the device asked for and rank 0. A GPU is the current device."""
    on_gpu = torch.device(device).type == "cuda"
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        with torch.cuda.device(device) if on_gpu else nullcontext():  # accelerate takes the current one
            yield device, dist.get_rank() if dist.is_initialized() else 0
        return
    if on_gpu:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    # counts are kept on the CPU whatever the model runs on
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    try:
        yield device, dist.get_rank()
    finally:
        dist.destroy_process_group()


def gathered(mine: Any) -> list[Any]:
    """What each of the joined processes has."""
    if not dist.is_initialized():
        return [mine]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Hold a folder for all joined processes: the first takes its lock, and all are refused where it is."""
    refusal: list[str | None] = [None]
    with ExitStack() as held:
        if not dist.is_initialized() or dist.get_rank() == 0:
            try:
                held.enter_context(sole_writer(folder))
            except OSError as error:
                refusal = [str(error)]
        if dist.is_initialized():
            dist.broadcast_object_list(refusal)
        if refusal[0] is not None:
            raise OSError(refusal[0])
        yield


@torch.no_grad()
def broadcast_buffers(*models: nn.Module) -> None:
    """Give every process the first one's buffers.

    Gradients keep parameters equal, but each process updates batch norm statistics by its own images, and
    DistributedDataParallel synchronizes only those of the network itself, before its next pass.
    """
    if dist.is_initialized():
        for buffer in (buffer for model in models for buffer in model.buffers()):
            first = buffer.contiguous()
            dist.broadcast(first, 0)
            buffer.copy_(first)
