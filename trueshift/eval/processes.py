"""Join the processes that ``torchrun`` started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist


@contextmanager
def joined_processes(device: str) -> Iterator[tuple[str, int]]:
    """The device and rank of this process; alone, the device asked for and rank 0."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield device, dist.get_rank() if dist.is_initialized() else 0
        return
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    # counts are kept on the CPU whatever the model runs on
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    try:
        yield device, dist.get_rank()
    finally:
        dist.destroy_process_group()
