"""In which type a network computes."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def network_precision(x: Tensor) -> torch.dtype:
    """The type in which torch would multiply ``x``: that of autocast, where it is on. It leaves float64 alone."""
    device = x.device.type
    if device == "meta":  # which autocast does not know
        return x.dtype
    autocast = torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if autocast else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager:
    """What is computed of ``x`` here keeps its type, whatever surrounds it."""
    device = x.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)
