"""How much an audit or an evaluation measures, and what they check alike."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...utils.checks import check_at_least, check_seed

Progress = Callable[[str, int, int], None]  # what is being done, how far, of how many


def check_shifts(shifts: int) -> None:
    """At least two shifts can be compared; 0 means every shift there is."""
    if shifts < 0 or shifts == 1:
        raise ValueError(f"{shifts} shifts: needs at least 2, to compare one with another; 0 means all")


def on_gpu(device: str) -> bool:
    """Whether pixels travel to a GPU."""
    return torch.device(device).type == "cuda"


def usual_batch_size(device: str, dense: bool = False) -> int:
    """Enough images to keep a device busy; fewer where each pixel has an answer, which takes room."""
    if dense:
        return 8 if on_gpu(device) else 2
    return 256 if on_gpu(device) else 64


def inference_device(device: str) -> str:
    """The device asked for, or the best there is for ``"auto"``."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"device {device!r}: needs cpu, cuda, cuda:1 or auto")
    if on_gpu(device):
        count = torch.cuda.device_count()
        if not count:
            raise ValueError(f"device {device!r}: there is no CUDA device here; needs cpu or auto")
        if (torch.device(device).index or 0) >= count:
            last = f"cuda:{count - 1}"
            raise ValueError(f"device {device!r}: there are {count} CUDA devices here; needs cuda:0 to {last}")
    return device


@dataclass(frozen=True)
class EvalSettings:
    """How much is measured.

    Args:
        shifts: of each image where shifts are compared with each other, at least 2; the paper draws a pair. 0 for all.
        limit: images at most, from the first on; 0 for all.
        batch_size: images in a batch; for segmentation, views of one image.
        workers: that read images; 0 reads in the process itself.
    """

    shifts: int = 2
    limit: int = 0
    batch_size: int = 128
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"
    workers: int = 8

    def __post_init__(self) -> None:
        check_shifts(self.shifts)
        check_seed(self.seed)
        for name, least in (("limit", 0), ("batch_size", 1), ("workers", 0)):
            check_at_least(name, getattr(self, name), least)


@dataclass(frozen=True)
class AuditSettings:
    """How much is measured.

    Args:
        limit: images at most; 0 for all.
        shifts: random shifts of each image and protocol, at least 2; 0 for every shift there is.
        examples: images whose answers are shown over the plane of shifts, or for segmentation pixel by pixel.
        plane: shifts along each side of that plane, one pixel apart.
        worst: images listed as the least consistent.
    """

    limit: int = 64
    shifts: int = 4
    examples: int = 4
    plane: int = 16
    worst: int = 8
    batch_size: int = 64
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"

    def __post_init__(self) -> None:
        check_shifts(self.shifts)
        check_seed(self.seed)
        for name, least in (("limit", 0), ("examples", 0), ("plane", 0), ("worst", 0), ("batch_size", 1)):
            check_at_least(name, getattr(self, name), least)
