"""Options of an evaluation and of an audit: how much is measured, on what device, and how the model is loaded."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ..utils.checks import check_at_least, check_seed

PRECISIONS = ("float32", "bf16")
Progress = Callable[[str, int, int], None]  # what is being done, how far, of how many


@dataclass(frozen=True)
class EvalOptions:
    """Options of an evaluation.

    Args:
        shifts: random shifts of each image, at least 2 (the paper draws a pair); 0 for every shift.
        limit: images at most, evenly spread over the data; 0 for all.
        batch_size: images in a batch; by default 64 on a CPU and 256 on a GPU, 2 and 8 for segmentation, 32 for fields.
        seed: of the shifts, and of random weights.
        device: cpu, cuda, cuda:1, or auto.
        precision: float32, or bf16 for autocast.
        workers: that read images, threads or for a GPU processes; 0 reads in the process itself.
        random_weights: measure the initialisation, where weights are unavailable.
        architecture: the network a checkpoint belongs to.
        img_size: height and width of the input, where the model does not say; the shortest side for segmentation.
        crop_pct: how much of the resized image is kept, where the model does not say.
        mean: of each colour, where the model does not say.
        std: of each colour, where the model does not say.
    """

    shifts: int = 2
    limit: int = 0
    batch_size: int | None = None
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"
    workers: int = 8
    random_weights: bool = False
    architecture: str | None = None
    img_size: int | None = None
    crop_pct: float | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        if self.shifts < 0 or self.shifts == 1:
            raise ValueError(f"{self.shifts} shifts: needs at least 2, to compare one with another; 0 means all")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r}: needs one of {', '.join(PRECISIONS)}")
        check_seed(self.seed)
        for name, least in (("limit", 0), ("batch_size", 1), ("workers", 0), ("img_size", 1)):
            check_at_least(name, getattr(self, name), least)

    def to_dict(self, dense: bool) -> dict[str, Any]:
        """For the record of a result, with the defaults filled in."""
        return {**asdict(self), "shifts": self.shifts or "all", "batch_size": self.batch_size_for(dense)}

    def batch_size_for(self, dense: bool) -> int:
        """The batch size asked for, or one that keeps the device busy; smaller where each pixel has an answer."""
        cpu, gpu = (2, 8) if dense else (64, 256)
        return self.batch_size or (gpu if on_gpu(self.device) else cpu)


@dataclass(frozen=True)
class AuditOptions(EvalOptions):
    """Options of an audit.

    Args:
        examples: images whose answers are shown at every shift of a plane, or pixel by pixel.
        plane: shifts along each side of that plane, one pixel apart.
        worst: images listed as the least consistent.
    """

    shifts: int = 4
    limit: int = 64
    workers: int = 4
    examples: int = 4
    plane: int = 16
    worst: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("examples", "plane", "worst"):
            check_at_least(name, getattr(self, name), 0)


def on_gpu(device: str) -> bool:
    """Whether a device is a GPU."""
    import torch

    return torch.device(device).type == "cuda"


def inference_device(device: str) -> str:
    """The device asked for, or the best there is for ``"auto"``."""
    import torch

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
