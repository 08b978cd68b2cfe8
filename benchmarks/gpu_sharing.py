"""Kernels of several processes side by side on one GPU, where its driver has the service for it (CUDA MPS)."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PROBE = "import torch; x = torch.ones(8, device='cuda'); assert float((x + x).sum()) == 16"


@contextmanager
def shared_gpu(wanted: bool) -> Iterator[dict[str, str]]:
    """Variables for processes that share the GPU; none where the service does not work, and they take turns."""
    program = shutil.which("nvidia-cuda-mps-control")
    if not wanted:
        yield {}
        return
    if program is None:
        print("MPS: nvidia-cuda-mps-control is not here, the processes take turns on the GPU", flush=True)
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for place in places.values():
            os.mkdir(place)
        environment = {**os.environ, **places}
        try:
            started = subprocess.run([program, "-d"], env=environment, timeout=20).returncode == 0
            works = started and _works(environment)
        except (OSError, subprocess.TimeoutExpired):
            works = False
        try:
            print(
                f"MPS: {'the processes share the GPU' if works else 'does not work here, they take turns'}", flush=True
            )
            yield places if works else {}
        finally:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([program], input="quit\n", text=True, env=environment, timeout=30, check=False)


def _works(environment: dict[str, str]) -> bool:
    done = subprocess.run([sys.executable, "-c", _PROBE], env=environment, timeout=60, capture_output=True)
    return done.returncode == 0
