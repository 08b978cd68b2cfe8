"""Buffers that all processes have in common."""

import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def take_from_first(*models: nn.Module) -> None:
    """Every process gets the first one's buffers, those that it will write.

    Gradients keep parameters equal, but each process moves the running statistics of batch norm by its own pictures,
    and DistributedDataParallel makes them equal only when the network itself learns from the next ones.
    """
    if not dist.is_initialized():
        return
    for model in models:
        for buffer in model.buffers():
            first = buffer.contiguous()
            dist.broadcast(first, 0)
            buffer.copy_(first)
