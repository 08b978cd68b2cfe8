"""Copy small results from a device to the host without waiting for later work."""

import numpy as np
import torch
from torch import Tensor


class AsyncCopy:
    """A small tensor on its way to the host."""

    def __init__(self, values: Tensor) -> None:
        self._event = torch.cuda.Event() if values.is_cuda else None
        self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
        self._values.copy_(values, non_blocking=values.is_cuda)
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(values.device))  # which need not be the current device's

    @property
    def ready(self) -> bool:
        """Whether the values can be read without waiting."""
        return self._event is None or self._event.query()

    def numpy(self) -> np.ndarray:
        """The values; waits until they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._values.numpy()
