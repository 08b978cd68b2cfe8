"""In which type a network computes."""

import torch
from torch import Tensor


def network_precision(x: Tensor) -> torch.dtype:
    """The type in which torch would multiply ``x``: that of autocast, where it is on. It leaves float64 alone."""
    device = x.device.type
    autocast = torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if autocast else x.dtype
