"""What torch puts around a network to run it."""

from typing import Any

from torch.nn.parallel import DataParallel, DistributedDataParallel


def unwrapped(model: Any) -> Any:
    """The network inside DataParallel, DistributedDataParallel or ``torch.compile``."""
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif type(model).__name__ == "OptimizedModule":  # without importing torch's compiler
            model = model._orig_mod
        else:
            return model
