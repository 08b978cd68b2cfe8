"""What the checks of exactness share: images, places and arithmetic, and the tests' own helpers."""

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA is used

import torch

from benchmarks.common.record import ROOT, processor
from trueshift.testing import hostile_images, photographs

sys.path.insert(0, str(ROOT / "tests"))
from layer_zoo import make_layers
from model_checks import all_shifts, broken_pairs, everything, perturb_norms, random_shifts

__all__ = ["all_shifts", "broken_pairs", "everything", "make_layers", "perturb_norms", "random_shifts"]


def images(size: tuple[int, int]) -> torch.Tensor:
    """Hostile images and photographs. "huge" is left out: it overflows a float32 norm in any network."""
    named = {name: image for name, image in hostile_images(size).items() if name != "huge"}
    named |= {name: photo[:, : size[0], : size[1]] for name, photo in photographs(max(size)).items()}
    return torch.stack(list(named.values()))


def settings() -> dict[str, tuple[str, dict[str, Any]]]:
    """Places and arithmetic of this machine by a short name: in words, and as arguments of ``prepared``."""
    plain = {"device": "cpu", "tf32": False, "autocast": False, "compiled": False}
    found: dict[str, tuple[str, dict[str, Any]]] = {"cpu": (f"{processor()}, float32", plain)}
    if torch.cuda.is_available():
        name, gpu = torch.cuda.get_device_name(), {**plain, "device": "cuda"}
        found["cuda-float32"] = (f"{name}, float32", gpu)
        found["cuda-tf32"] = (f"{name}, TF32", {**gpu, "tf32": True})
        found["cuda-bf16"] = (f"{name}, bf16 autocast", {**gpu, "autocast": True})
        found["cuda-float32-compiled"] = (f"{name}, float32, compiled", {**gpu, "compiled": True})
        found["cuda-bf16-compiled"] = (f"{name}, bf16 autocast, compiled", {**gpu, "autocast": True, "compiled": True})
    return found


def prepared(module: Any, device: str, tf32: bool, autocast: bool, compiled: bool) -> Callable[[Any], Any]:
    """The module as it is run in a setting."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.compiler.reset()
    run = torch.compile(module, fullgraph=True) if compiled else module

    def call(x: torch.Tensor) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            return run(x)

    return call
