"""A small answer on its way from a device: asked for, it waits for what it was computed from and for nothing later."""

import numpy as np
import torch
from torch import Tensor


class Arriving:
    """Copies a small tensor to the host in the background."""

    def __init__(self, values: Tensor) -> None:
        self.ready: torch.cuda.Event | None = None
        if values.is_cuda:
            self.values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self.values.copy_(values, non_blocking=True)
            self.ready = torch.cuda.Event()
            self.ready.record()
        else:
            self.values = values.cpu()

    def numpy(self) -> np.ndarray:
        """The values, once they are here."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.values.numpy()
