"""A look at a network that leaves it as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_evaluation(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards every module as it was."""
    modes = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
