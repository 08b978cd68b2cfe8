"""The task of a configuration."""

import torch

from .config import TrainConfig
from .data.loader import ALONE, Share
from .fields import Fields
from .task import Classification, Segmentation, Task

TASKS: dict[str, type[Task]] = {"classification": Classification, "segmentation": Segmentation, "fields": Fields}


def open_task(config: TrainConfig, share: Share = ALONE, device: torch.device | str = "cpu") -> Task:
    """The task of a configuration, with its data opened."""
    return TASKS[config.task](config, share, device)
