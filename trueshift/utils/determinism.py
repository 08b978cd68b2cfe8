"""The same bits again, on a GPU too."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def only_deterministic(asked: bool) -> Iterator[None]:
    """If asked for, only algorithms that give the same bits again; to be entered before anything uses a GPU."""
    before = torch.are_deterministic_algorithms_enabled()
    if asked:
        os.environ.setdefault(WORKSPACE, ":4096:8")  # read once by cuBLAS, without which torch refuses to multiply
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
