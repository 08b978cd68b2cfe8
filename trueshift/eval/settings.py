"""What audit and evaluation check of their settings alike."""

import torch


def check_shifts(shifts: int) -> None:
    """At least two shifts can be compared; 0 means every shift there is."""
    if shifts < 0 or shifts == 1:
        raise ValueError(f"{shifts} shifts: needs at least 2, to compare one with another; 0 means all")


def on_gpu(device: str) -> bool:
    """Whether pixels travel to a GPU."""
    return torch.device(device).type == "cuda"


def usual_batch_size(device: str) -> int:
    """Enough images to keep a device busy."""
    return 256 if on_gpu(device) else 64


def inference_device(device: str) -> str:
    """The device asked for, or the best there is for ``"auto"``."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if on_gpu(device) and not torch.cuda.is_available():
        raise ValueError(f"device {device!r}: there is no CUDA device here; needs cpu or auto")
    return device
